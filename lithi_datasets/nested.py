"""The steps of an exact conversion that have steps inside: encodings, structs and lists.

What they add to `lithi_datasets.casts`: an inner step is told which slots nobody sees (under a null
parent, or taken by no reference), and the values it refuses become the rows that show them.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from lithi_datasets.casts import Step, ValueRefused, Where, either, refuse
from lithi_datasets.gather import (
    Indexes,
    Mask,
    build,
    dtype_of,
    expand,
    gather,
    nulls,
    offset_type,
    raw,
    spans,
    validity,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Dictionary", "FixedLists", "Lists", "RunEnds", "Storage", "Structs"]


@contextmanager
def _owned(owner_of: Callable[[Indexes], Indexes]) -> Iterator[None]:
    """Turn refused elements into the rows that they belong to."""
    try:
        yield
    except ValueRefused as refused:
        refused.rows = owner_of(refused.rows)
        raise


@contextmanager
def _taken_by(indexes: Indexes) -> Iterator[None]:
    """Turn refused entries into the references that take them: reference i takes `indexes[i]`."""
    try:
        yield
    except ValueRefused as refused:
        entries, at = np.unique(refused.rows, return_index=True)
        references = np.flatnonzero(np.isin(indexes, entries))
        refused.slots = refused.slots[at[np.searchsorted(entries, indexes[references])]]
        refused.rows = references
        raise


def _pick(step: Step, values: pa.Array, indexes: Indexes, field: str) -> pa.Array:
    """Convert the entries that are referred to, then take them: a shared entry is checked once."""
    used = np.zeros(len(values), dtype=np.bool_)
    used[indexes[indexes >= 0]] = True
    with _taken_by(indexes):
        converted = step.apply(values, None if used.all() else ~used)
    return gather(converted, indexes, field)


@dataclass(frozen=True)
class Storage:
    """An extension type is an annotation; what it stores counts."""

    step: Step

    def apply(self, array: pa.Array, hidden: Mask | None, /) -> pa.Array:
        """The converted storage."""
        return self.step.apply(array.storage, hidden)


@dataclass(frozen=True)
class Dictionary:
    """Dictionary encoding, with any index type and with nulls in either place."""

    step: Step
    where: Where

    def apply(self, array: pa.Array, hidden: Mask | None, /) -> pa.Array:
        """The converted entries, each row its own."""
        indices = array.indices
        indexes = raw(indices, dtype_of(indices.type)).astype(np.int64)
        dead = either(nulls(indices), hidden)
        live = indexes if dead is None else indexes[~dead]
        if len(live) and (live.min() < 0 or live.max() >= len(array.dictionary)):
            raise pa.ArrowInvalid("a dictionary index is out of bounds")
        if dead is not None:
            indexes[dead] = -1
        return _pick(self.step, array.dictionary, indexes, self.where.field)


@dataclass(frozen=True)
class RunEnds:
    """Run-end encoding."""

    step: Step
    where: Where

    def apply(self, array: pa.Array, hidden: Mask | None, /) -> pa.Array:
        """The converted runs, each row its own."""
        first, runs = array.find_physical_offset(), array.find_physical_length()
        ends = raw(array.run_ends, dtype_of(array.run_ends.type)).astype(np.int64)
        ends = ends[first : first + runs]
        lengths = np.diff(np.minimum(ends - array.offset, len(array)), prepend=0)
        indexes = np.repeat(np.arange(runs), lengths)
        if hidden is not None:
            indexes[hidden] = -1
        return _pick(self.step, array.values.slice(first, runs), indexes, self.where.field)


@dataclass(frozen=True)
class Structs:
    """Struct to struct, the fields by name.

    Args:
        children: for each declared field the index of the physical one, and its step.
    """

    target: pa.DataType
    children: tuple[tuple[int, Step], ...]

    def apply(self, array: pa.Array, hidden: Mask | None, /) -> pa.Array:
        """The struct with its declared fields in their order."""
        hidden = either(hidden, nulls(array))
        children = [step.apply(array.field(index), hidden) for index, step in self.children]
        return build(self.target, len(array), validity(array), children=children)


def _elements(
    step: Step, values: pa.Array, starts: Indexes, sizes: Indexes, field: str
) -> pa.Array:
    """The converted elements of lists that lie at `starts` in `values`, packed in list order."""
    total = int(sizes.sum())
    if not total:
        return step.apply(values.slice(0, 0), None)
    ends = np.cumsum(sizes)
    kept = sizes > 0
    starts, sizes = starts[kept], sizes[kept]
    with _owned(lambda elements: np.searchsorted(ends, elements, side="right")):
        if (starts[1:] == starts[:-1] + sizes[:-1]).all():
            return step.apply(values.slice(int(starts[0]), total), None)
        low = int(starts.min())
        window = values.slice(low, int((starts + sizes).max()) - low)
        return _pick(step, window, expand(starts - low, sizes), f"{field}[]")


@dataclass(frozen=True)
class Lists:
    """A list of any layout to `list` or `large_list`."""

    target: pa.DataType
    step: Step
    where: Where

    def apply(self, array: pa.Array, hidden: Mask | None, /) -> pa.Array:
        """The lists with their converted elements."""
        starts, sizes = spans(array)
        dead = either(nulls(array), hidden)
        if dead is not None:
            sizes = np.where(dead, 0, sizes)
        offsets = offset_type(sizes, self.target, self.where.field)
        child = _elements(self.step, array.values, starts, sizes, self.where.field)
        return build(self.target, len(array), validity(array), offsets, children=[child])


@dataclass(frozen=True)
class FixedLists:
    """A list of any layout to `fixed_size_list`, each list that can be seen of the one length."""

    target: pa.DataType
    step: Step
    where: Where

    def apply(self, array: pa.Array, hidden: Mask | None, /) -> pa.Array:
        """The lists with their converted elements; a null list is a null slot."""
        length = self.target.list_size
        starts, sizes = spans(array)
        dead = either(nulls(array), hidden)
        refuse(
            self.where,
            sizes != length,
            dead,
            lambda slot: f"a list of {sizes[slot]}, where each has {length}",
        )
        if pa.types.is_fixed_size_list(array.type):
            return self._same_shape(array, dead)
        field = self.where.field
        if dead is None:
            child = _elements(self.step, array.values, starts, sizes, field)
            return build(self.target, len(array), None, children=[child])
        rows = np.flatnonzero(~dead)
        with _owned(lambda lists: rows[lists]):
            child = _elements(self.step, array.values, starts[rows], sizes[rows], field)
        lists = build(self.target, len(rows), None, children=[child])
        return gather(lists, np.where(dead, -1, np.cumsum(~dead) - 1), field)

    def _same_shape(self, array: pa.Array, dead: Mask | None) -> pa.Array:
        length = self.target.list_size
        values = array.values.slice(array.offset * length, len(array) * length)
        hidden = None if dead is None else np.repeat(dead, length)
        with _owned(lambda elements: elements // length):
            child = self.step.apply(values, hidden)
        return build(self.target, len(array), validity(array), children=[child])
