"""Whole columns of text to declared arrays, and parsed values to declared arrays.

`from_strings` and `from_json` are the fast path. They take what pyarrow's parsers give and decide
by cheap checks of the bytes that every value is one which `text` reads to the very same result;
where they can't tell for a column of texts, `text` reads it value by value. If a value may be wrong
they raise `Unsure` and the caller reads the block again, line by line: which value, and why, is not
their subject. The checks are those for which pyarrow is too
lenient: `0x1F`, `007`, `+1`, `Infinity`, a decimal of 60 digits that wraps, a number that becomes
infinite.

`build` makes arrays of the values that the slow path parsed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as patypes

from lithi_datasets.formats.text import NON_FINITE, ValueProblem, text_parser

__all__ = ["Unsure", "build", "from_json", "from_strings", "json_schema"]

_ZERO, _NINE, _MINUS, _PLUS = (np.uint8(ord(character)) for character in "09-+")
_SMALL_E: Final = np.uint8(ord("e"))
_CASE_BIT: Final = np.uint8(0x20)
_FRACTION: Final = {"s": "", "ms": r"(\.[0-9]{1,3})?", "us": r"(\.[0-9]{1,6})?"}
_FRACTION["ns"] = r"(\.[0-9]{1,9})?"
_DATE = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME = "[0-9]{2}:[0-9]{2}:[0-9]{2}"
_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6}
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799
_DAY_SECONDS: Final = 86_400


class Unsure(Exception):
    """The fast path can't tell whether all is right; the slow path can."""


def json_schema(declared: pa.Schema) -> pa.Schema:
    """What pyarrow's JSON parser shall read a part as: each type in its JSON form.

    What the table of the spec has as a string is read as a string, a duration as an integer, a list
    of any kind as a list. `from_json` goes the rest of the way.
    """
    return pa.schema([(field.name, _json_form(field.type)) for field in declared])


def _json_form(type: pa.DataType) -> pa.DataType:
    if _is_list(type):
        return pa.list_(_json_form(type.value_type))
    if patypes.is_struct(type):
        return pa.struct([(field.name, _json_form(field.type)) for field in type])
    if patypes.is_float16(type):
        return pa.float64()
    if patypes.is_duration(type):
        return pa.int64()
    is_number = patypes.is_integer(type) or patypes.is_floating(type)
    if is_number or patypes.is_boolean(type) or patypes.is_large_string(type):
        return type
    return pa.string()


def from_json(array: pa.Array, declared: pa.DataType) -> pa.Array:
    """An array of a type's JSON form as the declared type.

    Raises:
        Unsure, pa.ArrowException: a value may be wrong.
    """
    if _is_list(declared):
        items = from_json(array.values, declared.value_type)
        return _list_of(np.asarray(array.offsets), items, declared, array.is_null())
    if patypes.is_struct(declared):
        children = [from_json(array.field(f.name), f.type) for f in declared]
        return pa.StructArray.from_arrays(children, fields=list(declared), mask=array.is_null())
    if patypes.is_floating(declared):
        return _finite(array) if array.type == declared else _narrow(array)
    if patypes.is_duration(declared):
        return array.view(declared)
    return array if array.type == declared else from_strings(array, declared)


def from_strings(text: pa.Array, declared: pa.DataType, *, words: bool = False) -> pa.Array:
    """An array of texts as the declared primitive type; null stays null.

    Args:
        text: string or large_string.
        declared: a type without lists and structs.
        words: whether `nan`, `inf` and `-inf` are floats, as they are in CSV.

    Raises:
        Unsure: a value is wrong.
    """
    try:
        if patypes.is_floating(declared):
            return _floats(text, declared, words=words)
        for of_kind, convert in _CONVERSIONS:
            if of_kind(declared):
                return convert(text, declared)
    except (Unsure, pa.ArrowException):
        pass  # a rare form of a right value, or a wrong value
    parse = text_parser(declared, words=words)
    try:
        values = [None if value is None else parse(value) for value in text.to_pylist()]
    except ValueProblem:
        raise Unsure from None
    return build(values, declared)


