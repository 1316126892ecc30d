"""Physical types become declared ones exactly, or are refused by name (spec, section 6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from lithi_datasets import gather
from lithi_datasets.conversion import convert_batch, convert_batches
from lithi_datasets.errors import LithiError, PartDecodeError, SchemaMismatch

if TYPE_CHECKING:
    from pathlib import Path

PART = "parts/part-00000.bin"
INT64 = (-(2**63), 2**63 - 1)
INT32 = (-(2**31), 2**31 - 1)

has_views = pytest.mark.skipif(not hasattr(pa, "string_view"), reason="pyarrow has no views")
has_list_views = pytest.mark.skipif(not hasattr(pa, "list_view"), reason="pyarrow has none")


def batch_of(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def convert(array: pa.Array, declared: pa.DataType, **options: Any) -> pa.Array:
    """Convert one column, and hold the result to Arrow's own rules and to the exact type."""
    schema = pa.schema([pa.field("x", declared)])
    batch = convert_batch(batch_of(x=array), schema, path=PART, **options)
    assert batch.schema.equals(schema, check_metadata=True)
    column = batch.column(0)
    # In full, times of day out of range are invalid; whether they are is the checks' subject.
    column.validate(full=not pa.types.is_time(declared))
    assert column.type.equals(declared, check_metadata=True)
    assert len(column) == len(array)
    return column


def refusal(array: pa.Array, declared: pa.DataType, **options: Any) -> SchemaMismatch:
    with pytest.raises(SchemaMismatch) as caught:
        convert(array, declared, **options)
    assert caught.value.path == PART
    return caught.value


def counts(values: list[int | None], kind: pa.DataType) -> pa.Array:
    """Dates, times, timestamps or durations from the integers that they are counted in."""
    integer = pa.int32() if kind.bit_width == 32 else pa.int64()
    return pa.array(values, integer).view(kind)


def counted(array: pa.Array) -> list[int | None]:
    integers: list[int | None] = array.view(
        pa.int32() if array.type.bit_width == 32 else pa.int64()
    ).to_pylist()
    return integers


# --- names --------------------------------------------------------------------------------------

DECLARED = pa.schema([("a", pa.int64()), ("b", pa.string())])


def test_columns_are_matched_by_name_and_come_in_the_declared_order() -> None:
    batch = batch_of(b=pa.array(["x"]), a=pa.array([1], pa.int8()))
    assert convert_batch(batch, DECLARED, path=PART).to_pydict() == {"a": [1], "b": ["x"]}


@pytest.mark.parametrize(
    ("names", "complaint"),
    [
        (["a"], "missing: 'b'"),
        (["a", "b", "c"], "not declared: 'c'"),
        (["a", "b", "a"], "there more than once: 'a'"),
        (["A", "b"], "missing: 'a'; not declared: 'A'"),
        ([], "missing: 'a', 'b'"),
    ],
)
def test_other_names_are_refused_in_a_part_and_in_a_struct(
    names: list[str], complaint: str
) -> None:
    arrays = [pa.array(["x"] if name == "b" else [1]) for name in names]
    with pytest.raises(SchemaMismatch) as caught:
        convert_batch(pa.RecordBatch.from_arrays(arrays, names=names), DECLARED, path=PART)
    assert complaint in caught.value.problem
    assert caught.value.path == PART
    fields = [pa.field(name, array.type) for name, array in zip(names, arrays, strict=True)]
    nested = pa.nulls(1, pa.list_(pa.struct(fields)))
    error = refusal(nested, pa.list_(pa.struct(list(DECLARED))))
    assert complaint in error.problem
    assert "'x[]'" in error.problem


def test_a_complaint_about_thousands_of_columns_stays_short() -> None:
    batch = batch_of(**{f"c{i}": pa.array([1]) for i in range(2000)})
    with pytest.raises(SchemaMismatch, match="and 1990 more") as caught:
        convert_batch(batch, DECLARED, path=PART)
    assert len(str(caught.value)) < 1000


def test_a_refused_type_is_named_with_its_dotted_path() -> None:
    found = pa.struct([("scores", pa.list_(pa.dictionary(pa.int8(), pa.float64())))])
    declared = pa.struct([("scores", pa.list_(pa.float32()))])
    error = refusal(pa.nulls(1, found), declared)
    assert "'x.scores[]'" in error.problem
    assert error.expected == "float32"
    assert error.found == "dictionary<values=double, indices=int8, ordered=0>"


