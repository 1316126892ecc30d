"""Arrow arrays → the plain values that a text part holds, by the rules of the spec, section 6.

Written apart from the package's readers and on integers alone, so that a conformance test compares
two independent writings of one table. No `datetime` on the way of a value: it has no nanoseconds
and no year 0.
"""

from __future__ import annotations

import base64
import re
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.types as pt

from lithi_datasets.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["plain_values"]

_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_DAY_SECONDS = 86_400
_FIRST_DAY, _LAST_DAY = -719_528, 2_932_896  # 0000-01-01 and 9999-12-31, in days since 1970.
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def plain_values(column: pa.Array | pa.ChunkedArray, *, field: str) -> list[Any]:
    """Return the rows of one column as JSON-able values.

    The physical type of `column` alone decides; the declared type is not looked at.

    Args:
        column: n rows of any type that the format declares, plain or dictionary, run-end or view
            encoded.
        field: name for messages.

    Returns:
        n values: `None`, `bool`, exact `int` (durations too: the count of the unit), `float`
        (non-finite ones too), `str` (binaries as base64, decimals as digits, dates, times and
        timestamps in RFC 3339), a `list`, or a `dict` with the struct's fields in order.

    Raises:
        UsageError: the type has no text form (a map), or a value has none (a year outside
            0000-9999, a time of day outside 24 hours, a `date64` that is not a whole day).
    """
    if isinstance(column, pa.ChunkedArray):
        return [value for chunk in column.chunks for value in plain_values(chunk, field=field)]
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return plain_values(column.storage, field=field)
    if pt.is_dictionary(kind):
        return plain_values(column.dictionary_decode(), field=field)
    if pt.is_run_end_encoded(kind):
        return _run_ends(column, field)
    if pt.is_struct(kind):
        return _structs(column, field)
    if pt.is_nested(kind):
        return _lists(column, field)
    return _leaves(column, field)


def _run_ends(array: pa.Array, field: str) -> list[Any]:
    values = plain_values(array.values, field=field)
    ends = array.run_ends.to_pylist()
    result: list[Any] = []
    run = array.find_physical_offset()
    for row in range(array.offset, array.offset + len(array)):
        while ends[run] <= row:
            run += 1
        result.append(values[run])
    return result


def _structs(array: pa.StructArray, field: str) -> list[Any]:
    names = [array.type.field(index).name for index in range(array.type.num_fields)]
    columns = [
        plain_values(child, field=f"{field}.{name}")
        for name, child in zip(names, array.flatten(), strict=True)
    ]
    valid = array.is_valid().to_pylist()
    return [
        dict(zip(names, (column[row] for column in columns), strict=True)) if valid[row] else None
        for row in range(len(array))
    ]


def _lists(array: pa.Array, field: str) -> list[Any]:
    if pt.is_map(array.type) or pt.is_union(array.type):
        raise UsageError("a type that no manifest declares", path=field, found=str(array.type))
    # flatten() leaves out what lies behind null lists, so the lengths of the others place the rest.
    items = iter(plain_values(array.flatten(), field=field))
    lengths = array.value_lengths().to_pylist()
    return [None if n is None else [next(items) for _ in range(n)] for n in lengths]