def _is_list(type: pa.DataType) -> bool:
    kinds = (patypes.is_list, patypes.is_large_list, patypes.is_fixed_size_list)
    return any(of_kind(type) for of_kind in kinds)


class _Content:
    """The bytes of a column's texts and where each begins and ends; nulls are left out."""

    def __init__(self, text: pa.Array) -> None:
        _, offsets, data = text.buffers()
        wide = patypes.is_large_string(text.type)
        bounds: npt.NDArray[Any] = np.frombuffer(offsets, np.int64 if wide else np.int32)
        bounds = bounds[text.offset : text.offset + len(text) + 1]
        self.bytes = b"" if data is None else bytes(memoryview(data)[bounds[0] : bounds[-1]])
        self.data = np.frombuffer(self.bytes, np.uint8)
        # Indexes of the native width: numpy copies any other at each use.
        bounds = bounds.astype(np.intp) - int(bounds[0])
        self.starts, self.ends = bounds[:-1], bounds[1:]
        if text.null_count:
            kept = _mask(text.is_valid())
            self.starts, self.ends = self.starts[kept], self.ends[kept]
        if (self.starts == self.ends).any():
            raise Unsure  # no value but a string is empty

    def between(self, first: bytes, last: bytes) -> bool:
        """Whether all characters are of a range of ASCII; ten times as fast as `only`."""
        data = self.data
        return not len(data) or (data.min() >= ord(first) and data.max() <= ord(last))

    def only(self, characters: bytes) -> bool:
        """Whether all characters are of these."""
        return not self.bytes.translate(None, characters)

    def refuse_leading_zeros(self) -> None:
        """No text begins, behind its minus, with a 0 that another digit follows."""
        starts, ends = self.starts, self.ends
        first = self.data[starts]
        minus = first == _MINUS
        if minus.any():
            starts = starts + minus
            first = self.data.take(starts, mode="clip")
        zero = first == _ZERO
        if zero.any():
            follower = self.data.take(starts + 1, mode="clip")
            if (zero & (follower - _ZERO <= _NINE - _ZERO) & (ends - starts > 1)).any():
                raise Unsure

    def before(self, character: bytes) -> npt.NDArray[Any]:
        """Where each text has the character first, or ends."""
        at = np.append(np.flatnonzero(self.data == ord(character)), len(self.data))
        positions: npt.NDArray[Any] = np.minimum(at[np.searchsorted(at, self.starts)], self.ends)
        return positions

    def refuse_leading_plus(self) -> None:
        """A `+` stands behind an `e` and nowhere else."""
        if b"+" not in self.bytes:
            return
        at = np.flatnonzero(self.data == _PLUS)
        if ((self.data[at - 1] | _CASE_BIT) != _SMALL_E).any() or np.isin(at, self.starts).any():
            raise Unsure


def _integers(text: pa.Array, declared: pa.DataType) -> pa.Array:
    content = _Content(text)
    if not content.between(b"-", b"9"):  # of these, the cast refuses "." and "/"
        raise Unsure
    content.refuse_leading_zeros()
    return text.cast(declared)


def _durations(text: pa.Array, declared: pa.DataType) -> pa.Array:
    return _integers(text, pa.int64()).view(declared)


def _floats(text: pa.Array, declared: pa.DataType, *, words: bool) -> pa.Array:
    content = _Content(text)
    if words and b"n" in content.bytes:
        return _floats_and_words(text, declared)
    # Between "+" and "9", the cast refuses "," and "/".
    if not (content.between(b"+", b"9") or content.only(b"-+.0123456789eE")):
        raise Unsure
    content.refuse_leading_zeros()
    content.refuse_leading_plus()
    if patypes.is_float16(declared):
        return _narrow(text.cast(pa.float64()))
    return _finite(text.cast(declared))