def test_metadata_of_schema_and_fields_is_ignored() -> None:
    inner = pa.field("a", pa.int8(), metadata={"PARQUET:field_id": "7"})
    field = pa.field("x", pa.struct([inner]), metadata={"k": "v"})
    schema = pa.schema([field], metadata={"huggingface": '{"info": {"features": {"y": 1}}}'})
    batch = pa.RecordBatch.from_pylist([{"x": {"a": 1}}], schema=schema)
    declared = pa.schema([("x", pa.struct([("a", pa.int8())]))])
    converted = convert_batch(batch, declared, path=PART)
    assert converted.schema.equals(declared, check_metadata=True)
    assert converted.column(0).type.equals(declared.field(0).type, check_metadata=True)
    assert converted.to_pylist() == [{"x": {"a": 1}}]


def test_names_and_nullability_of_list_elements_become_the_declared_ones() -> None:
    # Arrow's equality passes over the element's name, and plans are kept: the equal type first.
    for name, nullable in (("item", True), ("element", True), ("item", False)):
        found = pa.list_(pa.field(name, pa.uint8(), nullable))
        array = pa.array([[1], None], found)
        assert convert(array, pa.list_(pa.uint8())).to_pylist() == [[1], None]


def test_a_null_in_a_required_field_is_left_to_the_checks() -> None:
    declared = pa.schema([pa.field("x", pa.struct([pa.field("a", pa.int64(), nullable=False)]))])
    batch = batch_of(x=pa.array([{"a": None}, None], pa.struct([("a", pa.int8())])))
    converted = convert_batch(batch, declared, path=PART)
    assert converted.schema.equals(declared, check_metadata=True)
    assert converted.column(0).to_pylist() == [{"a": None}, None]


# --- copies -------------------------------------------------------------------------------------


def addresses(array: pa.Array) -> list[int]:
    return [buffer.address for buffer in array.buffers() if buffer is not None and buffer.size]


@pytest.mark.parametrize(
    ("array", "declared"),
    [
        (pa.array([1, None]), pa.int64()),
        (pa.array([[1.5], None]), pa.list_(pa.float64())),
        (counts([1, None], pa.timestamp("s", "UTC")), pa.timestamp("s", "+01:00")),
        (pa.array([{"a": "x"}, None]), pa.struct([("a", pa.string())])),
    ],
    ids=["equal", "equal-list", "zone", "equal-struct"],
)
def test_nothing_is_copied_where_the_bits_are_the_same(
    array: pa.Array, declared: pa.DataType
) -> None:
    assert addresses(convert(array, declared)) == addresses(array)
    assert convert(array[1:], declared).to_pylist() == [None]


def test_only_offsets_are_copied_between_plain_and_large() -> None:
    array = pa.array(["long enough", None])
    assert addresses(convert(array, pa.large_string()))[-1] == addresses(array)[-1]
    vectors = pa.array([[1.0, 2.0], [3.0, 4.0]])
    assert addresses(convert(vectors, pa.list_(pa.float64(), 2))) == addresses(vectors)[-1:]


# --- two GiB ------------------------------------------------------------------------------------


def sparse(folder: Path, size: int) -> pa.Buffer:
    """That many zero bytes, on disk and in memory only as far as somebody reads them."""
    path = folder / "zeros"
    with path.open("wb") as file:
        file.truncate(size)
    return pa.memory_map(str(path)).read_buffer()


def test_a_large_value_over_two_gib_is_refused_naming_large_string(tmp_path: Path) -> None:
    size = 5 + 2**31
    offsets = pa.py_buffer(np.array([0, 5, size], dtype=np.int64))
    buffers = [None, offsets, sparse(tmp_path, size)]
    array = pa.Array.from_buffers(pa.large_string(), 2, buffers)
    error = refusal(array, pa.string())
    assert "large_string" in str(error)
    assert str(size) in error.problem
    # A part of it that fits is not refused for where it lies.
    assert convert(array[:1], pa.string()).to_pylist() == ["\0" * 5]
    assert "large_binary" in str(refusal(array.cast(pa.large_binary()), pa.binary()))


@pytest.mark.parametrize("encoding", ["dictionary", "run ends"])
def test_an_encoded_column_that_unfolds_to_over_two_gib_is_refused(encoding: str) -> None:
    # pyarrow 17 lets the offsets wrap here.
    text = pa.array(["x" * 2**20])
    if encoding == "dictionary":
        array = pa.DictionaryArray.from_arrays(pa.array(np.zeros(2100, np.int8)), text)
    else:
        array = pa.RunEndEncodedArray.from_arrays(pa.array([2100], pa.int32()), text)
    assert "large_string" in str(refusal(array, pa.string()))


