"""The steps of an exact conversion that end at values; `lithi_datasets.nested` has the others.

`lithi_datasets.conversion` chooses the steps from two types and knows the rules; a step here knows
the memory layout. Each step takes a physical array and gives one of its declared type, and moves
or widens what it can prove exact without looking (`int8` to `int64`) and checks the rest. The
arithmetic is numpy's on Arrow's own buffers: pyarrow's casts wrap a `time32` that overflows,
misread list views, write offsets that wrapped where a view's text passes 2 GiB, and look at values
which no reader can see.

`hidden` is a mask of slots that an enclosing null, or the lack of any reference, keeps from being
read. What they hold is neither checked nor passed on as a value.

The arrays have to be valid in Arrow's sense (`validate(full=True)`), which is the reader's care.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lithi_datasets.gather import (
    Indexes,
    Mask,
    build,
    fits_offsets,
    gather,
    nulls,
    offset_type,
    raw,
    spans,
    validity,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "CastDecimal",
    "FromView",
    "Keep",
    "Relabel",
    "Reoffset",
    "Rescale",
    "Step",
    "ValueRefused",
    "Where",
    "Widen",
    "either",
    "refuse",
]


@dataclass(frozen=True)
class Where:
    """The place of a step, for messages.

    Args:
        field: dotted path from the column, `[]` for the elements of a list: `meta.scores[]`.
        declared: the type that the manifest declares there.
        found: the physical type there.
    """

    field: str
    declared: pa.DataType
    found: pa.DataType


class ValueRefused(Exception):
    """Values that the declared type cannot hold; on its way up each step says whose they are.

    Args:
        where: the place of the step that refuses.
        rows: slots that hold a refused value, in the array of the step that is being left.
        slots: the slot of that value in the array that `tell` knows, one for each of `rows`.
        tell: what is wrong with the value in a slot.
    """

    def __init__(
        self, where: Where, rows: Indexes, slots: Indexes, tell: Callable[[int], str]
    ) -> None:
        super().__init__(where.field)
        self.where = where
        self.rows = rows
        self.slots = slots
        self.tell = tell

    def first(self) -> tuple[int, str]:
        """The first row that holds a refused value, and what is wrong with it."""
        at = int(np.argmin(self.rows))
        return int(self.rows[at]), self.tell(int(self.slots[at]))


class Step(Protocol):
    """One conversion, chosen for a physical and a declared type."""

    def apply(self, array: pa.Array, hidden: Mask | None, /) -> pa.Array:
        """The same values in the declared type.

        Raises:
            ValueRefused: a value that is not hidden has no exact counterpart.
            gather.TooLarge: the offsets of a plain string, binary or list would overflow.
        """


def either(left: Mask | None, right: Mask | None) -> Mask | None:
    """The slots of either mask."""
    if left is None or right is None:
        return right if left is None else left
    return left | right


def refuse(where: Where, bad: Mask, hidden: Mask | None, tell: Callable[[int], str]) -> None:
    """Raise `ValueRefused` if a slot is bad and can be seen."""
    if hidden is not None:
        bad = bad & ~hidden
    slots = np.flatnonzero(bad)
    if len(slots):
        raise ValueRefused(where, slots, slots, tell)


@dataclass(frozen=True)
class Keep:
    """The types are equal at every level: the array itself, no copy."""

    def apply(self, array: pa.Array, _hidden: Mask | None, /) -> pa.Array:
        """The array itself."""
        return array


@dataclass(frozen=True)
class Relabel:
    """Equal values under another name (another zone of a zoned timestamp), no copy."""

    target: pa.DataType

    def apply(self, array: pa.Array, _hidden: Mask | None, /) -> pa.Array:
        """The same buffers under the declared type."""
        return pa.Array.from_buffers(
            self.target, len(array), array.buffers(), array.null_count, array.offset
        )


@dataclass(frozen=True)
class Widen:
    """Integers or floats into a type that holds every value of theirs."""

    target: pa.DataType
    source_dtype: npt.DTypeLike
    target_dtype: npt.DTypeLike

    def apply(self, array: pa.Array, _hidden: Mask | None, /) -> pa.Array:
        """The same numbers, wider."""
        data = raw(array, self.source_dtype).astype(self.target_dtype)
        return build(self.target, len(array), validity(array), data)


@dataclass(frozen=True)
class Rescale:
    """Dates, times, timestamps and durations in another unit: count * times // divisor, exactly."""

    target: pa.DataType
    where: Where
    source_dtype: npt.DTypeLike
    target_dtype: npt.DTypeLike
    times: int = 1
    divisor: int = 1

    def apply(self, array: pa.Array, hidden: Mask | None, /) -> pa.Array:
        """The same moments in the declared unit."""
        counts = raw(array, self.source_dtype).astype(np.int64)
        limits = np.iinfo(self.target_dtype)
        if self.times > 1:
            low, high = -(-int(limits.min) // self.times), int(limits.max) // self.times
            bad = (counts > high) | (counts < low)
            # A hidden count may wrap: nobody sees it.
            data = counts * np.int64(self.times)
        else:
            data = counts // self.divisor
            bad = (data * self.divisor != counts) | (data > limits.max) | (data < limits.min)
        if bad.any():
            refuse(
                self.where,
                bad,
                either(nulls(array), hidden),
                lambda slot: f"the count {counts[slot]} has no exact value in the declared unit",
            )
        return build(self.target, len(array), validity(array), data.astype(self.target_dtype))


@dataclass(frozen=True)
class CastDecimal:
    """Decimals at the same scale in at least the same precision, in whatever width."""

    target: pa.DataType
    where: Where

    def apply(self, array: pa.Array, hidden: Mask | None, /) -> pa.Array:
        """The same decimals."""
        try:
            return array.cast(self.target)
        except pa.ArrowInvalid:
            # Only numbers beyond the precision of their own type get here, or hidden garbage.
            if hidden is not None and hidden.any():
                seen = np.where(hidden, -1, np.arange(len(array)))
                return self.apply(gather(array, seen, self.where.field), None)
            slot = np.array([self._first_refused(array)])
            raise ValueRefused(self.where, slot, slot, lambda at: self._tell(array, at)) from None

    def _first_refused(self, array: pa.Array) -> int:
        good, bad = 0, len(array)
        while bad - good > 1:
            middle = (good + bad) // 2
            try:
                array.slice(good, middle - good).cast(self.target)
                good = middle
            except pa.ArrowInvalid:
                bad = middle
        return good

    @staticmethod
    def _tell(array: pa.Array, slot: int) -> str:
        return f"{array[slot].as_py()} is too large for its type"


@dataclass(frozen=True)
class Reoffset:
    """Plain to `large_` strings and binaries or back; the bytes stay where they are."""

    target: pa.DataType
    where: Where

    def apply(self, array: pa.Array, hidden: Mask | None, /) -> pa.Array:
        """The same bytes with offsets of the declared width."""
        starts, sizes = spans(array)
        if not fits_offsets(int(sizes.sum()), self.target):
            dead = either(nulls(array), hidden)
            if dead is not None and sizes[dead].any():
                seen = np.where(dead, -1, np.arange(len(array)))
                return self.apply(gather(array, seen, self.where.field), None)
        offsets = offset_type(sizes, self.target, self.where.field)
        data = array.buffers()[2]
        if len(starts) and data is not None:
            data = data.slice(int(starts[0]), int(offsets[-1]))
        return build(self.target, len(array), validity(array), offsets, data)


@dataclass(frozen=True)
class FromView:
    """String and binary views to plain or `large_` ones; the bytes are copied."""

    target: pa.DataType
    where: Where

    def apply(self, array: pa.Array, hidden: Mask | None, /) -> pa.Array:
        """The same bytes, one after the other."""
        # A view is 16 bytes, and starts with its length.
        sizes = raw(array, np.dtype("V16")).view(np.int32)[::4].astype(np.int64)
        dead = nulls(array)
        if dead is not None:
            sizes[dead] = 0
        if hidden is not None and not fits_offsets(int(sizes.sum()), self.target):
            sizes[hidden] = 0
            offset_type(sizes, self.target, self.where.field)
            large = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}[self.target]
            whole = FromView(large, self.where).apply(array, None)
            return Reoffset(self.target, self.where).apply(whole, hidden)
        # pyarrow does not check this: its offsets wrap.
        offset_type(sizes, self.target, self.where.field)
        try:
            return array.cast(self.target)
        except pa.ArrowNotImplementedError:  # older versions of pyarrow
            return pa.array(array.to_pylist(), self.target)