def _floats_and_words(text: pa.Array, declared: pa.DataType) -> pa.Array:
    which = pc.index_in(text, value_set=pa.array(NON_FINITE, text.type))
    is_word = _mask(which.is_valid())
    numbers = _floats(text.filter(pa.array(~is_word)), declared, words=False)
    values = np.empty(len(text), declared.to_pandas_dtype())
    values[~is_word] = numbers.to_numpy(zero_copy_only=False)
    values[is_word] = np.array([float(word) for word in NON_FINITE])[which.drop_null()]
    return pa.array(values, declared, mask=_mask(text.is_null()))


def _finite(array: pa.Array) -> pa.Array:
    # What stands in the slot of a null may be anything, so this alone can't refuse.
    data = array.buffers()[1]
    raw = np.frombuffer(data or b"", f"f{array.type.bit_width // 8}")
    if np.isfinite(raw).all() or pc.all(pc.is_finite(array), min_count=0).as_py():
        return array
    raise Unsure


def _narrow(doubles: pa.Array) -> pa.Array:
    """float64 → float16 where no double is halfway: there, the text would have to decide."""
    values = np.asarray(_finite(doubles).fill_null(0.0))
    with np.errstate(over="ignore"):
        halves = values.astype(np.float16)
        toward = np.where(values > halves, np.inf, -np.inf).astype(np.float16)
        others = np.nextafter(halves, toward).astype(np.float64)
    if np.isinf(halves).any():
        raise Unsure
    nearest = halves.astype(np.float64)
    halfway = (values != nearest) & (values - nearest == others - values)
    if halfway.any():
        raise Unsure
    return pa.array(halves, mask=_mask(doubles.is_null()))


def _bools(text: pa.Array, _: pa.DataType) -> pa.Array:
    true = pc.equal(text, "true")
    if not pc.all(pc.or_(true, pc.equal(text, "false")), min_count=0).as_py():
        raise Unsure
    return true


def _strings(text: pa.Array, declared: pa.DataType) -> pa.Array:
    return text if text.type == declared else text.cast(declared)


def _decimals(text: pa.Array, declared: pa.DataType) -> pa.Array:
    content = _Content(text)
    if not content.only(b"-.0123456789"):
        raise Unsure
    content.refuse_leading_zeros()
    # pyarrow's cast wraps around without a word where there are more digits than the storage has,
    # before the point those that the scale leaves, and 38 or 76 of them altogether.
    digits = content.before(b".") - content.starts
    if (digits > declared.precision - declared.scale).any():
        raise Unsure
    if (content.ends - content.starts > (38 if declared.bit_width == 128 else 76)).any():
        raise Unsure
    return text.cast(declared)


def _dates(text: pa.Array, declared: pa.DataType) -> pa.Array:
    _matches(text, _DATE)
    return text.cast(pa.date32()).cast(declared)


def _times(text: pa.Array, declared: pa.DataType) -> pa.Array:
    _matches(text, _TIME + _FRACTION[declared.unit])
    prefix = pa.scalar("1970-01-01T", text.type)
    instants = pc.binary_join_element_wise(prefix, text, "")
    ticks = instants.cast(pa.timestamp(declared.unit)).view(pa.int64())
    return ticks.cast(pa.int32() if declared.bit_width == 32 else pa.int64()).view(declared)


def _timestamps(text: pa.Array, declared: pa.DataType) -> pa.Array:
    offset = "" if declared.tz is None else "(Z|[+-][0-9]{2}:[0-9]{2})"
    _matches(text, f"{_DATE}T{_TIME}{_FRACTION[declared.unit]}{offset}")
    # Parsed in UTC, so that no zone data of this machine is asked; the type names the zone.
    parsed = text.cast(pa.timestamp(declared.unit, None if declared.tz is None else "UTC"))
    if declared.unit == "ns":
        # Old versions of pyarrow wrap around without a word, as an offset makes all of them.
        seconds = pc.utf8_slice_codeunits(text, 0, len("2020-01-01T00:00:00"))
        seconds = seconds.cast(pa.timestamp("s")).view(pa.int64())
        edge = 2**63 // 10**9 - 2 * _DAY_SECONDS
        _within(seconds, -edge, edge)
    else:
        per_second = _PER_SECOND[declared.unit]
        last = (_LAST_SECOND + 1) * per_second - 1
        _within(parsed.view(pa.int64()), _FIRST_SECOND * per_second, last)
    return parsed.view(declared)


