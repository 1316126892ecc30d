"""Hypothesis strategies: types, schemas, tables and whole bundles, all valid.

    @given(strategies.bundles(formats=("csv", "jsonl")))
    def test_round_trip(case): …
        snapshot = case.write(folder)
        assert read(folder) == case.tables

Values reach for the ends: the smallest and largest integers, NaN and infinities, empty and non-BMP
text, nulls at every depth that allows them. Needs hypothesis.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow as pa

from lithi_datasets.errors import UsageError
from lithi_datasets.manifest import STATUSES, Snapshot
from lithi_datasets.schema import declared_schema
from lithi_datasets.testing.writer import PartSpec, write_bundle
from lithi_datasets.types import INTEGER_TYPES, Field

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

try:
    from hypothesis import strategies as st
except ImportError as error:  # pragma: no cover
    raise UsageError(
        "lithi_datasets.testing.strategies needs hypothesis", remedy="pip install hypothesis"
    ) from error

__all__ = ["BundleCase", "bundles", "fields", "tables", "types"]

JsonType: TypeAlias = "str | dict[str, Any]"
JsonField: TypeAlias = "dict[str, Any]"

FORMATS = ("parquet", "arrow", "jsonl", "csv")
_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY_SECONDS = 86_400
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # 0001-01-01 and 9999-12-31, in days since 1970.
_ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "+05:30", "-03:00")
_WIDTHS: dict[str, Literal[16, 32, 64]] = {"float16": 16, "float32": 32, "float64": 64}
_PLAIN = (
    *sorted(INTEGER_TYPES),
    *("bool", "float16", "float32", "float64", "string", "large_string", "binary"),
    *("large_binary", "date32", "date64", "time32[s]", "time32[ms]", "time64[us]", "time64[ns]"),
    *(f"duration[{unit}]" for unit in _UNITS),
    *(f"timestamp[{unit}]" for unit in _UNITS),
)
_TRICKY_TEXT = (
    *("", "NA", "null", "nan", "true", "00123", "1e5", " x ", '"', '""', "a,b", "'", "\\", "\n"),
    *("\r\n", "\ufeff", "\U0001f600", "e\u0301", "\u2028", "\0", "2020-01-01"),
)


def _names() -> st.SearchStrategy[str]:
    letters = st.text(string.ascii_letters + "_", min_size=1, max_size=4)
    any_text = st.text(
        st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1, max_size=6
    )
    # `lithi_` is reserved, a loader adds `__valid` to names, datasets keeps `_type` for itself.
    return (letters | any_text | st.sampled_from(["a.b", "a,b", 'a"b', " a ", "item_id.x"])).filter(
        lambda name: (
            not name.startswith("lithi_") and not name.endswith("__valid") and name != "_type"
        )
    )


def _decimals() -> st.SearchStrategy[str]:
    def scaled(bits: int, digits: int) -> st.SearchStrategy[str]:
        precision = st.sampled_from([1, digits]) | st.integers(1, digits)
        return precision.flatmap(
            lambda p: st.integers(0, p).map(lambda s: f"decimal{bits}({p}, {s})")
        )

    return scaled(128, 38) | scaled(256, 76)


def types(*, nested: bool = True, depth: int = 2) -> st.SearchStrategy[JsonType]:
    """Types as a manifest writes them.

    Args:
        nested: whether lists and structs are among them; CSV has none.
        depth: how many lists and structs stand in each other at most.
    """
    zoned = st.builds(
        lambda unit, zone: f"timestamp[{unit}, tz={zone}]",
        st.sampled_from(sorted(_UNITS)),
        st.sampled_from(_ZONES),
    )
    plain: st.SearchStrategy[JsonType] = st.sampled_from(_PLAIN) | zoned | _decimals()
    if not nested or depth < 1:
        return plain
    inner = types(depth=depth - 1)
    return (
        plain
        | inner.map(lambda item: {"list": item})
        | st.builds(lambda item, n: {"list": item, "length": n}, inner, st.integers(1, 3))
        | inner.map(lambda item: {"large_list": item})
        | _members(inner).map(lambda members: {"struct": members})
    )


def _members(
    inner: st.SearchStrategy[JsonType], *, least: int = 1
) -> st.SearchStrategy[list[JsonField]]:
    return st.lists(_names(), min_size=least, max_size=3, unique=True).flatmap(
        lambda names: st.tuples(*(_field(name, inner) for name in names)).map(list)
    )


@st.composite
def _field(draw: st.DrawFn, name: str, inner: st.SearchStrategy[JsonType]) -> JsonField:
    classes = draw(st.sampled_from([False, False, False, True]))
    kind = draw(st.sampled_from(sorted(INTEGER_TYPES)) if classes else inner)
    field: JsonField = {"name": name, "type": kind}
    if draw(st.booleans()):
        field["nullable"] = draw(st.booleans())
    if classes:
        label = st.text(string.ascii_letters, min_size=1, max_size=3)
        field["class_names"] = draw(st.lists(label, min_size=1, max_size=4, unique=True))
    return field


@st.composite
def fields(
    draw: st.DrawFn, *, kind: str = "result", nested: bool = True, item_id_field: str = "item_id"
) -> list[JsonField]:
    """The `schema.fields` of a manifest: the id, the reserved columns and up to four others.

    Args:
        draw: hypothesis passes it; callers leave it out.
        kind: `result` has `lithi_status`, a `staged_input` may.
        nested: as in `types`.
        item_id_field: name of the id column; names of other columns differ from it.
    """
    chosen = [
        field
        for field in draw(_members(types(nested=nested), least=0))
        if field["name"] != item_id_field
    ]
    chosen.append({"name": item_id_field, "type": "string", "nullable": False})
    if kind == "result" or draw(st.booleans()):
        chosen.append({"name": "lithi_status", "type": "string", "nullable": False})
        if draw(st.booleans()):
            width = draw(st.sampled_from(["float32", "float64"]))
            chosen.append({"name": "lithi_confidence", "type": width})
        if draw(st.booleans()):
            chosen.append({"name": "lithi_verification", "type": "string"})
    return draw(st.permutations(chosen))


@st.composite
def tables(
    draw: st.DrawFn,
    fields: Sequence[Mapping[str, Any]],
    *,
    item_id_field: str = "item_id",
    max_rows: int = 6,
    finite: bool = False,
) -> pa.Table:
    """Tables that keep every rule of the format for these fields, in their declared Arrow types.

    Args:
        draw: hypothesis passes it; callers leave it out.
        fields: `schema.fields` of a manifest.
        item_id_field: its values are unique, not empty and without line breaks.
        max_rows: the most rows; none are possible.
        finite: whether NaN and the infinities are left out, as for JSONL.
    """
    models = [Field.model_validate(dict(field)) for field in fields]
    declared = declared_schema(models)
    rows = draw(st.integers(0, max_rows))
    columns = []
    for field, arrow in zip(fields, declared, strict=True):
        if field["name"] == item_id_field:
            values = draw(st.lists(_ids(), min_size=rows, max_size=rows, unique=True))
        else:
            one = _top(field, finite)
            values = draw(st.lists(one, min_size=rows, max_size=rows))
        columns.append(pa.array(values, arrow.type))
    return pa.Table.from_arrays(columns, schema=declared)


@dataclass(frozen=True)
class BundleCase:
    """A bundle to write, and what a reader must find in it.

    Attributes:
        fields: `schema.fields` of the manifest.
        kind: `result` or `staged_input`.
        parts: its parts, tables in the declared types.
    """

    fields: tuple[JsonField, ...]
    kind: str
    parts: tuple[PartSpec, ...]

    @property
    def tables(self) -> dict[str, pa.Table]:
        """Split → its rows in order, in the declared types; an empty `train` without parts."""
        found: dict[str, list[pa.Table]] = {}
        for part in self.parts:
            found.setdefault(part.split, []).append(part.table)
        if not found:
            models = [Field.model_validate(field) for field in self.fields]
            found["train"] = [declared_schema(models).empty_table()]
        return {split: pa.concat_tables(parts) for split, parts in found.items()}

    def write(self, folder: str | os.PathLike[str], **arguments: Any) -> Snapshot:
        """Write the bundle; `arguments` are further ones of `write_bundle`."""
        return write_bundle(
            folder, list(self.parts), fields=self.fields, kind=self.kind, **arguments
        )


@st.composite
def bundles(
    draw: st.DrawFn, *, formats: Sequence[str] = FORMATS, max_rows: int = 6, max_parts: int = 3
) -> BundleCase:
    """Whole bundles: random schema, up to three parts, formats and splits mixed.

    Args:
        draw: hypothesis passes it; callers leave it out.
        formats: those to draw from; a bundle with a CSV part has no lists and structs, one with a
            JSONL part no non-finite floats.
        max_rows: the most rows of the whole bundle.
        max_parts: the most parts; none are possible.
    """
    kind = draw(st.sampled_from(["result", "staged_input"]))
    drawn = draw(st.lists(st.sampled_from(list(formats)), max_size=max_parts))
    schema = draw(fields(kind=kind, nested="csv" not in drawn))
    table = draw(tables(schema, max_rows=max_rows if drawn else 0, finite="jsonl" in drawn))
    inner = st.integers(0, table.num_rows)
    cuts = sorted(draw(st.tuples(*(inner for _ in drawn[1:]))))
    bounds = [0, *cuts, table.num_rows]
    splits = st.sampled_from(["train", "test", "val.x_1"])
    parts = [
        PartSpec(
            table.slice(start, stop - start),
            format=format,
            split=draw(splits),
            status_counts=draw(st.booleans()),
            **draw(_writing(format)),
        )
        for format, start, stop in zip(drawn, bounds, bounds[1:], strict=False)
    ]
    return BundleCase(fields=tuple(schema), kind=kind, parts=tuple(parts))


def _writing(format: str) -> st.SearchStrategy[dict[str, Any]]:
    if format == "parquet":
        return st.just({})
    if format == "arrow":
        options = st.fixed_dictionaries({"stream": st.booleans(), "batch_rows": st.integers(1, 3)})
        return st.fixed_dictionaries({"options": options})
    choices: dict[str, st.SearchStrategy[Any]] = {
        "newline": st.sampled_from(["\n", "\r\n"]),
        "bom": st.booleans(),
        "members": st.integers(1, 2),
    }
    if format == "jsonl":
        choices |= {"nulls": st.sampled_from(["null", "absent"]), "ascii": st.booleans()}
    else:
        choices |= {"quote_all": st.booleans()}
    return st.fixed_dictionaries(
        {
            "options": st.fixed_dictionaries(choices),
            "compression": st.sampled_from([None, "gzip", "zstd"]),
        }
    )


def _ids() -> st.SearchStrategy[str]:
    tricky = st.sampled_from([text for text in _TRICKY_TEXT if text.strip("\r\n")])
    anything = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1)
    return st.text(string.digits, min_size=1, max_size=4) | tricky | anything


def _top(field: Mapping[str, Any], finite: bool) -> st.SearchStrategy[Any]:
    if field["name"] == "lithi_status":
        return st.sampled_from(STATUSES)
    if field["name"] == "lithi_confidence":
        return st.none() | st.floats(0.0, 1.0, width=_WIDTHS[field["type"]])
    return _value(field, finite)


def _value(field: Mapping[str, Any], finite: bool) -> st.SearchStrategy[Any]:
    names = field.get("class_names")
    values = _of_type(field["type"], finite) if names is None else st.integers(0, len(names) - 1)
    nullable = field.get("nullable")
    return values if nullable is False else st.none() | values


def _of_type(kind: JsonType, finite: bool) -> st.SearchStrategy[Any]:
    if isinstance(kind, str):
        return _primitive(kind, finite)
    if "struct" in kind:
        members = {member["name"]: _value(member, finite) for member in kind["struct"]}
        return st.fixed_dictionaries(members)
    item = st.none() | _of_type(kind["list"] if "list" in kind else kind["large_list"], finite)
    length = kind.get("length")
    return st.lists(item, min_size=length or 0, max_size=length or 3)


def _primitive(kind: str, finite: bool) -> st.SearchStrategy[Any]:
    if kind.startswith("decimal"):
        precision, scale = map(int, kind.partition("(")[2].rstrip(")").split(", "))
        return _ends(1 - 10**precision, 10**precision - 1).map(lambda n: _decimal(n, scale))
    if kind.startswith("float"):
        width = _WIDTHS[kind]
        return st.floats(width=width, allow_nan=not finite, allow_infinity=not finite)
    if kind in INTEGER_TYPES:
        bits = int(kind.rpartition("int")[2])
        shift = 0 if kind[0] == "u" else 2 ** (bits - 1)
        return _ends(-shift, 2**bits - 1 - shift)
    if "string" in kind:
        return st.sampled_from(_TRICKY_TEXT) | st.text(max_size=20)
    if "binary" in kind:
        return st.binary(max_size=20)
    return st.booleans() if kind == "bool" else _temporal(kind)


def _temporal(kind: str) -> st.SearchStrategy[int]:
    """Counts of the unit; years 1 to 9999 for dates and timestamps, 24 hours for times of day."""
    if kind == "date32":
        return _ends(_FIRST_DAY, _LAST_DAY)
    if kind == "date64":
        return _ends(_FIRST_DAY, _LAST_DAY).map(lambda day: day * _DAY_SECONDS * 1000)
    name, _, unit = kind.rstrip("]").partition(",")[0].rstrip("]").partition("[")
    scale = _UNITS[unit]
    if name in ("time32", "time64"):
        return _ends(0, _DAY_SECONDS * scale - 1)
    if name == "duration":
        return _ends(-(2**63), 2**63 - 1)
    first, last = _FIRST_DAY * _DAY_SECONDS * scale, (_LAST_DAY + 1) * _DAY_SECONDS * scale - 1
    # The smallest int64 is "not a time" to NumPy.
    return _ends(max(first, 1 - 2**63), min(last, 2**63 - 1))


def _ends(least: int, most: int) -> st.SearchStrategy[int]:
    ends = [value for value in (least, -1, 0, 2**53 + 1, most) if least <= value <= most]
    return st.sampled_from(ends) | st.integers(least, most)


def _decimal(unscaled: int, scale: int) -> Decimal:
    # From its digits: arithmetic would round to the context's precision.
    digits = tuple(map(int, str(abs(unscaled))))
    return Decimal((1 if unscaled < 0 else 0, digits, -scale))
