"""One value of a text part, from its text to the declared type, exactly (spec, section 6, table).

This is the reference that decides what a text means; `text_columns` does the same for whole
columns where it can tell cheaply, and leaves the rest to this module. What the spec leaves open:

- A number in CSV, and a decimal, has no leading `+`, no leading zeros (`007` is text, as in JSON)
  and a digit on at least one side of the point; `nan`, `inf` and `-inf` in CSV are in lower case.
  A decimal may have an exponent (Python writes `1E-7` for one), the value is exact all the same.
- base64 is canonical: no white space, padded, the unused bits 0.
- Years are 0001 to 9999, for a zoned timestamp in UTC too. `T` is upper case, `Z` may be lower.

A parsed value is what `text_columns.build` takes: int for integers and for every date, time and
duration (a count of the type's unit), float, str, bytes, bool, `decimal.Decimal`.
"""

from __future__ import annotations

import binascii
import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import date
from decimal import Context, Decimal
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.types as patypes

from lithi_datasets.errors import SchemaMismatch

__all__ = [
    "NON_FINITE",
    "Parser",
    "ValueProblem",
    "float_parser",
    "integer_parser",
    "mismatch",
    "shown",
    "text_parser",
    "type_name",
]

Parser: TypeAlias = Callable[[str], Any]

NON_FINITE: Final = ("nan", "inf", "-inf")
"""The words that stand for a float in CSV; in JSON none does."""

SUBSECOND_DIGITS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_NUMBER = re.compile(
    r"(?P<sign>-?)(?:(?P<whole>0|[1-9][0-9]*)(?:\.(?P<part>[0-9]*))?|\.(?P<only>[0-9]+))"
    r"(?:[eE](?P<exponent>[+-]?[0-9]+))?"
)
_DATE = r"(?P<year>[0-9]{4})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})"
_TIME = r"(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})(?:\.(?P<part>[0-9]+))?"
_OFFSET = r"(?P<offset>[Zz]|(?P<side>[+-])(?P<hours>[0-9]{2}):(?P<minutes>[0-9]{2}))"
_FULL_DATE = re.compile(_DATE)
_PARTIAL_TIME = re.compile(_TIME)
_DATE_TIME = re.compile(f"{_DATE}T{_TIME}{_OFFSET}?")

_DAY_SECONDS = 86_400
_EPOCH = date(1970, 1, 1).toordinal()
_FIRST_SECOND = (date.min.toordinal() - _EPOCH) * _DAY_SECONDS
_LAST_SECOND = (date.max.toordinal() + 1 - _EPOCH) * _DAY_SECONDS - 1
_SHOWN_CHARACTERS = 80


class ValueProblem(Exception):
    """A value that the declared type cannot take; the reader adds part, line and column.

    Args:
        problem: what is wrong, after "Line 3, field 'a': ".
        expected: the type that does not fit, or what is expected in words.
        found: what is there, already fit to be shown.
        at: the dotted path of the field, `[2]` for a list element; it grows from the inside.
    """

    def __init__(self, problem: str, expected: pa.DataType | str, found: str, at: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.expected = expected
        self.found = found
        self.at = at


def mismatch(path: str, line: int, problem: ValueProblem) -> SchemaMismatch:
    """The error for a value of the wrong type, naming part, line, field, declared and found."""
    expected = problem.expected
    return SchemaMismatch(
        f"Line {line}, field {shown(problem.at.removeprefix('.'))}: {problem.problem}.",
        path=path,
        expected=expected if isinstance(expected, str) else type_name(expected),
        found=problem.found,
    )


def type_name(type: pa.DataType) -> str:
    """An Arrow type as the manifest writes it."""
    from lithi_datasets.schema import manifest_type

    declared = manifest_type(type)
    return declared if isinstance(declared, str) else json.dumps(declared)


def shown(text: str) -> str:
    """A text as a message shows it: quoted, escaped, its beginning if it is long."""
    if len(text) <= _SHOWN_CHARACTERS:
        return ascii(text)
    return f"{text[:_SHOWN_CHARACTERS]!a}… ({len(text)} characters)"


def text_parser(type: pa.DataType, *, words: bool = False) -> Parser:
    """The parser of a primitive type's text; it raises `ValueProblem`.

    Args:
        type: a declared type without lists and structs.
        words: whether `nan`, `inf` and `-inf` are floats, as they are in CSV.
    """
    if patypes.is_floating(type):
        return float_parser(type, words=words)
    for of_kind, make in _MAKERS:
        if of_kind(type):
            return make(type)
    raise TypeError(f"no text form for {type}")  # pragma: no cover - the manifest has no such type


def integer_parser(type: pa.DataType) -> Parser:
    """Decimal integers, exact; also the counts of a duration."""
    bits = type.bit_width
    signed = not patypes.is_unsigned_integer(type)
    lowest, highest = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)

    def parse(text: str) -> int:
        if not _INTEGER.fullmatch(text):
            raise ValueProblem("this is not a decimal integer", type, shown(text))
        # int() of a long text is slow, and refused from 4,300 digits on.
        if len(text) > 20 or not lowest <= int(text) <= highest:
            raise ValueProblem("the number is too large for its type", type, shown(text))
        return int(text)

    return parse


