"""Arrow batches as tensors: dtypes, shapes, masks, nulls, and whose memory it is."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from lithi_datasets.errors import UsageError
from lithi_datasets.reading.tensors import (
    StructColumn,
    batch_values,
    mask_name,
    masked_columns,
    refuse_mask_collisions,
    row_values,
    to_tensors,
)

DAY_MS = 86_400_000
NUMBERS: dict[str, tuple[pa.DataType, list[Any], torch.dtype, list[Any]]] = {
    "bool": (pa.bool_(), [True, False, True], torch.bool, [True, False, True]),
    "int8": (pa.int8(), [-128, 0, 127], torch.int8, [-128, 0, 127]),
    "int16": (pa.int16(), [-(2**15), 5], torch.int16, [-(2**15), 5]),
    "int32": (pa.int32(), [-(2**31), 5], torch.int32, [-(2**31), 5]),
    "int64": (pa.int64(), [2**53 + 1, -(2**63)], torch.int64, [2**53 + 1, -(2**63)]),
    "uint8": (pa.uint8(), [255, 0], torch.uint8, [255, 0]),
    "uint16": (pa.uint16(), [2**16 - 1, 0], torch.uint16, [2**16 - 1, 0]),
    "uint32": (pa.uint32(), [2**32 - 1, 0], torch.uint32, [2**32 - 1, 0]),
    "uint64": (pa.uint64(), [2**64 - 1, 2**63 + 1], torch.uint64, [2**64 - 1, 2**63 + 1]),
    "float16": (pa.float16(), np.array([1.5, -0.0], "f2"), torch.float16, [1.5, -0.0]),  # type: ignore[dict-item]
    "float32": (pa.float32(), [0.5, float("inf")], torch.float32, [0.5, float("inf")]),
    "float64": (pa.float64(), [1e300, 1 / 3], torch.float64, [1e300, 1 / 3]),
    "date32": (pa.date32(), [dt.date(1970, 1, 2), dt.date(1969, 12, 31)], torch.int64, [1, -1]),
    "date64": (pa.date64(), [dt.date(1970, 1, 2)], torch.int64, [DAY_MS]),
    "time32[s]": (pa.time32("s"), [dt.time(0, 1)], torch.int64, [60]),
    "time32[ms]": (pa.time32("ms"), [dt.time(0, 1)], torch.int64, [60_000]),
    "time64[us]": (pa.time64("us"), [dt.time(0, 0, 0, 7)], torch.int64, [7]),
    "time64[ns]": (pa.time64("ns"), [5], torch.int64, [5]),
    "duration[s]": (pa.duration("s"), [dt.timedelta(days=1)], torch.int64, [86_400]),
    "duration[ns]": (pa.duration("ns"), [-(2**62) - 1], torch.int64, [-(2**62) - 1]),
    "timestamp[s]": (pa.timestamp("s"), [dt.datetime(1970, 1, 2)], torch.int64, [86_400]),
    "timestamp[ns, tz=+02:00]": (
        pa.timestamp("ns", "+02:00"),
        [2**60 + 1],
        torch.int64,
        [2**60 + 1],
    ),
}


def _one(name: str, array: pa.Array | pa.ChunkedArray, masks: frozenset[str] | None = None) -> Any:
    return to_tensors(pa.table({name: array}), masks=masks)


@pytest.mark.parametrize("case", NUMBERS.values(), ids=list(NUMBERS))
def test_the_dtype_is_the_declared_one_and_each_value_is_exact(
    case: tuple[pa.DataType, list[Any], torch.dtype, list[Any]],
) -> None:
    kind, values, dtype, expected = case
    array = pa.array(values, kind)
    whole = batch_values("c", array)
    assert whole.dtype is dtype
    assert whole.tolist() == expected
    rows = row_values("c", array)
    assert [(row.dtype, row.shape, row.item()) for row in rows] == [
        (dtype, torch.Size([]), value) for value in expected
    ]
    for empty in (array.slice(0, 0), pa.chunked_array([], kind)):
        nothing = batch_values("c", empty)
        assert (nothing.dtype, nothing.shape) == (dtype, torch.Size([0]))
        assert row_values("c", empty) == []
    # 11 values, so that a slice begins inside a byte of the bits.
    many = pa.concat_arrays([array] * 11).slice(5, 7)
    assert batch_values("c", many).tolist() == (expected * 11)[5:12]
    chunked = pa.chunked_array([many, array.slice(0, 0), array])
    assert batch_values("c", chunked).tolist() == (expected * 11)[5:12] + expected


@pytest.mark.parametrize("case", NUMBERS.values(), ids=list(NUMBERS))
def test_a_masked_column_has_the_same_dtype_and_keys_whatever_the_nulls(
    case: tuple[pa.DataType, list[Any], torch.dtype, list[Any]],
) -> None:
    kind, values, dtype, expected = case
    full = pa.array(values, kind)
    nulls = pa.nulls(3, kind)
    for array, valid in (
        (full, [True] * len(full)),
        (nulls, [False] * 3),
        (pa.chunked_array([full, nulls]), [True] * len(full) + [False] * 3),
        (pa.chunked_array([nulls.slice(1), full]), [False] * 2 + [True] * len(full)),
        (nulls.slice(0, 0), []),
    ):
        batch = _one("c", array, frozenset({"c"}))
        assert list(batch) == ["c", mask_name("c")] == ["c", "c__valid"]
        assert batch["c"].dtype is dtype
        assert (batch["c__valid"].dtype, batch["c__valid"].tolist()) == (torch.bool, valid)
        assert batch["c"][~batch["c__valid"]].tolist() == [0] * valid.count(False)
        assert batch["c"][batch["c__valid"]].tolist() == (expected if any(valid) else [])


def test_what_lies_under_a_null_never_shows() -> None:
    numbers = pa.Array.from_buffers(
        pa.int64(), 3, [pa.py_buffer(b"\x05"), pa.py_buffer(np.array([7, 666, 9], "i8"))]
    )
    assert numbers.to_pylist() == [7, None, 9]
    assert _one("n", numbers, frozenset({"n"}))["n"].tolist() == [7, 0, 9]
    lists = pa.FixedSizeListArray.from_arrays(
        pa.array([1, 2, 666, 667, 5, None], pa.int16()), 2, mask=pa.array([False, True, False])
    )
    batch = _one("v", lists, frozenset({"v"}))
    assert batch["v"].tolist() == [[1, 2], [0, 0], [5, 0]]
    assert batch["v__valid"].tolist() == [[True, True], [False, False], [True, False]]
    # A ragged list under a null may still span elements.
    ragged = pa.ListArray.from_arrays(
        pa.array([0, 1, 3, 4], pa.int32()),
        pa.array([1, None, 667, 4]),
        mask=pa.array([False, True, False]),
    )
    assert [None if row is None else row.tolist() for row in batch_values("r", ragged)] == [
        [1],
        None,
        [4],
    ]


def test_fixed_size_lists_are_matrices_nested_ones_too() -> None:
    kind = pa.list_(pa.list_(pa.uint16(), 2), 3)
    rows = [[[i, i + 1], [2, 3], [4, 65535]] for i in range(9)]
    array = pa.array(rows, kind)
    whole = batch_values("v", array)
    assert (whole.dtype, whole.shape, whole.tolist()) == (torch.uint16, (9, 3, 2), rows)
    assert batch_values("v", array.slice(4, 3)).tolist() == rows[4:7]
    assert [row.tolist() for row in row_values("v", array.slice(4, 3))] == rows[4:7]
    assert batch_values("v", array.slice(0, 0)).shape == (0, 3, 2)
    holes = pa.array([None, [[1, 2], None, [3, None]], rows[2]], kind)
    masked = _one("v", pa.chunked_array([holes, array.slice(8)]), frozenset({"v"}))
    assert masked["v"].tolist() == [[[0, 0]] * 3, [[1, 2], [0, 0], [3, 0]], rows[2], rows[8]]
    assert masked["v__valid"].tolist() == [
        [[False, False]] * 3,
        [[True, True], [False, False], [True, False]],
        [[True, True]] * 3,
        [[True, True]] * 3,
    ]
    assert row_values("v", holes.slice(0, 1)) == [None]
    with pytest.raises(
        UsageError, match=r"(?s)inside a list.*'v'.*null in row 1 of the batch"
    ) as caught:
        row_values("v", holes)
    assert caught.value.path == "v"


def test_a_ragged_list_is_always_a_list_of_tensors() -> None:
    for kind in (pa.list_(pa.int8()), pa.large_list(pa.int8())):
        equal = pa.array([[1, 2], [3, 4]], kind)
        ragged = pa.array([[], [1], None, [2, 3, 4], None], kind)
        for array in (
            equal,
            ragged,
            ragged.slice(1, 3),
            pa.nulls(2, kind),
            pa.chunked_array([ragged, equal]),
        ):
            for values in (batch_values("r", array), row_values("r", array)):
                assert [
                    None if row is None else row.tolist() for row in values
                ] == array.to_pylist()
                assert {row.dtype for row in values if row is not None} <= {torch.int8}
        assert batch_values("r", ragged.slice(0, 0)) == []
        # A mask is for what is one tensor; None says it here.
        assert list(_one("r", ragged, frozenset({"r"}))) == ["r"]
    points = pa.array(
        [[[1.0, 2.0]], [], [[3.0, 4.0], [5.0, 6.0]]], pa.list_(pa.list_(pa.float32(), 2))
    )
    assert [row.shape for row in batch_values("p", points)] == [(1, 2), (0, 2), (2, 2)]
    deep = batch_values("d", pa.array([[[1], [2, 3]], [], None], pa.list_(pa.list_(pa.int64()))))
    assert [[row.tolist() for row in rows] for rows in deep[:2]] == [[[1], [2, 3]], []]
    assert deep[2] is None
    ordinary = batch_values("r", pa.array([[1.0], [2.0, 3.0]], pa.list_(pa.float32())))
    padded = torch.nn.utils.rnn.pad_sequence(ordinary, batch_first=True)
    assert padded.tolist() == [[1.0, 0.0], [2.0, 3.0]]


@pytest.mark.parametrize("masks", [None, frozenset({"r"})])
def test_a_null_inside_a_ragged_list_is_named(masks: frozenset[str] | None) -> None:
    array = pa.chunked_array([pa.array([[1], [2]]), pa.array([[], [3, None]])])
    with pytest.raises(UsageError, match=r"(?s)'r'.*row 3.*with_format\(None\)"):
        _one("r", array, masks)


def test_strings_binary_and_decimals_are_python_values() -> None:
    table = pa.table(
        {
            "s": pa.array(["", None, "ü"]),
            "ls": pa.array(["a", None, "b"], pa.large_string()),
            "b": pa.array([b"\xff\x00", None, b""]),
            "d": pa.array([Decimal("1.50"), None, Decimal("-0.01")], pa.decimal128(10, 2)),
            "rs": pa.array([["a", None], None, []], pa.list_(pa.string())),
            "fs": pa.array([["a", None], None, ["b", "c"]], pa.list_(pa.string(), 2)),
        }
    )
    for masks in (None, frozenset(table.column_names)):
        batch = to_tensors(table, masks=masks)
        assert {name: batch[name] for name in table.column_names} == table.to_pydict()
    assert to_tensors(table.slice(1, 2), masks=None) == table.slice(1, 2).to_pydict()
    # A fixed-size list has a mask whatever its elements are.
    assert set(batch) - set(table.column_names) == {"fs__valid"}
    assert batch["fs__valid"].tolist() == [[True, False], [False, False], [True, True]]


def _structs() -> pa.Array:
    return pa.array(
        [
            {"a": 1, "t": "x", "v": [1, 2], "n": {"z": 0.5}},
            {"a": 2, "t": None, "v": [3, 4], "n": {"z": 1}},
        ],
        pa.struct(
            [
                ("a", pa.int8()),
                ("t", pa.string()),
                ("v", pa.list_(pa.uint16(), 2)),
                ("n", pa.struct([("z", pa.float32())])),
            ]
        ),
    )


def test_a_struct_is_a_dict_of_columns_and_a_sequence_of_rows() -> None:
    whole = batch_values("s", pa.chunked_array([_structs(), _structs().slice(1)]))
    assert isinstance(whole, dict)
    assert list(whole) == ["a", "t", "v", "n"]
    assert (whole["a"].dtype, whole["a"].tolist(), whole["t"]) == (
        torch.int8,
        [1, 2, 2],
        ["x", None, None],
    )
    assert (whole["v"].shape, whole["n"]["z"].tolist()) == ((3, 2), [0.5, 1.0, 1.0])
    assert len(whole) == 3
    assert len(whole["n"]) == 3
    row = whole[-1]
    assert (row["a"].item(), row["t"], row["v"].tolist(), row["n"]["z"].item()) == (
        2,
        None,
        [3, 4],
        1.0,
    )
    assert whole[:2]["a"].tolist() == [1, 2]
    assert isinstance(whole[:2], StructColumn)
    with pytest.raises(IndexError):
        whole[3]
    with pytest.raises(KeyError):
        whole["missing"]
    collated = torch.utils.data.default_collate([whole[0], {**whole[1], "t": "y"}])
    assert collated["v"].tolist() == [[1, 2], [3, 4]]
    empty = batch_values("s", _structs().slice(0, 0))
    assert (len(empty), empty["v"].shape, empty["n"]["z"].dtype) == (0, (0, 2), torch.float32)


def test_the_masks_of_a_struct_are_inside_it() -> None:
    array = pa.array(
        [{"a": 1, "t": "x"}, None, {"a": None, "t": None}],
        pa.struct([("a", pa.int16()), ("t", pa.string())]),
    )
    for chosen in ("s", "s.a"):
        present = array if chosen == "s" else array.filter(pa.array([True, False, True]))
        batch = _one("s", present, frozenset({chosen}))
        assert list(batch) == ["s"]
        assert list(batch["s"]) == ["a", "a__valid", "t"]
    batch = _one("s", array, frozenset({"s"}))
    assert (batch["s"]["a"].tolist(), batch["s"]["a__valid"].tolist()) == (
        [1, 0, 0],
        [True, False, False],
    )
    assert batch["s"]["t"] == ["x", None, None]
    assert row_values("s", array)[1] is None
    assert row_values("s", array)[2] == {"a": None, "t": None}
    with pytest.raises(UsageError, match=r"(?s)'s'.*row 1"):
        batch_values("s", array)
    with pytest.raises(UsageError, match=r"'s\.a'.*"):
        batch_values("s", array.slice(2))
    with pytest.raises(UsageError, match=r"declared without nulls.*'s'"):
        _one("s", array, frozenset())


def test_a_list_of_structs_is_a_list_of_lists_of_dicts() -> None:
    kind = pa.list_(pa.struct([("k", pa.uint8()), ("s", pa.string())]))
    array = pa.array([[{"k": 1, "s": "a"}, None, {"k": None, "s": None}], [], None], kind)
    for values in (batch_values("r", array), row_values("r", array)):
        first, empty, missing = values
        assert (empty, missing) == ([], None)
        assert (first[0]["k"].dtype, first[0]["k"].item(), first[0]["s"]) == (torch.uint8, 1, "a")
        assert first[1:] == [None, {"k": None, "s": None}]


def test_a_null_in_a_batch_without_masks_is_named_with_the_ways_out() -> None:
    cases: dict[str, pa.Array | pa.ChunkedArray] = {
        "number": pa.chunked_array([pa.array([1, 2]), pa.array([3, None])]),
        "flag": pa.array([True, False, True, None]),
        "day": pa.array([0, 0, 0, None], pa.date32()),
        "vector": pa.array([[1, 2]] * 3 + [None], pa.list_(pa.int8(), 2)),
        "element": pa.array([[1, 2]] * 3 + [[1, None]], pa.list_(pa.int8(), 2)),
    }
    for name, array in cases.items():
        with pytest.raises(UsageError, match="row 3 of the batch") as caught:
            _one(name, array)
        assert caught.value.path == name
        for way in ("statuses=", "torch_loader", "with_format(None)"):
            assert way in str(caught.value)
        with pytest.raises(UsageError, match="declared without nulls"):
            _one(name, array, frozenset({"another"}))
        assert mask_name(name) in _one(name, array, frozenset({name}))


def test_each_column_by_itself_decides_about_its_mask() -> None:
    table = pa.table({"a": pa.array([1]), "b": pa.array([2.0]), "s": pa.array(["x"])})
    assert list(to_tensors(table, masks=None)) == ["a", "b", "s"]
    assert list(to_tensors(table, masks=frozenset({"b", "s"}))) == ["a", "b", "b__valid", "s"]
    assert list(to_tensors(table.to_batches()[0], masks=frozenset({"a"}))) == [
        "a",
        "a__valid",
        "b",
        "s",
    ]


def test_masked_columns_are_those_that_are_tensors_or_fixed_size_lists() -> None:
    schema = pa.schema(
        {
            "n": pa.int8(),
            "t": pa.timestamp("us"),
            "v": pa.list_(pa.float32(), 2),
            "fs": pa.list_(pa.string(), 2),
            "r": pa.list_(pa.int8()),
            "s": pa.string(),
            "st": pa.struct([("a", pa.int8())]),
            "required": pa.int8(),
        }
    )
    nullable = [name for name in schema.names if name != "required"] + ["unknown"]
    chosen = masked_columns(schema, nullable)
    assert chosen == {"n", "t", "v", "fs"}
    batch = to_tensors(schema.empty_table(), masks=frozenset(nullable))
    assert set(batch) - set(schema.names) == {mask_name(name) for name in chosen}


@pytest.mark.parametrize("names", [("n", "n__valid"), ("n__valid", "n")])
def test_a_column_that_is_called_as_a_mask_is_refused(names: tuple[str, str]) -> None:
    table = pa.table({name: pa.array([1]) for name in names})
    masks = frozenset({"n"})
    with pytest.raises(UsageError, match="'n__valid'"):
        refuse_mask_collisions(table.column_names, masked_columns(table.schema, masks))
    with pytest.raises(UsageError, match="'n__valid'"):
        to_tensors(table, masks=masks)
    nested = pa.table({"s": pa.array([dict.fromkeys(names, 1)])})
    with pytest.raises(UsageError, match=r"'s\.n__valid'"):
        to_tensors(nested, masks=frozenset({"s"}))
    assert list(to_tensors(table, masks=None)) == list(names)
    refuse_mask_collisions(table.column_names, frozenset({"n__valid"}))
    text = table.set_column(names.index("n"), "n", pa.array(["x"]))
    refuse_mask_collisions(text.column_names, masked_columns(text.schema, masks))
    assert list(to_tensors(text, masks=masks)) == list(names)


def test_tensors_own_their_memory(tmp_path: Path) -> None:
    table = pa.table(
        {
            "n": pa.array([1, 2, 3], pa.int64()),
            "b": pa.array([True, False, True]),
            "v": pa.array([[1.0, 2.0]] * 3, pa.list_(pa.float32(), 2)),
            "r": pa.array([[1], [2, 3], [4]], pa.list_(pa.int16())),
            "s": pa.array([{"a": 1.5}] * 3),
        }
    )
    with (
        pa.OSFile(str(tmp_path / "t.arrow"), "wb") as out,
        pa.ipc.new_file(out, table.schema) as writer,
    ):
        writer.write_table(table)
    # A read-only map of the file: writing to a tensor that shared it would end the process.
    with pa.memory_map(str(tmp_path / "t.arrow")) as source:
        mapped = pa.ipc.open_file(source).read_all()
        for _ in range(2):
            batch = to_tensors(mapped, masks=frozenset({"n"}))
            assert batch["n"].tolist() == [1, 2, 3]
            assert [row.tolist() for row in batch["r"]] == [[1], [2, 3], [4]]
            for tensor in (batch["n"], batch["n__valid"], batch["b"], batch["v"], batch["s"]["a"]):
                tensor.zero_()
            for row in (*batch["r"], *row_values("v", mapped["v"]), *row_values("n", mapped["n"])):
                row.zero_()
        assert mapped.equals(table)
    # A row that is kept doesn't keep its neighbours' memory, nor do they see what is written to it.
    for name in ("n", "v", "r"):
        rows = row_values(name, table[name])
        assert len({row.untyped_storage().data_ptr() for row in rows}) == 3


class _Marked(pa.ExtensionType):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(pa.list_(pa.int8(), 2), "lithi.tests.marked")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""


def test_other_arrow_types_of_added_columns_stand_for_what_they_store() -> None:
    words = pa.array(["a", None, "a"]).dictionary_encode()
    assert batch_values("w", words) == ["a", None, "a"]
    codes = pa.array([5, 5, 7], pa.int16()).dictionary_encode()
    assert batch_values("c", codes).tolist() == [5, 5, 7]
    assert batch_values("c", codes).dtype is torch.int16
    assert batch_values("n", pa.nulls(2)) == [None, None]
    assert batch_values("m", pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int8()))) == [
        [("k", 1)]
    ]
    marked = pa.ExtensionArray.from_storage(_Marked(), pa.array([[1, 2]], pa.list_(pa.int8(), 2)))
    assert batch_values("x", marked).tolist() == [[1, 2]]
    assert masked_columns(pa.schema({"x": marked.type, "w": words.type}), ["x", "w"]) == {"x"}


def test_the_package_and_its_format_are_there_without_torch() -> None:
    code = (
        "import sys, lithi_datasets.reading.formatter, lithi_datasets.reading.columns\n"
        "print('torch' in sys.modules, 'transformers' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "False"]