@has_views
def test_views_on_over_two_gib_of_text_are_refused() -> None:
    # pyarrow 26 lets the offsets wrap here.
    try:
        array = pa.Array.from_buffers(pa.string_view(), 2100, views_of_one_text("x" * 2**20, 2100))
    except ValueError:
        pytest.skip("this pyarrow builds no view arrays from buffers")
    assert "large_string" in str(refusal(array, pa.string()))


def views_of_one_text(text: str, rows: int) -> list[pa.Buffer | None]:
    _, view, data = pa.array([text], pa.string_view()).buffers()
    return [None, pa.py_buffer(view.to_pybytes() * rows), data]


def test_lists_over_the_limit_are_refused_naming_large_list(tmp_path: Path) -> None:
    values = pa.Array.from_buffers(pa.int8(), 2**31, [None, sparse(tmp_path, 2**31)])
    array = pa.LargeListArray.from_arrays(pa.array([0, 2**31], pa.int64()), values)
    assert "large_list" in str(refusal(array, pa.list_(pa.int8())))


def test_a_batch_over_the_limit_comes_in_pieces_and_one_row_over_it_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gather, "MAX_OFFSET", 10)
    texts = ["aaaa", None, "bbbbbb", "", "cccc", "dddddddddd"]
    schema = pa.schema([("x", pa.string())])
    batch = batch_of(x=pa.array(texts, pa.large_string()))
    pieces = list(convert_batches(batch, schema, path=PART))
    assert len(pieces) > 1
    assert [text for piece in pieces for text in piece.column(0).to_pylist()] == texts
    too_long = batch_of(x=pa.array(["a", "b", "c" * 11], pa.large_string()))
    with pytest.raises(SchemaMismatch, match="large_string"):
        list(convert_batches(too_long, schema, path=PART))


def test_bytes_under_a_null_do_not_count_towards_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "MAX_OFFSET", 10)
    texts = pa.array(["aaaa", "b" * 20, "cc"], pa.large_string())
    mask = pa.array([False, True, False])
    struct = pa.StructArray.from_arrays([texts], names=["t"], mask=mask)
    declared = pa.struct([("t", pa.string())])
    assert convert(struct, declared).to_pylist() == [{"t": "aaaa"}, None, {"t": "cc"}]
    if hasattr(pa, "string_view"):
        views = pa.array(["aaaa", "b" * 20, "cc"], pa.string_view())
        struct = pa.StructArray.from_arrays([views], names=["t"], mask=mask)
        assert convert(struct, declared).to_pylist() == [{"t": "aaaa"}, None, {"t": "cc"}]


# --- types that need a decision -----------------------------------------------------------------


def test_a_column_of_type_null_is_refused_at_any_depth() -> None:
    assert refusal(pa.nulls(3), pa.string()).found == "null"
    assert "'x[]'" in refusal(pa.array([[None], []]), pa.list_(pa.int64())).problem


class Labelled(pa.ExtensionType):  # type: ignore[misc]
    """An extension type of this test's own."""

    def __init__(self) -> None:
        super().__init__(pa.int8(), "lithi.test.labelled")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> Labelled:
        return cls()


def test_an_extension_type_counts_as_what_it_stores() -> None:
    array = pa.ExtensionArray.from_storage(Labelled(), pa.array([1, None, 3], pa.int8()))
    assert convert(array[1:], pa.int16()).to_pylist() == [None, 3]
    error = refusal(array, pa.string())
    assert "labelled" in str(error.found).lower()
    structs = pa.StructArray.from_arrays([array], names=["a"])
    assert convert(structs[2:], pa.struct([("a", pa.int8())])).to_pylist() == [{"a": 3}]


def test_a_fixed_size_binary_is_not_a_binary() -> None:
    refusal(pa.array([b"abcd"], pa.binary(4)), pa.binary())


# --- broken batches -----------------------------------------------------------------------------


@pytest.mark.parametrize("index", [7, -1])
def test_an_index_outside_its_dictionary_is_a_decode_error(index: int) -> None:
    array = pa.DictionaryArray.from_arrays(
        pa.array([0, index], pa.int32()), pa.array(["a"]), safe=False
    )
    with pytest.raises(PartDecodeError) as caught:
        convert(array, pa.string())
    assert isinstance(caught.value, LithiError)
    assert caught.value.path == PART