def float_parser(type: pa.DataType, *, words: bool = False) -> Parser:
    """Decimal numbers, rounded once to the nearest value of the type, ties to even."""
    narrow = _NARROW.get(type.bit_width)

    def parse(text: str) -> float:
        if words and text in NON_FINITE:
            return float(text)
        if not _NUMBER.fullmatch(text):
            raise ValueProblem("this is not a decimal number", type, shown(text))
        value = float(text) if narrow is None else _rounded_once(text, narrow)
        if not math.isfinite(value):
            raise ValueProblem("the number is too large for its type", type, shown(text))
        return value

    return parse


_Narrow: TypeAlias = type[np.float16] | type[np.float32]
_NARROW: Final[Mapping[int, _Narrow]] = {16: np.float16, 32: np.float32}


def _rounded_once(text: str, kind: _Narrow) -> float:
    """The value of a narrow float type that is nearest to a decimal text.

    Rounding by way of a double goes wrong only where the double lies exactly halfway between two
    neighbours: then the text decides, which may lie to either side of the double.
    """
    double = float(text)
    with np.errstate(over="ignore"):
        narrow = kind(double)
        other = np.nextafter(narrow, kind(np.inf if double > float(narrow) else -np.inf))
    if not math.isfinite(double) or float(narrow) == double:
        return float(narrow)
    if double != (_as_double(narrow) + _as_double(other)) / 2:
        return float(narrow)
    exact, middle = Decimal(text), Decimal(double)
    if exact == middle:
        return float(narrow)
    return sorted((float(narrow), float(other)))[exact > middle]


def _as_double(value: np.floating[Any]) -> float:
    """The value as a double, with infinity as the power of two that overflows."""
    if np.isfinite(value):
        return float(value)
    return math.copysign(2.0 ** int(np.finfo(type(value)).maxexp), float(value))


def _bool_parser(type: pa.DataType) -> Parser:
    def parse(text: str) -> bool:
        if text not in ("true", "false"):
            raise ValueProblem("this is neither true nor false", type, shown(text))
        return text == "true"

    return parse


def _string_parser(_: pa.DataType) -> Parser:
    return str


def _binary_parser(type: pa.DataType) -> Parser:
    def parse(text: str) -> bytes:
        try:
            value = binascii.a2b_base64(text)
        except ValueError:
            value = b""
        # What decodes leniently is not what would be written for it.
        if binascii.b2a_base64(value, newline=False) != text.encode("utf-8", "surrogatepass"):
            raise ValueProblem("this is not base64 of RFC 4648, padded", type, shown(text))
        return value

    return parse


def _decimal_parser(type: pa.DataType) -> Parser:
    precision, scale = type.precision, type.scale
    exact = Context(prec=precision + 1)

    def parse(text: str) -> Decimal:
        match = _NUMBER.fullmatch(text)
        if not match:
            raise ValueProblem("this is not a decimal number", type, shown(text))
        part = match["part"] or match["only"] or ""
        digits = ((match["whole"] or "") + part).lstrip("0")
        stripped = digits.rstrip("0")
        if not stripped:
            return Decimal(0).scaleb(-scale, exact)
        # The value is 0.stripped × 10 ** magnitude; an exponent of many digits is out of reach.
        exponent = match["exponent"] or "0"
        shift = int(exponent) if len(exponent.lstrip("+-").lstrip("0")) <= 12 else _far(exponent)
        magnitude = len(digits) - len(part) + shift
        if len(stripped) - magnitude > scale:
            raise ValueProblem("digits beyond the scale are not 0", type, shown(text))
        if magnitude > precision - scale:
            raise ValueProblem("the number is too large for its type", type, shown(text))
        unscaled = stripped + "0" * (magnitude + scale - len(stripped))
        return Decimal(match["sign"] + unscaled).scaleb(-scale, exact)

    return parse


