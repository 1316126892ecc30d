"""Rows that were read in the order of the dataset, found by comparing and not by looking up.

A loader that doesn't shuffle reads consecutive rows, on several ranks with a stride from batch to
batch. Where the next batches have to come from is then known, and comparing their ids with those of
the dataset costs a fraction of hashing and finding each. Whatever does not fit is left to the
index, which takes ids in any order.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lithi_datasets.ledger_index import MOST_SEEN, IdBatch, Tally
from lithi_datasets.ledger_lines import Lines

__all__ = ["RowRuns"]

_SEARCHES = 8
"""How often in an epoch the dataset is searched for a batch that did not come from where it should.
An epoch on several ranks needs about four: the first batches, and the last, smaller ones."""

Pieces = Sequence[tuple[int, int]]
"""(first row, number of rows)."""


class _Rows(Protocol):
    @property
    def most_rows(self) -> int: ...

    def ids(self, pieces: Pieces) -> Iterator[pa.Array]: ...

    def find(self, item: str, start: int) -> int: ...

    def batches(self) -> Iterator[IdBatch]: ...


class RowRuns:
    """How often each row of a dataset was read: `seen`, `uint8[rows]`.

    Args:
        rows: the dataset.
    """

    def __init__(self, rows: _Rows) -> None:
        self._rows = rows
        self.seen: npt.NDArray[np.uint8] = np.zeros(rows.most_rows, dtype=np.uint8)
        self._by_status: tuple[int, ...] | None = None
        self._shuffled = False
        self.clear()

    def clear(self) -> None:
        """Nothing was read; the next batch should be of the first row."""
        self.seen[:] = 0
        self._next, self._last, self._stride = 0, -1, 0
        # Where an epoch was shuffled, the next one will hardly be worth a search.
        self._searches = 0 if self._shuffled else _SEARCHES

    def take_all(self, lines: Lines) -> bool:
        """Count batches if all of them are rows in the dataset's order; else none of them is."""
        due = self._due(lines.sizes)
        if len(due) < len(lines.sizes) or not lines.same(self._rows.ids(_merged(due))):
            return False
        self._accept(due)
        return True

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
        equal = _equal_ids(ids.slice(first), self._rows.ids(_merged(due)))
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
        for batch in self._rows.batches():
            count = len(batch.ids)
            codes = np.zeros(count, dtype=np.uint8) if batch.codes is None else batch.codes
            seen = self.seen[start : start + count] > 0
            expected += np.bincount(codes, minlength=3)
            found += np.bincount(codes[seen], minlength=3)
            start += count
        self._by_status = tuple(expected.tolist())
        return Tally(self._by_status, tuple(found.tolist()), repeated)


def _merged(pieces: Pieces) -> list[tuple[int, int]]:
    """The same rows in as few pieces as can be."""
    merged: list[tuple[int, int]] = []
    for start, count in pieces:
        if merged and sum(merged[-1]) == start:
            merged[-1] = (merged[-1][0], merged[-1][1] + count)
        else:
            merged.append((start, count))
    return merged


def _equal_ids(ids: pa.Array, expected: Iterable[pa.Array]) -> int:
    """How many of the first ids are those that are expected."""
    equal = 0
    for chunk in expected:
        mine, other = ids.slice(equal, len(chunk)), chunk
        if mine.type != other.type:
            mine, other = mine.cast(pa.large_string()), other.cast(pa.large_string())
        if not mine.equals(other):
            return equal + int(pc.index(pc.equal(mine, other), False).as_py())
        equal += len(other)
    return equal
