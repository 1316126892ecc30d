"""Any physical form of a table: encodings, layouts, offsets, and what lies where nobody looks."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from test_conversion import INT32, INT64, convert, counted, counts, refusal

HIDDEN = object()
"""A slot that nobody sees: it is written as a value that no conversion would let pass."""


BAD = object()
"""A timestamp that is not a whole number of microseconds."""


def holds_bad(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(holds_bad, value.values()))
    return any(map(holds_bad, value)) if isinstance(value, list) else value is BAD


@st.composite
def tables(draw: st.DrawFn, depth: int = 2, *, bad: bool = False) -> tuple[pa.DataType, Any]:
    """A declared type and a strategy for its values; moments are integers, or bad ones."""
    leaves: list[tuple[pa.DataType, Any]] = [
        (pa.int64(), st.integers(-3, 3)),
        (pa.float64(), st.sampled_from([0.5, -1.0])),
        (pa.string(), st.text("ab\u00e9", max_size=14)),
        (pa.large_binary(), st.binary(max_size=14)),
        (pa.bool_(), st.booleans()),
        (pa.timestamp("us"), st.integers(-3, 3).map(lambda n: n * 10**6)),
        (pa.date64(), st.integers(-3, 3).map(lambda n: n * 86_400_000)),
    ]
    if bad:
        leaves = [(pa.timestamp("us"), st.sampled_from([0, 10**6, BAD]))]
    if depth == 0 or draw(st.booleans()):
        kind, values = draw(st.sampled_from(leaves))
        return kind, st.none() | values
    shape = draw(st.sampled_from(["list", "large", "fixed", "struct"]))
    if shape == "struct":
        fields = [draw(tables(depth=depth - 1, bad=bad)) for _ in range(draw(st.integers(1, 2)))]
        kind = pa.struct([(f"f{i}", kind) for i, (kind, _) in enumerate(fields)])
        values = st.fixed_dictionaries({f"f{i}": v for i, (_, v) in enumerate(fields)})
        return kind, st.none() | values
    item, values = draw(tables(depth=depth - 1, bad=bad))
    if shape == "fixed":
        return pa.list_(item, 2), st.none() | st.lists(values, min_size=2, max_size=2)
    make = pa.list_ if shape == "list" else pa.large_list
    return make(item), st.none() | st.lists(values, max_size=3)


@st.composite
def physical(draw: st.DrawFn, kind: pa.DataType, values: list[Any]) -> pa.Array:
    """One of the physical arrays that hold these values, with or without encodings and offsets."""
    start = draw(st.integers(0, 2))
    rows = [HIDDEN] * start + values + [HIDDEN] * draw(st.integers(0, 1))
    encoding = draw(st.sampled_from(["plain", "plain", "dictionary", "runs"]))
    if encoding == "dictionary":
        entries = [HIDDEN]
        indices: list[int | None] = []
        for value in rows:
            if value is None and draw(st.booleans()):
                indices.append(None)
                continue
            if value not in entries:
                entries.append(value)
            indices.append(entries.index(value))
        index = draw(st.sampled_from([pa.int8(), pa.uint64(), pa.int32()]))
        array = pa.DictionaryArray.from_arrays(pa.array(indices, index), draw(plain(kind, entries)))
    elif encoding == "runs" and rows:
        ends = [i + 1 for i, row in enumerate(rows) if i + 1 == len(rows) or row != rows[i + 1]]
        runs = draw(plain(kind, [rows[end - 1] for end in ends]))
        array = pa.RunEndEncodedArray.from_arrays(pa.array(ends, pa.int32()), runs)
    else:
        array = draw(plain(kind, rows))
    return array.slice(start, len(values))


@st.composite
def plain(draw: st.DrawFn, kind: pa.DataType, rows: list[Any]) -> pa.Array:
    dead = pa.array([row is None for row in rows], pa.bool_())
    if pa.types.is_struct(kind):
        order = draw(st.permutations(range(kind.num_fields)))
        names = [kind.field(index).name for index in order]
        children = [
            draw(
                physical(
                    kind.field(name).type,
                    [row[name] if isinstance(row, dict) else HIDDEN for row in rows],
                )
            )
            for name in names
        ]
        return pa.StructArray.from_arrays(children, names=names, mask=dead)
    if pa.types.is_nested(kind):
        return draw(lists(kind, rows))
    return draw(leaf(kind, rows))


@st.composite
def lists(draw: st.DrawFn, kind: pa.DataType, rows: list[Any]) -> pa.Array:
    shapes = ["list", "large"] + (["view"] if hasattr(pa, "list_view") else [])
    if pa.types.is_fixed_size_list(kind):
        shapes.append("fixed")
    shape = draw(st.sampled_from(shapes))
    unseen = 2 if shape == "fixed" else draw(st.integers(0, 3))
    parts = [row if isinstance(row, list) else [HIDDEN] * unseen for row in rows]
    dead = pa.array([row is None for row in rows], pa.bool_())
    order = list(range(len(parts)))
    if shape == "view":
        order = draw(st.permutations(order))
    values = [element for index in order for element in parts[index]]
    child = draw(physical(kind.value_type, values))
    sizes = [len(part) for part in parts]
    if shape == "fixed":
        return pa.FixedSizeListArray.from_arrays(child, 2, mask=dead)
    if shape == "view":
        starts = dict(zip(order, np.cumsum([0] + [sizes[i] for i in order]), strict=False))
        return pa.ListViewArray.from_arrays(
            pa.array([starts[i] for i in range(len(parts))], pa.int32()),
            pa.array(sizes, pa.int32()),
            child,
            mask=dead,
        )
    offsets = np.cumsum([0, *sizes])
    if shape == "list":
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), child, mask=dead)
    return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), child, mask=dead)


@st.composite
def leaf(draw: st.DrawFn, kind: pa.DataType, rows: list[Any]) -> pa.Array:
    name = str(kind)
    text = [pa.string(), pa.large_string()]
    if hasattr(pa, "string_view"):
        text.append(pa.string_view())
    choices = {
        "int64": [pa.int8(), pa.int32(), pa.int64()],
        "double": [pa.float16(), pa.float32(), pa.float64()],
        "string": text,
        "large_binary": [pa.binary(), pa.large_binary()],
        "bool": [pa.bool_()],
        "timestamp[us]": [pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")],
        "date64[ms]": [pa.date32(), pa.date64()],
    }
    source = draw(st.sampled_from(choices[name]))
    if name in ("timestamp[us]", "date64[ms]"):
        per = {"timestamp[s]": 10**-6, "timestamp[ms]": 10**-3, "timestamp[ns]": 10**3}
        ratio = Fraction(per.get(str(source), 1)).limit_denominator(10**6)
        ratio = Fraction(1, 86_400_000) if str(source) == "date32[day]" else ratio
        if any(row is BAD for row in rows):
            source = pa.timestamp("ns")
            ratio = Fraction(1000)
            rows = [Fraction(7, 1000) if row is BAD else row for row in rows]
        low, high = INT32 if source.bit_width == 32 else INT64
        # Under a null or outside every list lies what overflows, or has a rest.
        unseen = draw(st.sampled_from([low, high])) if source.bit_width == 64 else high
        if str(source) == "date64[ms]":
            unseen = (abs(unseen) - 1) // 86_400_000 * 86_400_000
        whole = [
            unseen if row is HIDDEN else None if row is None else int(row * ratio) for row in rows
        ]
        return counts(whole, source)
    filler = {"int64": 9, "double": 9.0, "string": "unseen" * 3, "large_binary": b"?", "bool": True}
    rows = [filler[name] if row is HIDDEN else row for row in rows]
    if source == pa.float16():  # older versions take no other kind of number for it
        rows = [None if row is None else np.float16(row) for row in rows]
    return pa.array(rows, source)


def meaning(array: pa.Array) -> list[Any]:
    """The values as `tables` writes them, by Arrow's layout alone."""
    valid = [array[i].is_valid for i in range(len(array))]
    kind = array.type
    if pa.types.is_struct(kind):
        fields = {kind.field(i).name: meaning(array.field(i)) for i in range(kind.num_fields)}
        rows: list[Any] = [
            {name: column[i] for name, column in fields.items()} for i in range(len(array))
        ]
    elif pa.types.is_nested(kind):
        rows = [meaning(array[i].values) if ok else None for i, ok in enumerate(valid)]
    elif pa.types.is_temporal(kind):
        rows = counted(array)
    else:
        rows = array.to_pylist()
    return [row if ok else None for row, ok in zip(rows, valid, strict=True)]


@settings(max_examples=100)
@given(st.data())
def test_any_physical_form_of_a_table_converts_to_its_values(data: st.DataObject) -> None:
    kind, strategy = data.draw(tables())
    values = data.draw(st.lists(strategy, max_size=5))
    array = data.draw(physical(kind, values))
    assert meaning(convert(array, kind)) == values


@settings(max_examples=100)
@given(st.data())
def test_in_any_physical_form_the_first_row_with_a_bad_value_is_named(data: st.DataObject) -> None:
    kind, strategy = data.draw(tables(bad=True))
    values = data.draw(st.lists(strategy, max_size=5))
    array = data.draw(physical(kind, values))
    bad = [row for row, value in enumerate(values) if holds_bad(value)]
    if not bad:
        assert meaning(convert(array, kind)) == values
        return
    error = refusal(array, kind, first_row=0)
    rows = {int(word) for word in re.findall(r"row (\d+) ", error.problem)}
    # Columns are converted one after the other: a struct's first bad field speaks for itself.
    assert rows <= set(bad)
    if not has_structs(kind):
        assert rows == {bad[0]}
    assert "count 7 " in error.problem


def has_structs(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return True
    return pa.types.is_nested(kind) and has_structs(kind.value_type)
