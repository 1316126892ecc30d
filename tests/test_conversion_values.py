"""Which types stand for which, and the values of each pair at its limits (spec, section 6)."""

from __future__ import annotations

import decimal
import math
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_conversion import INT32, INT64, convert, counted, counts, refusal

from lithi_datasets.errors import SchemaMismatch

# --- which pairs of types there are -------------------------------------------------------------

TIMES = {"time32[s]", "time32[ms]", "time64[us]", "time64[ns]"}
DURATIONS = {f"duration[{unit}]" for unit in ("s", "ms", "us", "ns")}
LOCAL = {f"timestamp[{unit}]" for unit in ("s", "ms", "us", "ns")}
ZONED = {
    f"timestamp[{u}, tz={zone}]" for u in ("s", "ms", "us", "ns") for zone in ("UTC", "+02:00")
}
ALLOWED = {
    "int8": {"int16", "int32", "int64"},
    "int16": {"int32", "int64"},
    "int32": {"int64"},
    "uint8": {"uint16", "uint32", "uint64", "int16", "int32", "int64"},
    "uint16": {"uint32", "uint64", "int32", "int64"},
    "uint32": {"uint64", "int64"},
    "float16": {"float32", "float64"},
    "float32": {"float64"},
    "string": {"large_string"},
    "large_string": {"string"},
    "string_view": {"string", "large_string"},
    "binary": {"large_binary"},
    "large_binary": {"binary"},
    "binary_view": {"binary", "large_binary"},
    "date32": {"date64"},
    "date64": {"date32"},
    **dict.fromkeys(TIMES, TIMES),
    **dict.fromkeys(DURATIONS, DURATIONS),
    **dict.fromkeys(LOCAL, LOCAL),
    **dict.fromkeys(ZONED, ZONED),
    "decimal128(5, 2)": {"decimal128(9, 2)", "decimal256(9, 2)", "decimal256(40, 2)"},
    "decimal128(9, 2)": {"decimal256(9, 2)", "decimal256(40, 2)"},
    "decimal256(9, 2)": {"decimal128(9, 2)", "decimal256(40, 2)"},
    "decimal32(5, 2)": {
        "decimal128(5, 2)",
        "decimal128(9, 2)",
        "decimal256(9, 2)",
        "decimal256(40, 2)",
    },
}
PRIMITIVES: dict[str, pa.DataType] = {
    **{name: getattr(pa, name)() for name in ("float16", "float32", "float64", "date32", "date64")},
    **{
        str(kind): kind
        for kind in (
            pa.bool_(),
            *(getattr(pa, f"{sign}int{bits}")() for sign in ("", "u") for bits in (8, 16, 32, 64)),
            *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary()),
            *(pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
            *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
            *(
                pa.timestamp(unit, zone)
                for unit in ("s", "ms", "us", "ns")
                for zone in (None, "UTC", "+02:00")
            ),
            *(pa.decimal128(5, 2), pa.decimal128(9, 2), pa.decimal128(9, 3)),
            *(pa.decimal256(9, 2), pa.decimal256(40, 2)),
        )
    },
}
NOT_DECLARABLE: dict[str, pa.DataType] = {
    str(kind): kind
    for kind in (
        pa.null(),
        pa.binary(4),
        pa.month_day_nano_interval(),
        pa.map_(pa.string(), pa.int64()),
        pa.sparse_union([pa.field("a", pa.int64())]),
        *((pa.string_view(), pa.binary_view()) if hasattr(pa, "string_view") else ()),
        *((pa.decimal32(5, 2),) if hasattr(pa, "decimal32") else ()),
    )
}
NESTED: dict[str, pa.DataType] = {
    "list": pa.list_(pa.int64()),
    "fixed list": pa.list_(pa.int64(), 2),
    "large list": pa.large_list(pa.int64()),
    "struct": pa.struct([("key", pa.string()), ("value", pa.int64())]),
    "list of structs": pa.list_(pa.struct([("key", pa.string()), ("value", pa.int64())])),
}


def outcome(source: pa.DataType, declared: pa.DataType) -> SchemaMismatch | None:
    """What refuses the pair of types, or None."""
    try:
        convert(pa.nulls(0, source), declared)
    except SchemaMismatch as error:
        return error
    return None


