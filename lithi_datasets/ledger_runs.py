"""Rows that were read from where they can be expected, found by comparing and not by looking up.

A loader that doesn't shuffle reads consecutive rows, on several ranks with a stride from batch to
batch. Where the next batches have to come from is then known, and comparing their ids with those of
the dataset costs a fraction of hashing and finding each. A shuffling loader of this package says
which rows a batch is of; that is not believed, but the hashes of the ids are compared with those of
the dataset there, for all rows of a window of the order at once by their sum. Whatever does not fit
is left to the index, which takes ids in any order.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lithi_datasets.ledger_index import MOST_SEEN, Tally
from lithi_datasets.reading.order import RUN_ROWS

__all__ = ["RowRuns", "same_ids"]

_SEARCHES = 8
"""How often in an epoch the dataset is searched for a batch that did not come from where it should.
An epoch on several ranks needs about four: the first batches, and the last, smaller ones."""

Keys = npt.NDArray[np.uint64]
Positions = npt.NDArray[np.int64]

KeysOf = Callable[[pa.Array], Keys]

Pieces = Sequence[tuple[int, int]]
"""(first row, number of rows)."""


class _Batches(Protocol):
    @property
    def sizes(self) -> Sequence[int]: ...

    def same(self, expected: Iterable[pa.Array]) -> bool: ...


class _Rows(Protocol):
    @property
    def most_rows(self) -> int: ...

    def ids(self, pieces: Pieces) -> Iterator[pa.Array]: ...

    def find(self, item: str, start: int) -> int: ...

    def codes(self) -> Iterator[npt.NDArray[np.uint8]]: ...


class RowRuns:
    """How often each row of a dataset was read: `seen`, `uint8[rows]`.

    Args:
        rows: the dataset.
    """

    def __init__(self, rows: _Rows) -> None:
        self._rows = rows
        count = rows.most_rows
        self._blocks = np.zeros((-(-count // RUN_ROWS), RUN_ROWS), dtype=np.uint8)
        self.seen: npt.NDArray[np.uint8] = self._blocks.ravel()[:count]  # the same memory
        self._keys: Keys | None = None
        self._block_sums: Keys | None = None
        self._by_status: tuple[int, ...] | None = None
        self._shuffled = False
        self.clear()

    def clear(self) -> None:
        """Nothing was read; the next batch should be of the first row."""
        self.seen[:] = 0
        self._next, self._last, self._stride = 0, -1, 0
        # Where an epoch was shuffled, the next one will hardly be worth a search.
        self._searches = 0 if self._shuffled else _SEARCHES

    def take_all(self, batches: _Batches) -> bool:
        """Count batches if all of them are rows in the dataset's order; else none of them is."""
        due = self._due(batches.sizes)
        if len(due) < len(batches.sizes) or not batches.same(self._rows.ids(_merged(due))):
            return False
        self._accept(due)
        return True

    def take_blocks(self, blocks: Positions, keys: Keys, keys_of: KeysOf) -> bool:
        """Count ids if they are those of some runs of rows, in any order; else none of them is.

        They are if their hashes have the same sum: any other ids have it once in 2^64.

        Args:
            blocks: numbers of the runs: each has 32 rows, from 32 times its number on.
            keys: of the ids: hashes.
            keys_of: the hashes of any ids.
        """
        last = len(self._blocks) - 1
        if not len(blocks) or blocks[0] < 0 or blocks[-1] > last:
            return False
        short = self._blocks.size - len(self.seen) if blocks[-1] == last else 0
        if len(blocks) * RUN_ROWS - short != len(keys) or (blocks[1:] <= blocks[:-1]).any():
            return False
        if self._block_sums is None:
            every = np.zeros(self._blocks.shape, dtype=np.uint64)
            self._write_keys(every.ravel()[: len(self.seen)], keys_of)
            self._block_sums = every.sum(axis=1)
        if self._block_sums[blocks].sum() != keys.sum():
            return False
        _count_up(self._blocks, blocks)
        return True

    def take_at(self, positions: Positions, keys: Keys, keys_of: KeysOf) -> bool:
        """Count ids if each is that of the row at its position; else none of them is.

        Args:
            positions: of rows, in any order, also twice.
            keys: of the ids: hashes.
            keys_of: the hashes of any ids.
        """
        # As unsigned numbers those below 0 are too large as well.
        if not len(positions) or int(positions.view(np.uint64).max()) >= len(self.seen):
            return False
        if self._keys is None:
            self._keys = np.empty(len(self.seen), dtype=np.uint64)
            self._write_keys(self._keys, keys_of)
        if (self._keys[positions] != keys).any():
            return False
        places, times = np.unique(positions, return_counts=True)
        if len(places) == len(positions):
            _count_up(self.seen, places)
        else:
            total = self.seen[places] + np.minimum(times, MOST_SEEN).astype(np.uint16)
            self.seen[places] = np.minimum(total, MOST_SEEN)
        return True

    def _write_keys(self, keys: Keys, keys_of: KeysOf) -> None:
        """Write the hashes of all ids, in row order."""
        end = 0
        for ids in self._rows.ids([(0, len(keys))] if len(keys) else []):
            keys[end : end + len(ids)] = keys_of(ids)
            end += len(ids)

    def forget_hashes(self) -> None:
        """Give the memory of the hashes back; they are made again where they are needed."""
        self._keys = self._block_sums = None

    def take(self, ids: pa.Array, sizes: Sequence[int]) -> list[tuple[int, int]]:
        """Count batches that are rows in the dataset's order.

        Args:
            ids: of some batches.
            sizes: how many each batch has, at least 1.

        Returns:
            (first, number) in `ids` of the batches that were not counted.
        """
        firsts = [0, *itertools.accumulate(sizes)]
        left: list[int] = []
        at = 0
        while at < len(sizes):
            counted = self._match(ids, firsts[at], sizes[at:])
            if not counted:
                if not self._search(ids[firsts[at]].as_py()):
                    left += range(at, len(sizes))
                    break
                counted = self._match(ids, firsts[at], sizes[at:])
            if not counted:
                self._searches, self._shuffled = 0, True  # others won't be in order either
                left.append(at)
            at += counted or 1
        return [(firsts[at], sizes[at]) for at in left]

    def _match(self, ids: pa.Array, first: int, sizes: Sequence[int]) -> int:
        """Count as many of the first batches as come from where they should; how many they are."""
        due = self._due(sizes)
        equal = same_ids(ids.slice(first), self._rows.ids(_merged(due)))
        counted = bisect.bisect_right(list(itertools.accumulate(rows for _, rows in due)), equal)
        self._accept(due[:counted])
        return counted

    def _accept(self, due: Pieces) -> None:
        for start, rows in _merged(due):
            seen = self.seen[start : start + rows]
            seen += seen < MOST_SEEN
        if due:
            self._last, rows = due[-1]
            self._next = self._last + (self._stride or rows)

    def _due(self, sizes: Sequence[int]) -> list[tuple[int, int]]:
        """(first row, number of rows) of the batches that should come next, up to the last row."""
        due: list[tuple[int, int]] = []
        start = self._next
        for size in sizes:
            if start + size > len(self.seen):
                break
            due.append((start, size))
            start += self._stride or size
        return due

    def _search(self, item: str) -> bool:
        """Find where a batch begins; the way from the last one is the stride from now on."""
        if not self._searches:
            return False
        self._searches -= 1
        row = self._rows.find(item, max(0, self._last))
        if row < 0 and self._last > 0:
            row = self._rows.find(item, 0)
        if row < 0:
            return False
        self._stride = max(0, row - self._last) if self._last >= 0 else 0
        self._next = row
        return True

    def add(self, counts: npt.NDArray[np.uint8]) -> None:
        """Add how often each row was read elsewhere: `uint8[rows]`."""
        total = self.seen + counts.astype(np.uint16)
        self.seen[:] = np.minimum(total, MOST_SEEN)

    def tally(self) -> Tally:
        """Rows by status: how many there are, and how many were seen."""
        repeated = int(np.count_nonzero(self.seen > 1))
        if self._by_status is not None and self.seen.all():
            return Tally(self._by_status, self._by_status, repeated)
        expected = np.zeros(3, dtype=np.int64)
        found = np.zeros(3, dtype=np.int64)
        start = 0
        for codes in self._rows.codes():
            seen = self.seen[start : start + len(codes)] > 0
            counts = _by_code(codes)
            expected += counts
            found += counts if seen.all() else _by_code(codes[seen])
            start += len(codes)
        self._by_status = tuple(expected.tolist())
        return Tally(self._by_status, tuple(found.tolist()), repeated)