def _far(exponent: str) -> int:
    return -(10**12) if exponent.startswith("-") else 10**12


def _date_parser(type: pa.DataType) -> Parser:
    per_day = 1 if patypes.is_date32(type) else _DAY_SECONDS * 1000

    def parse(text: str) -> int:
        match = _FULL_DATE.fullmatch(text)
        days = match and _days(match)
        if days is None:
            raise ValueProblem("this is not a full-date of RFC 3339", type, shown(text))
        return days * per_day

    return parse


def _time_parser(type: pa.DataType) -> Parser:
    def parse(text: str) -> int:
        match = _PARTIAL_TIME.fullmatch(text)
        seconds = match and _seconds(match)
        if match is None or seconds is None:
            raise ValueProblem("this is not a partial-time of RFC 3339", type, shown(text))
        return _ticks(seconds, match["part"], type, text)

    return parse


def _timestamp_parser(type: pa.DataType) -> Parser:
    def parse(text: str) -> int:
        match = _DATE_TIME.fullmatch(text)
        seconds = match and _instant(match)
        if match is None or seconds is None:
            raise ValueProblem("this is not a date-time of RFC 3339", type, shown(text))
        if type.tz is None and match["offset"]:
            raise ValueProblem("an offset, and the type has no zone", type, shown(text))
        if type.tz is not None and not match["offset"]:
            raise ValueProblem("no offset, and the type has a zone", type, shown(text))
        ticks = _ticks(seconds, match["part"], type, text)
        within = _FIRST_SECOND <= seconds <= _LAST_SECOND and -(2**63) <= ticks < 2**63
        if not within:
            raise ValueProblem("the timestamp is out of the range of its type", type, shown(text))
        return ticks

    return parse


def _days(match: re.Match[str]) -> int | None:
    """Days since 1970-01-01, None for a day that there is not."""
    try:
        day = date(int(match["year"]), int(match["month"]), int(match["day"]))
    except ValueError:
        return None
    return day.toordinal() - _EPOCH


def _seconds(match: re.Match[str]) -> int | None:
    """Seconds since midnight, None for a time that there is not, leap seconds included."""
    hour, minute, second = int(match["hour"]), int(match["minute"]), int(match["second"])
    return None if hour > 23 or minute > 59 or second > 59 else hour * 3600 + minute * 60 + second


def _instant(match: re.Match[str]) -> int | None:
    """Seconds since the epoch, in UTC where there is an offset."""
    days, seconds = _days(match), _seconds(match)
    hours, minutes = int(match["hours"] or 0), int(match["minutes"] or 0)
    if days is None or seconds is None or hours > 23 or minutes > 59:
        return None
    offset = hours * 3600 + minutes * 60
    return days * _DAY_SECONDS + seconds - (-offset if match["side"] == "-" else offset)


def _ticks(seconds: int, part: str | None, type: pa.DataType, text: str) -> int:
    """A count of the type's unit from whole seconds and the digits behind the point."""
    digits = SUBSECOND_DIGITS[type.unit]
    part = (part or "").rstrip("0")
    if len(part) > digits:
        raise ValueProblem("digits finer than the unit are not 0", type, shown(text))
    scaled: int = seconds * 10**digits
    return scaled + int(part.ljust(digits, "0") or "0")


_Maker: TypeAlias = tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], Parser]]
_MAKERS: Final[tuple[_Maker, ...]] = (
    (patypes.is_boolean, _bool_parser),
    (patypes.is_integer, integer_parser),
    (patypes.is_duration, integer_parser),
    (patypes.is_string, _string_parser),
    (patypes.is_large_string, _string_parser),
    (patypes.is_binary, _binary_parser),
    (patypes.is_large_binary, _binary_parser),
    (patypes.is_decimal, _decimal_parser),
    (patypes.is_date, _date_parser),
    (patypes.is_time, _time_parser),
    (patypes.is_timestamp, _timestamp_parser),
)
