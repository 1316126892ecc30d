"""Rows that were read in the order of the dataset, found by comparing and not by looking up.

A loader that doesn't shuffle reads consecutive rows, on several ranks with a stride from batch to
batch. Where the next batches have to come from is then known, and comparing their ids with those of
the dataset costs a fraction of hashing and finding each. Whatever does not fit is left to the
index, which takes ids in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lithi_datasets.ledger_index import MOST_SEEN, IdBatch, Tally

__all__ = ["RowRuns"]

_SEARCHES = 8
"""How often in an epoch the dataset is searched for a batch that did not come from where it should.
An epoch on several ranks needs about four: the first batches, and the last, smaller ones."""

Pieces = Sequence[tuple[int, int]]
"""(first row, number of rows)."""


class _Rows(Protocol):
    @property
    def most_rows(self) -> int: ...

    def ids(self, pieces: Pieces) -> pa.Array: ...

    def find(self, item: bytes, start: int) -> int: ...

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
        self.clear()

    def clear(self) -> None:
        """Nothing was read; the next batch should be of the first row."""
        self.seen[:] = 0
        self._next, self._last, self._stride = 0, -1, 0
        self._searches = _SEARCHES

    def take(self, texts: Sequence[bytes], sizes: Sequence[int]) -> list[int]:
        """Count batches that are rows in the dataset's order.

        Args:
            texts: the ids of each batch, joined by line feeds.
            sizes: how many they are, at least 1.

        Returns:
            The positions of the batches that were not counted.
        """
        left: list[int] = []
        at = 0
        while at < len(texts):
            at += self._match(texts[at:], sizes[at:])
            if at == len(texts):
                break
            if not self._search(texts[at]):
                return [*left, *range(at, len(texts))]
            if not self._match(texts[at : at + 1], sizes[at : at + 1]):
                left.append(at)
                self._searches = 0  # not consecutive rows: neither will others be
            at += 1
        return left

    def _match(self, texts: Sequence[bytes], sizes: Sequence[int]) -> int:
        """Count as many of the first batches as come from where they should."""
        pieces = self._expected(sizes)
        if not pieces:
            return 0
        count = len(pieces)
        accepted = _equal_texts(texts[:count], sizes[:count], self._rows.ids(_merged(pieces)))
        if accepted:
            for start, count in _merged(pieces[:accepted]):
                seen = self.seen[start : start + count]
                seen += seen < MOST_SEEN
            start, count = pieces[accepted - 1]
            self._last, self._next = start, start + (self._stride or count)
        return accepted

    def _expected(self, sizes: Iterable[int]) -> list[tuple[int, int]]:
        pieces: list[tuple[int, int]] = []
        start = self._next
        for size in sizes:
            if start + size > len(self.seen):
                break
            pieces.append((start, size))
            start += self._stride or size
        return pieces

    def _search(self, text: bytes) -> bool:
        """Find where a batch begins; the way from the last one is the stride from now on."""
        if not self._searches:
            return False
        self._searches -= 1
        item = text.partition(b"\n")[0]
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


def _equal_texts(texts: Sequence[bytes], sizes: Sequence[int], expected: pa.Array) -> int:
    """How many of the first texts, joined by line feeds, are the ids that are expected."""
    lines = b"\n".join(texts)
    row = _first_other(lines, expected)
    if row is None:
        joined = pa.LargeListArray.from_arrays(pa.array([0, len(expected)], pa.int64()), expected)
        other = pc.binary_join(joined, pa.scalar("\n", expected.type))[0].as_buffer()
        row = _first_other_line(np.frombuffer(lines, np.uint8), np.frombuffer(other, np.uint8))
    ends = np.cumsum(sizes)
    return int(np.searchsorted(ends, row, side="right"))


def _first_other(lines: bytes, expected: pa.Array) -> int | None:
    """The first id that is another one, where all are of one length; None where they are not."""
    count = len(expected)
    kind = np.int64 if pa.types.is_large_string(expected.type) else np.int32
    _, offset_buffer, data = expected.buffers()
    offsets = np.frombuffer(offset_buffer, dtype=kind)[expected.offset :][: count + 1]
    length = int(offsets[1] - offsets[0])
    mine = np.frombuffer(lines, dtype=np.uint8)
    if (
        length == 0
        or len(mine) != count * (length + 1) - 1
        or not (np.diff(offsets) == length).all()
        or not (mine[length :: length + 1] == ord("\n")).all()
    ):
        return None
    # As opaque items they are copied several times faster than byte by byte.
    items = np.ndarray((count,), f"V{length}", lines, strides=(length + 1,)).copy()
    packed = items.view(np.uint8)
    theirs = np.frombuffer(data, dtype=np.uint8)[offsets[0] : offsets[-1]]
    differs = packed != theirs
    return int(differs.argmax()) // length if differs.any() else count


def _first_other_line(mine: npt.NDArray[np.uint8], theirs: npt.NDArray[np.uint8]) -> int:
    """The number of the first line that differs; that of all lines where none does."""
    length = min(len(mine), len(theirs))
    differs = np.flatnonzero(mine[:length] != theirs[:length])
    if not len(differs) and len(mine) == len(theirs):
        return int(np.count_nonzero(mine == ord("\n"))) + 1
    equal = int(differs[0]) if len(differs) else length
    return int(np.count_nonzero(mine[:equal] == ord("\n")))