def _count_up(seen: npt.NDArray[np.uint8], places: Positions) -> None:
    """Count what is at some places, none twice, as seen once more."""
    some = seen[places]
    some += some < MOST_SEEN
    seen[places] = some


def _by_code(codes: npt.NDArray[np.uint8]) -> list[int]:
    return [int(np.count_nonzero(codes == code)) for code in range(3)]


def _merged(pieces: Pieces) -> list[tuple[int, int]]:
    """The same rows in as few pieces as can be."""
    merged: list[tuple[int, int]] = []
    first = end = 0
    for start, count in pieces:
        if start != end:
            merged.append((first, end - first))
            first = start
        end = start + count
    return [piece for piece in (*merged, (first, end - first)) if piece[1]]


def same_ids(ids: pa.Array, expected: Iterable[pa.Array]) -> int:
    """How many of the first ids are those that are expected."""
    equal = 0
    for chunk in expected:
        mine, other = ids.slice(equal, len(chunk)), chunk
        if _is_same(mine, other):
            equal += len(other)
            continue
        if mine.type != other.type:
            mine, other = mine.cast(pa.large_string()), other.cast(pa.large_string())
        if not mine.equals(other):
            return equal + int(pc.index(pc.equal(mine, other), False).as_py())
        equal += len(other)
    return equal


def _is_same(one: pa.Array, other: pa.Array) -> bool:
    """Whether two arrays are the same rows of the same memory: then nothing has to be compared."""
    if one.type != other.type or one.offset != other.offset or len(one) != len(other):
        return False
    places = [[part and part.address for part in array.buffers()] for array in (one, other)]
    return places[0] == places[1]
