"""What values may be: nulls, classes, ranges, statuses, confidences, ids (sections 3, 4 and 6)."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lithi_datasets.checks import RowChecker
from lithi_datasets.errors import LithiError, NullInRequiredField, SchemaMismatch
from lithi_datasets.schema import declared_schema, output_schema
from lithi_datasets.types import Field

PART = "parts/part-00000.bin"
ID = {"name": "item_id", "type": "string", "nullable": False}


def fields_of(*fields: dict[str, Any]) -> tuple[Field, ...]:
    return tuple(Field.model_validate(field) for field in (ID, *fields))


def batch_of(fields: tuple[Field, ...], *columns: Any) -> pa.RecordBatch:
    schema = declared_schema(fields)
    rows = len(columns[0])
    ids = pa.array([f"item-{row}" for row in range(rows)])
    arrays = [
        column if isinstance(column, pa.Array) else pa.array(column, kind)
        for column, kind in zip(columns, schema.types[1:], strict=True)
    ]
    return pa.RecordBatch.from_arrays([ids, *arrays], schema=schema)


def check(field: dict[str, Any], column: Any) -> pa.Array:
    """Check one column called `x`, in one batch, and again as a slice out of a longer one."""
    fields = fields_of({"name": "x", **field})
    batch = batch_of(fields, column)
    checked = RowChecker(fields, "item_id", PART).check(batch)
    assert checked.schema == output_schema(fields)
    checked.validate(full=True)
    for start in range(1, len(batch)):
        part = RowChecker(fields, "item_id", PART).check(batch.slice(start))
        part.validate(full=True)
        assert part.equals(checked.slice(start))
    return checked.column(1)


def refusal(error: type[LithiError], field: dict[str, Any], column: Any, row: int) -> LithiError:
    """The error of the column, which names the row in the part, behind an earlier batch as well."""
    fields = fields_of({"name": "x", **field})
    batch = batch_of(fields, column)
    raised: list[LithiError] = []
    for first in (0, 1, row):
        checker = RowChecker(fields, "item_id", PART)
        checker.check(batch.slice(0, first))
        with pytest.raises(error) as caught:
            checker.check(batch.slice(first))
        assert caught.value.path == PART
        assert f"row {row} (from 0)" in str(caught.value)
        raised.append(caught.value)
        if row == 0:
            break
    return raised[0]


def struct_of(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"struct": list(fields)}


REQUIRED = {"name": "r", "type": "int8", "nullable": False}
REQUIRED_LIST = {"name": "l", "type": {"list": struct_of(REQUIRED)}, "nullable": False}


# Nulls in required fields.


def test_a_null_in_a_required_column_names_part_field_and_row() -> None:
    error = refusal(NullInRequiredField, {"type": "int8", "nullable": False}, [1, 2, None], row=2)
    assert "field 'x'" in str(error)


def test_a_null_in_a_nullable_column_is_a_value() -> None:
    assert check({"type": "int8"}, [1, None, 3]).to_pylist() == [1, None, 3]


DEEP: dict[str, tuple[Any, list[Any], int, str]] = {
    "struct": (struct_of(REQUIRED), [{"r": 1}, None, {"r": None}], 2, "x.r"),
    "struct in struct": (
        struct_of({"name": "s", "type": struct_of(REQUIRED)}),
        [{"s": {"r": 1}}, {"s": None}, {"s": {"r": None}}],
        2,
        "x.s.r",
    ),
    "struct in list": (
        {"list": struct_of(REQUIRED)},
        [[], None, [{"r": 1}, None], [{"r": 2}, None, {"r": None}]],
        3,
        "x[].r",
    ),
    "struct in large list": (
        {"large_list": struct_of(REQUIRED)},
        [[{"r": 1}], None, [], [None, {"r": None}]],
        3,
        "x[].r",
    ),
    "struct in fixed-size list": (
        {"list": struct_of(REQUIRED), "length": 2},
        [[{"r": 1}, None], None, [None, {"r": None}]],
        2,
        "x[].r",
    ),
    "list in struct in list": (
        {"list": struct_of(REQUIRED_LIST)},
        [[{"l": [{"r": 1}]}, None], [], [{"l": [None]}, {"l": None}]],
        2,
        "x[].l",
    ),
    "struct in list in struct in list": (
        {"list": struct_of(REQUIRED_LIST)},
        [[{"l": [{"r": 1}, None]}], None, [None, {"l": [{"r": 1}, {"r": None}]}]],
        2,
        "x[].l[].r",
    ),
    "struct in fixed-size list in list": (
        {"list": {"list": struct_of(REQUIRED), "length": 2}},
        [[[{"r": 1}, {"r": 2}], None], [None, [None, {"r": None}]]],
        1,
        "x[][].r",
    ),
    "struct in list in fixed-size list": (
        {"list": {"list": struct_of(REQUIRED)}, "length": 2},
        [[[], [None]], None, [None, [{"r": 1}]], [[{"r": 1}], [{"r": None}]]],
        3,
        "x[][].r",
    ),
}


@pytest.mark.parametrize("case", DEEP)
def test_a_null_in_a_required_field_is_found_at_any_depth(case: str) -> None:
    type, rows, row, where = DEEP[case]
    error = refusal(NullInRequiredField, {"type": type}, rows, row)
    assert f"field '{where}'" in str(error)
    assert check({"type": type}, rows[:row]).to_pylist() == rows[:row]


def test_a_required_list_may_hold_null_elements() -> None:
    rows = [[None], [], [1, None]]
    field = {"type": {"list": "int8"}, "nullable": False}
    assert check(field, rows).to_pylist() == rows


def hidden_struct(*, valid: list[bool], values: list[int | None]) -> pa.Array:
    """A struct whose member has values, and nulls, under its own nulls as well."""
    member = pa.array(values, pa.int8())
    mask = pa.array([not v for v in valid])
    return pa.StructArray.from_arrays(
        [member], fields=[pa.field("r", pa.int8(), nullable=False)], mask=mask
    )


def test_nulls_under_a_null_struct_are_no_values() -> None:
    column = hidden_struct(valid=[True, False, False], values=[1, None, 2])
    rows = check({"type": struct_of(REQUIRED)}, column).to_pylist()
    assert rows == [{"r": 1}, None, None]


def test_nulls_under_a_null_list_with_elements_are_no_values() -> None:
    elements = hidden_struct(valid=[True, True, False, True], values=[1, None, None, 4])
    kind = declared_schema(fields_of({"name": "x", "type": {"list": struct_of(REQUIRED)}}))
    column = pa.ListArray.from_arrays(
        pa.array([0, 1, 3, 4], pa.int32()),
        elements,
        type=kind.field("x").type,
        mask=pa.array([False, True, False]),
    )
    assert column.values.null_count == 1
    assert check({"type": {"list": struct_of(REQUIRED)}}, column).to_pylist() == [
        [{"r": 1}],
        None,
        [{"r": 4}],
    ]


def test_elements_that_no_list_refers_to_are_no_values() -> None:
    elements = hidden_struct(valid=[True] * 5, values=[None, 1, 2, None, None])
    field = {"name": "x", "type": {"list": struct_of(REQUIRED)}}
    kind = declared_schema(fields_of(field)).field("x").type
    column = pa.ListArray.from_arrays(pa.array([1, 2, 3], pa.int32()), elements, type=kind)
    assert check(field, column).to_pylist() == [[{"r": 1}], [{"r": 2}]]


def test_nulls_under_a_null_list_of_fixed_size_are_no_values() -> None:
    elements = hidden_struct(
        valid=[True, True, True, False, True, True], values=[1, 2, None, None, 5, 6]
    )
    field = {"name": "x", "type": {"list": struct_of(REQUIRED), "length": 2}}
    kind = declared_schema(fields_of(field)).field("x").type
    column = pa.FixedSizeListArray.from_arrays(
        elements, type=kind, mask=pa.array([False, True, False])
    )
    expected = [[{"r": 1}, {"r": 2}], None, [{"r": 5}, {"r": 6}]]
    assert check(field, column).to_pylist() == expected


# Class labels.


@pytest.mark.parametrize("kind", [f"{u}int{bits}" for u in ("", "u") for bits in (8, 16, 32, 64)])
def test_class_labels_become_int64_from_any_integer(kind: str) -> None:
    column = check({"type": kind, "class_names": ["a", "b", "c"]}, [0, None, 2])
    assert column.type == pa.int64()
    assert column.to_pylist() == [0, None, 2]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int8", -1),
        ("int64", 3),
        ("uint8", 255),
        ("uint64", 2**63 + 1),
        ("uint64", 2**64 - 1),
        ("int64", -(2**63)),
    ],
)
def test_a_value_that_is_no_class_is_refused(kind: str, value: int) -> None:
    field = {"type": kind, "class_names": ["a", "b", "c"]}
    error = refusal(SchemaMismatch, field, [0, None, value, 1], row=2)
    assert error.found == str(value)
    assert error.expected == "an integer in [0, 3)"


def test_more_classes_than_the_integer_holds_are_no_overflow() -> None:
    names = [f"class {n}" for n in range(300)]
    assert check({"type": "int8", "class_names": names}, [127, 0]).to_pylist() == [127, 0]
    refusal(SchemaMismatch, {"type": "int8", "class_names": names}, [0, -128], row=1)


LABEL = {"name": "c", "type": "uint64", "class_names": ["a", "b"]}


def test_class_labels_are_checked_and_widened_at_any_depth() -> None:
    field = {"type": {"list": struct_of({"name": "v", "type": {"list": struct_of(LABEL)}})}}
    good = [[{"v": [{"c": 1}, None]}, None], None, [], [{"v": None}]]
    column = check(field, good)
    assert column.to_pylist() == good
    error = refusal(SchemaMismatch, field, [*good, [{"v": [None, {"c": 2}]}]], row=4)
    assert "field 'x[].v[].c'" in str(error)


def test_a_class_below_a_null_is_no_value() -> None:
    labels = pa.array([0, 2**64 - 1, 1], pa.uint64())
    column = pa.StructArray.from_arrays([labels], names=["c"], mask=pa.array([False, True, False]))
    assert check({"type": struct_of(LABEL)}, column).to_pylist() == [{"c": 0}, None, {"c": 1}]


# Ranges that Arrow's storage does not keep.


def moments(values: list[int | None], kind: pa.DataType) -> pa.Array:
    return pa.array(values, pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)


def decimals(values: list[int], precision: int) -> pa.Array:
    wide = pa.array([Decimal(v) for v in values], pa.decimal128(38, 0))
    return pa.Array.from_buffers(pa.decimal128(precision, 0), len(values), wide.buffers())


OUT_OF_RANGE: dict[str, tuple[str, pa.Array]] = {
    "a second past midnight": ("time32[s]", moments([0, 86_399, 86_400], pa.time32("s"))),
    "a negative time": ("time32[ms]", moments([0, None, -1], pa.time32("ms"))),
    "microseconds": ("time64[us]", moments([0, 1, 86_400 * 10**6], pa.time64("us"))),
    "nanoseconds": ("time64[ns]", moments([0, 1, -(2**63)], pa.time64("ns"))),
    "a part of a day": ("date64", moments([0, -86_400_000, 1], pa.date64())),
    "too many digits": ("decimal128(3, 0)", decimals([999, -999, 1000], 3)),
    "too many digits below zero": ("decimal128(3, 0)", decimals([0, 1, -1000], 3)),
}


@pytest.mark.parametrize("case", OUT_OF_RANGE)
def test_a_value_outside_the_range_of_its_type_is_refused(case: str) -> None:
    kind, column = OUT_OF_RANGE[case]
    refusal(SchemaMismatch, {"type": kind}, column, row=2)
    assert check({"type": kind}, column.slice(0, 2)).equals(column.slice(0, 2))


@pytest.mark.parametrize("case", OUT_OF_RANGE)
def test_values_out_of_range_are_found_in_lists_and_pass_below_nulls(case: str) -> None:
    kind, column = OUT_OF_RANGE[case]
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 1, 3], pa.int32()), column)
    assert "field 'x[]'" in str(refusal(SchemaMismatch, {"type": {"list": kind}}, lists, row=2))
    hidden = pa.StructArray.from_arrays([column], names=["v"], mask=pa.array([False, False, True]))
    field = {"type": struct_of({"name": "v", "type": kind})}
    fields = fields_of({"name": "x", **field})
    checked = RowChecker(fields, "item_id", PART).check(batch_of(fields, hidden))
    assert checked.column(1).is_valid().to_pylist() == [True, True, False]
    both = pa.StructArray.from_arrays([column], names=["v"])
    refusal(SchemaMismatch, field, both, row=2)


def test_every_integer_is_a_timestamp_a_duration_and_a_date() -> None:
    ends = [-(2**63), None, 2**63 - 1]
    for unit in ("s", "ms", "us", "ns"):
        for kind in (pa.timestamp(unit), pa.timestamp(unit, "UTC"), pa.duration(unit)):
            column = moments(ends, kind)
            assert check({"type": str(kind)}, column).equals(column)
    days = moments([-(2**31), 2**31 - 1], pa.date32())
    assert check({"type": "date32"}, days).equals(days)


def test_the_last_time_of_the_day_is_a_time() -> None:
    last = [datetime.time(23, 59, 59, 999_999), datetime.time(0)]
    assert check({"type": "time64[us]"}, last).to_pylist() == last


# Statuses, confidences, ids.

STATUS = {"name": "lithi_status", "type": "string", "nullable": False}


def test_statuses_are_counted_over_batches() -> None:
    fields = fields_of(STATUS)
    checker = RowChecker(fields, "item_id", PART)
    checker.check(batch_of(fields, ["accepted", "failed", "accepted"]))
    checker.check(batch_of(fields, []))
    checker.check(batch_of(fields, ["abstained", "failed"]))
    assert checker.rows == 5
    assert checker.statuses == {"accepted": 2, "failed": 2, "abstained": 1}


def test_rows_of_a_table_without_statuses_are_accepted() -> None:
    fields = fields_of({"name": "x", "type": "int8"})
    checker = RowChecker(fields, "item_id", PART)
    checker.check(batch_of(fields, [1, None]))
    checker.check(batch_of(fields, [3]))
    assert checker.statuses == {"accepted": 3, "failed": 0, "abstained": 0}


@pytest.mark.parametrize("status", ["Accepted", "", "accepted ", "done", "é" * 10_000])
def test_another_status_is_refused(status: str) -> None:
    fields = fields_of(STATUS)
    checker = RowChecker(fields, "item_id", PART)
    checker.check(batch_of(fields, ["accepted"] * 10))
    with pytest.raises(SchemaMismatch, match=r"'lithi_status', row 11 ") as caught:
        checker.check(batch_of(fields, ["failed", status, "wrong"]))
    assert len(str(caught.value)) < 1000
    assert checker.rows == 10
    assert checker.statuses == {"accepted": 10, "failed": 0, "abstained": 0}


def test_a_null_status_is_a_null_in_a_required_field() -> None:
    fields = fields_of(STATUS)
    with pytest.raises(NullInRequiredField, match="lithi_status"):
        RowChecker(fields, "item_id", PART).check(batch_of(fields, ["failed", None]))


CONFIDENT = [0.0, -0.0, 1.0, None, 0.5, 5e-324]


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_confidences_are_in_zero_to_one(kind: str) -> None:
    fields = fields_of({"name": "lithi_confidence", "type": kind})
    checked = RowChecker(fields, "item_id", PART).check(batch_of(fields, CONFIDENT))
    assert checked.column(1).is_null().to_pylist() == [value is None for value in CONFIDENT]


@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), float("-inf"), -1e-30, float(np.nextafter(np.float32(1), 2))],
)
def test_a_number_that_is_no_confidence_is_refused(kind: str, value: float) -> None:
    fields = fields_of({"name": "lithi_confidence", "type": kind})
    batch = batch_of(fields, [*CONFIDENT, value])
    with pytest.raises(SchemaMismatch, match=r"'lithi_confidence', row 6 "):
        RowChecker(fields, "item_id", PART).check(batch)


def test_other_floats_may_be_anything() -> None:
    column = pa.array([float("nan"), float("inf"), 2.0])
    np.testing.assert_array_equal(check({"type": "float64"}, column), column)


def check_ids(ids: pa.Array) -> pa.RecordBatch:
    schema = declared_schema(fields_of())
    batch = pa.RecordBatch.from_arrays([ids], schema=schema)
    return RowChecker(fields_of(), "item_id", PART).check(batch)


@pytest.mark.parametrize("bad", ["", "a\n", "\nb", "a\rb", "\r\n", "\n"])
@pytest.mark.parametrize("position", [0, 1, 3])
def test_an_id_that_is_empty_or_holds_a_line_break_is_refused(bad: str, position: int) -> None:
    ids = ["one", "twö", "three"]
    ids.insert(position, bad)
    longer = pa.array(["\n", "", *ids, "\r", ""])
    for array in (pa.array(ids), longer.slice(2, 4)):
        with pytest.raises(SchemaMismatch, match=rf"'item_id', row {position} ") as caught:
            check_ids(array)
        assert caught.value.found == repr(bad)


@pytest.mark.parametrize("good", [" ", "a\tb", "\x85", "\u2028", "a\u0000b", "\x0b", "é" * 9])
def test_every_other_id_is_an_id(good: str) -> None:
    longer = pa.array(["\n", "", good, "x", "\r"])
    assert check_ids(longer.slice(2, 2)).column(0).to_pylist() == [good, "x"]


def test_a_batch_of_no_rows_is_checked_too() -> None:
    ids = pa.array(["\n"])
    assert check_ids(ids.slice(1)).num_rows == 0
    assert check_ids(pa.array([], pa.string())).num_rows == 0


def test_columns_without_a_rule_are_passed_on_without_a_copy() -> None:
    fields = fields_of({"name": "x", "type": {"list": "float32", "length": 4}})
    values = pa.array(np.zeros(40, np.float32))
    batch = batch_of(fields, pa.FixedSizeListArray.from_arrays(values, 4))
    checked = RowChecker(fields, "item_id", PART).check(batch)
    assert checked.column(1).values.buffers()[1].address == values.buffers()[1].address