def _leaves(array: pa.Array, field: str) -> list[Any]:
    kind = array.type
    if pt.is_temporal(kind) and not pt.is_interval(kind):
        integers = array.view(pa.int32() if kind.bit_width == 32 else pa.int64()).to_pylist()
        return _each(integers, _temporal(kind, field))
    if pt.is_decimal(kind):
        return _each(array.to_pylist(), lambda value: format(value, "f"))
    if pt.is_floating(kind):
        return _each(array.to_pylist(), float)
    if pt.is_boolean(kind) or pt.is_integer(kind) or pt.is_null(kind):
        return list(array.to_pylist())
    if pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind):
        return list(array.to_pylist())
    if _is_binary(kind):
        return _each(array.to_pylist(), lambda value: base64.b64encode(value).decode("ascii"))
    raise UsageError("a type that has no text form", path=field, found=str(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        pt.is_binary(kind)
        or pt.is_large_binary(kind)
        or pt.is_binary_view(kind)
        or pt.is_fixed_size_binary(kind)
    )


def _each(values: list[Any], render: Callable[[Any], Any]) -> list[Any]:
    return [None if value is None else render(value) for value in values]


def _temporal(kind: pa.DataType, field: str) -> Callable[[int], Any]:
    if pt.is_duration(kind):
        return int
    if pt.is_date32(kind):
        return lambda days: _date(days, field)
    if pt.is_date64(kind):
        return lambda ms: _date(_whole_days(ms, field), field)
    if pt.is_time(kind):
        return lambda count: _time_of_day(count, kind.unit, field)
    zone: str | None = kind.tz
    return lambda count: _timestamp(count, kind.unit, zone, field)


def _whole_days(ms: int, field: str) -> int:
    days, rest = divmod(ms, _DAY_SECONDS * 1000)
    if rest:
        raise UsageError("a date64 that is not a whole day", path=field, found=ms)
    return days


def _date(days: int, field: str) -> str:
    # Proleptic Gregorian calendar: eras of 400 years, each year starting on the first of March.
    if not _FIRST_DAY <= days <= _LAST_DAY:
        raise UsageError(
            "a year that RFC 3339 cannot say",
            path=field,
            expected="0000-9999",
            found=f"day {days} since 1970",
        )
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (
        day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096
    ) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted_month = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * shifted_month + 2) // 5 + 1
    month = shifted_month + 3 if shifted_month < 10 else shifted_month - 9
    year = year_of_era + 400 * era + (month <= 2)
    return f"{year:04}-{month:02}-{day:02}"


def _time_of_day(count: int, unit: str, field: str) -> str:
    digits = _DIGITS[unit]
    seconds, fraction = divmod(count, 10**digits)
    if not 0 <= seconds < _DAY_SECONDS:
        raise UsageError("a time of day outside 24 hours", path=field, found=f"{count} {unit}")
    minutes, second = divmod(seconds, 60)
    text = f"{minutes // 60:02}:{minutes % 60:02}:{second:02}"
    return f"{text}.{fraction:0{digits}}" if digits else text


def _timestamp(count: int, unit: str, zone: str | None, field: str) -> str:
    scale = 10 ** _DIGITS[unit]
    offset, suffix = (0, "") if zone is None else _offset(zone, count // scale)
    days, rest = divmod(count + offset * scale, _DAY_SECONDS * scale)
    if zone is not None and not _FIRST_DAY <= days <= _LAST_DAY:
        suffix = "Z"  # The local year leaves RFC 3339; the same instant in UTC may not.
        days, rest = divmod(count, _DAY_SECONDS * scale)
    return f"{_date(days, field)}T{_time_of_day(rest, unit, field)}{suffix}"


def _offset(zone: str, seconds: int) -> tuple[int, str]:
    """The zone's offset at an instant, in seconds and as text.

    `Z` stands in where RFC 3339 cannot say the local time: an offset of odd seconds (local mean
    times before railways), an instant outside Python's years, a zone this machine does not know.
    """
    fixed = re.fullmatch(r"([+-])(\d\d):(\d\d)", zone)
    if fixed:
        size = int(fixed[2]) * 3600 + int(fixed[3]) * 60
        return (-size if fixed[1] == "-" else size), zone
    if zone == "UTC":
        return 0, "Z"
    try:
        local = (_EPOCH + timedelta(seconds=seconds)).astimezone(ZoneInfo(zone))
    except (OverflowError, KeyError, ValueError):
        return 0, "Z"
    delta = local.utcoffset() or timedelta()
    size = delta.days * _DAY_SECONDS + delta.seconds
    if size % 60:
        return 0, "Z"
    sign = "-" if size < 0 else "+"
    return size, f"{sign}{abs(size) // 3600:02}:{abs(size) // 60 % 60:02}"