@pytest.mark.parametrize("source", [*PRIMITIVES, *NOT_DECLARABLE])
def test_a_type_becomes_those_that_hold_each_of_its_values_and_no_other(source: str) -> None:
    kind = {**PRIMITIVES, **NOT_DECLARABLE}[source]
    outcomes = {name: outcome(kind, declared) for name, declared in PRIMITIVES.items()}
    same = {source} & set(PRIMITIVES)
    accepted = {name for name, error in outcomes.items() if error is None}
    assert accepted == same | ALLOWED.get(source, set())
    for name, error in outcomes.items():
        if error is not None:
            assert "'x'" in error.problem
            assert (error.expected, error.found) == (name, source)
    assert all(outcome(kind, declared) for declared in NESTED.values())


@pytest.mark.parametrize("name", NESTED)
def test_a_nested_type_never_becomes_a_primitive_nor_another_nested_one(name: str) -> None:
    lists = {"list", "large list"}
    targets = {**PRIMITIVES, **NESTED}
    accepted = {target for target in targets if outcome(NESTED[name], targets[target]) is None}
    assert accepted == (lists | {"fixed list"} if name in lists else {name})


# --- values of leaves ---------------------------------------------------------------------------

INTEGERS = {
    f"{sign}int{bits}": ((0, 2**bits - 1) if sign else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1))
    for sign in ("", "u")
    for bits in (8, 16, 32, 64)
}


@given(st.sampled_from(sorted(INTEGERS)), st.sampled_from(sorted(INTEGERS)), st.data())
def test_an_integer_keeps_its_value_in_each_type_that_holds_its_whole_type(
    source: str, target: str, data: st.DataObject
) -> None:
    low, high = INTEGERS[source]
    numbers = st.one_of(st.none(), st.integers(low, high), st.sampled_from([low, high, 0]))
    values = data.draw(st.lists(numbers, max_size=9))
    array = pa.array(values, getattr(pa, source)())
    if INTEGERS[target][0] <= low and high <= INTEGERS[target][1]:
        assert convert(array, getattr(pa, target)()).to_pylist() == values
    else:
        # Even if these very values would fit: a type must not depend on the part's values.
        error = refusal(array, getattr(pa, target)())
        assert (error.expected, error.found) == (target, source)


@given(st.lists(st.one_of(st.none(), st.floats(width=16)), max_size=9))
def test_a_float_keeps_its_value_in_a_wider_type(values: list[float | None]) -> None:
    halves = [None if value is None else np.float16(value) for value in values]
    array = pa.array(halves, pa.float16())
    for target in (pa.float32(), pa.float64()):
        assert repr(convert(array, target).to_pylist()) == repr(values)


FAMILIES: list[dict[pa.DataType, int]] = [
    {pa.date32(): 1, pa.date64(): 86_400_000},
    {pa.time32("s"): 1, pa.time32("ms"): 10**3, pa.time64("us"): 10**6, pa.time64("ns"): 10**9},
    *(
        {make(unit): 10**power for unit, power in (("s", 0), ("ms", 3), ("us", 6), ("ns", 9))}
        for make in (pa.timestamp, pa.duration, lambda unit: pa.timestamp(unit, "Asia/Tokyo"))
    ),
]
PAIRS = [
    (source, target, Fraction(family[target], family[source]))
    for family in FAMILIES
    for source in family
    for target in family
    if source != target
]