# --- lists --------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [pa.list_, pa.large_list])
def test_a_list_of_another_length_is_named_with_its_row(make: Any) -> None:
    array = pa.array([[1, 2], None, [3, 4], [5], []], make(pa.int64()))
    error = refusal(array[1:], pa.list_(pa.int64(), 2), first_row=51)
    assert "row 53 " in error.problem
    assert "a list of 1, where each has 2" in error.problem
    assert convert(array[:3], pa.list_(pa.int64(), 2)).to_pylist() == [
        [1, 2],
        None,
        [3, 4],
    ]


def test_a_null_list_of_another_length_is_a_null_slot() -> None:
    values = pa.array([1, 2, 9, 9, 9, 3, None], pa.int8())
    array = pa.ListArray.from_arrays(
        pa.array([0, 2, 5, 7], pa.int32()), values, mask=pa.array([False, True, False])
    )
    assert convert(array, pa.list_(pa.int16(), 2)).to_pylist() == [[1, 2], None, [3, None]]


def test_vectors_with_a_null_row_move_whole() -> None:
    vectors = [[1.0, 2.0, 3.0], None, [4.0, 5.0, 6.0]]
    array = pa.array([[0.0] * 3, *vectors], pa.list_(pa.float32()))[1:]
    declared = pa.list_(pa.float64(), 3)
    converted = convert(array, declared)
    assert converted.to_pylist() == vectors
    assert converted.values.to_pylist()[3:6] == [0.0, 0.0, 0.0]


@has_list_views
def test_list_views_out_of_order_shared_and_with_gaps() -> None:
    array = pa.ListViewArray.from_arrays(
        pa.array([2, 0, 0, 5], pa.int32()),
        pa.array([2, 2, 1, 0], pa.int32()),
        pa.array([1, 2, 3, 4, 99, 99], pa.int8()),
    )
    # pyarrow 26 casts these to invalid arrays.
    assert convert(array, pa.list_(pa.int64())).to_pylist() == [[3, 4], [1, 2], [1], []]
    assert convert(array[1:], pa.large_list(pa.int8())).to_pylist() == [[1, 2], [1], []]
    assert convert(array[:2], pa.list_(pa.int64(), 2)).to_pylist() == [[3, 4], [1, 2]]
    assert "row 2 " in refusal(array, pa.list_(pa.int64(), 2)).problem


# --- the row that a message names ---------------------------------------------------------------

NS, US = pa.timestamp("ns"), pa.timestamp("us")


def row_cases() -> list[Any]:
    """Arrays whose first bad value is in row 2, and their declared types."""
    bad_last = counts([1000, 2000, 7, 5], NS)
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 1, 4], pa.int32()), bad_last)
    fixed = pa.FixedSizeListArray.from_arrays(counts([0, 0, 0, 0, 0, 3, 0, 0], NS), 2)
    struct = pa.StructArray.from_arrays([bad_last], names=["t"])
    entries = counts([3, 9, 0], NS)
    encoded = pa.DictionaryArray.from_arrays(pa.array([2, None, 1, 0]), entries)
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 4], pa.int32()), counts([0, 9], NS))
    of_lists = pa.DictionaryArray.from_arrays(
        pa.array([1, 1, 2, 0]), lists.take(pa.array([2, 0, 2]))
    )
    cases = [
        pytest.param(bad_last, US, "count 7 ", id="plain"),
        pytest.param(lists, pa.list_(US), "count 7 ", id="list"),
        pytest.param(fixed, pa.list_(US, 2), "count 3 ", id="fixed"),
        pytest.param(struct, pa.struct([("t", US)]), "count 7 ", id="struct"),
        pytest.param(encoded, US, "count 9 ", id="dictionary"),
        pytest.param(runs, US, "count 9 ", id="runs"),
        pytest.param(of_lists, pa.list_(US), "count 7 ", id="dictionary-of-lists"),
    ]
    if hasattr(pa, "list_view"):
        views = pa.ListViewArray.from_arrays(
            pa.array([1, 3, 2, 0], pa.int32()),
            pa.array([1, 0, 2, 1], pa.int32()),
            counts([5, 1000, 2000, 7], NS),
        )
        cases.append(pytest.param(views, pa.list_(US), "count 7 ", id="list-view"))
    return cases


@pytest.mark.parametrize(("array", "declared", "value"), row_cases())
def test_a_refused_value_is_named_with_the_first_row_that_shows_it(
    array: pa.Array, declared: pa.DataType, value: str
) -> None:
    error = refusal(array, declared, first_row=1000)
    assert "row 1002 " in error.problem
    assert value in error.problem
    assert (error.expected, "timestamp[ns]" in str(error.found)) == ("timestamp[us]", True)
    assert "row 1 of a batch" in refusal(array[1:], declared).problem