def _within(counts: pa.Array, lowest: int, highest: int) -> None:
    extent = pc.min_max(counts).as_py()
    if extent["min"] is not None and not lowest <= extent["min"] <= extent["max"] <= highest:
        raise Unsure


def _matches(text: pa.Array, pattern: str) -> None:
    """Every text is what the pattern says, and is of no year 0000."""
    wanted = pc.match_substring_regex(text, rf"\A{pattern}\z")
    if not pc.all(wanted, min_count=0).as_py():
        raise Unsure
    if pattern.startswith(_DATE) and pc.any(pc.starts_with(text, "0000"), min_count=0).as_py():
        raise Unsure


_Conversion = Callable[[pa.Array, pa.DataType], pa.Array]
_CONVERSIONS: Final[tuple[tuple[Callable[[pa.DataType], bool], _Conversion], ...]] = (
    (patypes.is_integer, _integers),
    (patypes.is_boolean, _bools),
    (patypes.is_string, _strings),
    (patypes.is_large_string, _strings),
    (patypes.is_decimal, _decimals),
    (patypes.is_duration, _durations),
    (patypes.is_date, _dates),
    (patypes.is_time, _times),
    (patypes.is_timestamp, _timestamps),
)


def build(values: Sequence[Any], type: pa.DataType) -> pa.Array:
    """An array of parsed values (see `text`), of lists or of mappings of them; None is null."""
    nulls = pa.array([value is None for value in values], pa.bool_())
    if _is_list(type):
        lengths = [0 if value is None else len(value) for value in values]
        items = build([item for value in values for item in value or ()], type.value_type)
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        return _list_of(offsets, items, type, nulls)
    if patypes.is_struct(type):
        rows: list[Mapping[str, Any]] = [value or {} for value in values]
        children = [build([row.get(field.name) for row in rows], field.type) for field in type]
        return pa.StructArray.from_arrays(children, fields=list(type), mask=nulls)
    if patypes.is_float16(type):
        floats = np.array([0.0 if value is None else value for value in values], np.float16)
        return pa.array(floats, mask=_mask(nulls))
    if patypes.is_temporal(type):
        ticks = pa.int32() if type.bit_width == 32 else pa.int64()
        return pa.array(values, ticks).view(type)
    return pa.array(values, type)


def _list_of(
    offsets: npt.NDArray[Any], items: pa.Array, type: pa.DataType, nulls: pa.Array
) -> pa.Array:
    """A list array of any kind; where `nulls` is true, the list has no items in `items`."""
    if patypes.is_fixed_size_list(type):
        return _fixed_lists(offsets, items, type, nulls)
    of_kind = pa.LargeListArray if patypes.is_large_list(type) else pa.ListArray
    width = pa.int64() if patypes.is_large_list(type) else pa.int32()
    return of_kind.from_arrays(pa.array(offsets, width), items, type=type, mask=nulls)


def _fixed_lists(
    offsets: npt.NDArray[Any], items: pa.Array, type: pa.DataType, nulls: pa.Array
) -> pa.Array:
    missing = _mask(nulls)
    size = type.list_size
    if (np.diff(offsets)[~missing] != size).any():
        raise Unsure
    if missing.any():
        # A null takes as many slots as a list.
        slots = offsets[:-1, None].astype(np.int64) + np.arange(size)
        absent = np.broadcast_to(missing[:, None], slots.shape)
        items = items.take(pa.array(slots.ravel(), mask=absent.ravel()))
    return pa.FixedSizeListArray.from_arrays(items, type=type, mask=nulls)


def _mask(flags: pa.Array) -> npt.NDArray[np.bool_]:
    return np.asarray(flags.to_numpy(zero_copy_only=False), dtype=bool)