@st.composite
def near_limits(draw: st.DrawFn, kind: pa.DataType) -> int:
    """Counts of the type around 0, its ends, and the ends of the other units."""
    low, high = INT32 if kind.bit_width == 32 else INT64
    scales = [1, 10**3, 10**6, 10**9, 86_400_000]
    bounds = [bound for pair in (INT32, INT64) for bound in pair]
    around = draw(st.sampled_from([0, *(b // s for b in bounds for s in scales)]))
    times = draw(st.sampled_from(scales))
    count = draw(st.sampled_from([around, around * times])) + draw(st.integers(-2, 2))
    return min(max(count, low), high)


@given(st.sampled_from(PAIRS), st.data())
def test_a_unit_changes_where_each_count_is_whole_and_in_range(
    pair: tuple[pa.DataType, pa.DataType, Fraction], data: st.DataObject
) -> None:
    source, target, ratio = pair
    values = data.draw(st.lists(st.one_of(st.none(), near_limits(source)), max_size=4))
    low, high = INT32 if target.bit_width == 32 else INT64
    exact = [None if value is None else value * ratio for value in values]
    bad = [
        row
        for row, count in enumerate(exact)
        if count is not None and not (count.denominator == 1 and low <= count <= high)
    ]
    if bad:
        error = refusal(counts(values, source), target, first_row=100)
        assert f"row {100 + bad[0]} " in error.problem
        assert f"count {values[bad[0]]} " in error.problem
    else:
        assert counted(convert(counts(values, source), target)) == exact


@pytest.mark.parametrize(("source", "target", "ratio"), PAIRS, ids=str)
def test_a_unit_changes_up_to_the_very_ends_of_both_types(
    source: pa.DataType, target: pa.DataType, ratio: Fraction
) -> None:
    (low, high), (least, most) = (
        INT32 if kind.bit_width == 32 else INT64 for kind in (source, target)
    )
    ends = [low, high, *(math.floor(end / ratio) for end in (least - 1, least, most, most + 1))]
    for count in {end + step for end in ends for step in (-1, 0, 1) if low <= end + step <= high}:
        exact = count * ratio
        if exact.denominator == 1 and least <= exact <= most:
            assert counted(convert(counts([count], source), target)) == [exact]
        else:
            assert f"count {count} " in refusal(counts([count], source), target).problem
    fitting = min(most, math.floor(high * ratio))
    whole = fitting - fitting % max(ratio.numerator, 1)
    assert counted(convert(counts([int(whole / ratio)], source), target)) == [whole]


def test_seconds_of_a_time32_that_overflow_as_milliseconds_are_refused() -> None:
    # pyarrow's safe cast gives -1000 here.
    assert "2147483647" in refusal(counts([0, 2**31 - 1], pa.time32("s")), pa.time32("ms")).problem


def test_another_zone_keeps_the_instant() -> None:
    array = counts([0, None, 1_700_000_000], pa.timestamp("s", "UTC"))
    moved = convert(array, pa.timestamp("s", "America/Lima"))
    assert counted(moved) == [0, None, 1_700_000_000]
    finer = convert(array[1:], pa.timestamp("us", "+05:30"))
    assert counted(finer) == [None, 1_700_000_000_000_000]


@pytest.mark.parametrize(
    ("found", "declared", "what"), [(None, "UTC", "added"), ("UTC", None, "dropped")]
)
def test_a_zone_is_never_added_or_dropped(
    found: str | None, declared: str | None, what: str
) -> None:
    array = counts([0], pa.timestamp("us", found))
    assert f"a zone would be {what}" in refusal(array, pa.timestamp("us", declared)).problem


decimals = st.one_of(
    st.none(), st.integers(-(10**5) + 1, 10**5 - 1).map(lambda n: decimal.Decimal(n).scaleb(-2))
)


@given(st.lists(decimals, max_size=6), st.integers(0, 3))
def test_a_decimal_keeps_its_digits_in_a_wider_precision(
    values: list[decimal.Decimal | None], start: int
) -> None:
    kinds = [pa.decimal128(5, 2), pa.decimal256(5, 2)]
    if hasattr(pa, "decimal32"):
        kinds += [pa.decimal32(5, 2), pa.decimal64(5, 2)]
    for kind in kinds:
        array = pa.array(values, kind)[start:]
        for target in (pa.decimal128(5, 2), pa.decimal128(38, 2), pa.decimal256(76, 2)):
            assert convert(array, target).to_pylist() == values[start:]


def test_a_decimal_beyond_its_own_precision_is_refused_in_its_row() -> None:
    numbers = [5, -7, 10**20, 10**20]
    data = b"".join(number.to_bytes(16, "little", signed=True) for number in numbers)
    array = pa.Array.from_buffers(pa.decimal128(2, 0), 4, [None, pa.py_buffer(data)])
    error = refusal(array, pa.decimal128(3, 0))
    assert "row 2 " in error.problem
    assert "too large" in error.problem
    assert convert(array[:2], pa.decimal128(3, 0)).to_pylist() == [5, -7]
    mask = pa.array([False, False, True, True])
    hidden = pa.StructArray.from_arrays([array], names=["d"], mask=mask)
    kept = convert(hidden, pa.struct([("d", pa.decimal128(3, 0))]))
    assert kept.to_pylist() == [{"d": 5}, {"d": -7}, None, None]
