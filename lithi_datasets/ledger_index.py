"""The item ids that a ledger expects, and how often each was seen: 12 bytes a row.

An id stands as a number of 64 bits: 62 bits of its hash, and its status in the two lowest. The
numbers lie sorted in one array that is a third longer than they are many, each at or after the
place that its size says (a table with linear probing whose entries happen to be sorted): a
look-up goes straight to that place and a few cells on, where a binary search of millions of
numbers would wait for memory two dozen times. One byte beside each cell counts, up to 255.

Two different ids of a dataset never share a number: where two hashes are equal, all are made
again with another seed, from the second on with a keyed cryptographic hash. That a foreign id has
the hash of an expected one happens once in 2^62 / rows.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lithi_datasets.errors import StateError, UsageError
from lithi_datasets.uniqueness import hash_ids, hash_spaced

__all__ = [
    "MOST_SEEN",
    "IdBatch",
    "IdIndex",
    "Tally",
    "build_index",
    "first_rows",
    "id_hashes",
    "id_keys",
    "spaced_keys",
]

Keys = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]
Times = npt.NDArray[np.uint8]
Hasher = Callable[[pa.Array, str, int], Keys]
"""(ids, content digest of the bundle, attempt) → keys, as `id_keys`."""

MOST_SEEN = 255
"""How far a count goes: an id that was seen more often counts as seen so often."""

_STATUS_BITS = np.uint64(3)
_EMPTY = np.uint64(2**64 - 1)  # its status bits are none of a status, and it sorts last
_CHUNK = 2**17
_BLOCK = 2**13  # ids that are looked up together: they stay in the processor's cache
_COMPARED = 64
_DENSE_STEPS = 3  # most keys are found by then; from there on only the others are looked at
_NAMED = 5


@dataclass(frozen=True)
class IdBatch:
    """Some rows of a dataset.

    Attributes:
        ids: `string[n]` or `large_string[n]`, no nulls.
        codes: `uint8[n]`, positions in `STATUSES`; None where each row counts as accepted.
    """

    ids: pa.Array
    codes: npt.NDArray[np.uint8] | None = None


@dataclass(frozen=True)
class Tally:
    """What an index adds up to.

    Attributes:
        expected: rows by position in `STATUSES`.
        seen: those of them that were seen, however often, by position in `STATUSES`.
        repeated: ids that were seen more than once.
    """

    expected: tuple[int, ...]
    seen: tuple[int, ...]
    repeated: int

    @property
    def missing(self) -> int:
        """Rows that were not seen."""
        return sum(self.expected) - sum(self.seen)


def id_hashes(ids: pa.Array, content_sha256: str) -> Keys:
    """The hashes of ids, `uint64[len(ids)]`; `id_keys` are 62 bits of them."""
    return hash_ids(ids, _seed(content_sha256))


def id_keys(ids: pa.Array, content_sha256: str, attempt: int) -> Keys:
    """The numbers of ids, `uint64[len(ids)]`, the two lowest bits 0; equal on every rank.

    Args:
        ids: `string` or `large_string`, no nulls.
        content_sha256: of the bundle: it seeds the hash.
        attempt: 0, or how often two ids of the dataset had one number.
    """
    if attempt == 0:
        return id_hashes(ids, content_sha256) & ~_STATUS_BITS
    # No bundle can be made so that its ids collide under this one too.
    key = hashlib.sha256(f"{content_sha256}:{attempt}".encode()).digest()
    digests = (
        hashlib.blake2b(item.encode(), digest_size=8, key=key).digest() for item in ids.to_pylist()
    )
    return np.frombuffer(b"".join(digests), dtype="<u8") & ~_STATUS_BITS


def spaced_keys(
    data: npt.NDArray[np.uint8], count: int, length: int, stride: int, content_sha256: str
) -> Keys:
    """The same numbers at attempt 0, of ids of one length at equal distances; see `hash_spaced`."""
    return hash_spaced(data, count, length, stride, _seed(content_sha256)) & ~_STATUS_BITS


def _seed(content_sha256: str) -> int:
    return int(content_sha256[:16], 16)


def build_index(
    batches: Callable[[], Iterable[IdBatch]],
    content_sha256: str,
    *,
    rows: int = 0,
    attempt: int = 0,
    hasher: Hasher = id_keys,
) -> IdIndex:
    """Index the ids of a dataset.

    Args:
        batches: gives all rows, anew each time it is called.
        content_sha256: of the bundle.
        rows: how many they are at most, where that is known: no array then has to grow.
        attempt: the seed to begin with.
        hasher: makes the numbers.

    Raises:
        UsageError: an id stands more than once in the dataset; up to five are named.
    """
    for number in itertools.count(attempt):
        cells = np.empty(rows, dtype=np.uint64)
        count = 0
        for batch in batches():
            keys = hasher(batch.ids, content_sha256, number)
            if batch.codes is not None:
                keys |= batch.codes
            if count + len(keys) > len(cells):
                cells.resize(max(count + len(keys), len(cells) * 3 // 2), refcheck=False)
            cells[count : count + len(keys)] = keys
            count += len(keys)
        cells[:count].sort()
        equal = _equal_neighbours(cells[:count])
        if not len(equal):
            return IdIndex(cells, count, number)
        del cells
        _refuse_repeated(
            batches(), equal, functools.partial(_hashed, hasher, content_sha256, number)
        )
    raise AssertionError  # itertools.count never ends


def _hashed(hasher: Hasher, content_sha256: str, attempt: int, ids: pa.Array) -> Keys:
    return hasher(ids, content_sha256, attempt)


def _equal_neighbours(ordered: Keys) -> Keys:
    found = [np.empty(0, dtype=np.uint64)]
    for start in range(0, len(ordered) - 1, _CHUNK):
        piece = ordered[start : start + _CHUNK + 1] & ~_STATUS_BITS
        found.append(piece[1:][piece[1:] == piece[:-1]])
    return np.unique(np.concatenate(found))


def _refuse_repeated(
    batches: Iterable[IdBatch], suspects: Keys, keys_of: Callable[[pa.Array], Keys]
) -> None:
    """Compare the ids behind some of the suspects.

    Raises:
        UsageError: they are one id, several times.
    """
    looked_at = suspects[:_COMPARED]
    times: dict[str, int] = {}
    for batch in batches:
        for row in np.flatnonzero(np.isin(keys_of(batch.ids), looked_at)).tolist():
            item = batch.ids[row].as_py()
            times[item] = times.get(item, 0) + 1
    repeated = [item for item, count in times.items() if count > 1]
    if repeated:
        more = ", …" if len(repeated) > _NAMED or len(suspects) > len(looked_at) else ""
        raise UsageError(
            "The dataset holds rows more than once, so reading each row once means nothing.",
            expected="each item id once in the ledger's dataset",
            found=", ".join(map(repr, repeated[:_NAMED])) + more,
            remedy="Give Ledger the dataset as it was loaded.",
        )


class IdIndex:
    """The expected ids and how often each was seen.

    Args:
        cells: `uint64[…]` whose first `rows` are the sorted numbers of different ids; it is taken
            over and changed.
        rows: how many they are.
        attempt: the seed that they were made with.
    """

    def __init__(self, cells: Keys, rows: int, attempt: int) -> None:
        self.rows, self.attempt = rows, attempt
        self._slots = max(1, rows + rows // 3)
        self._cells = _spread(cells, rows, self._slots)
        self._seen: Times = np.zeros(len(self._cells), dtype=np.uint8)
        self._digest: str | None = None

    @property
    def nbytes(self) -> int:
        """Memory that it holds, in bytes."""
        return self._cells.nbytes + self._seen.nbytes

    def add(self, keys: Keys) -> Keys:
        """Count ids as seen once more; returns the keys that are not of this index, sorted."""
        ordered = np.sort(keys)  # neighbours are then looked for close to each other
        places, known = self._find(ordered)
        foreign = ordered[:0]
        if not known.all():
            foreign, places = ordered[~known], places[known]
        if (places[1:] == places[:-1]).any():
            places, times = np.unique(places, return_counts=True)
            self._count(places, times)
        else:
            seen = self._seen[places]
            self._seen[places] = seen + (seen < MOST_SEEN)
        return foreign

    def times(self, keys: Keys) -> Times:
        """How often each id was seen: `uint8[n]`, 0 where it is not of this index."""
        places, known = self._find(keys)
        return np.where(known, self._seen[places], np.uint8(0))

    def statuses(self, keys: Keys) -> npt.NDArray[np.int8]:
        """The status of each id, as a position in `STATUSES`; -1 where it is not of this index."""
        places, known = self._find(keys)
        codes = (self._cells[places] & _STATUS_BITS).astype(np.int8)
        return np.where(known, codes, np.int8(-1))

    def tally(self) -> Tally:
        """Rows by status: how many there are, and how many were seen."""
        expected = self._expected_by_status
        repeated = int(np.count_nonzero(self._seen > 1))
        if np.count_nonzero(self._seen) == self.rows:
            return Tally(expected, expected, repeated)
        unseen = np.zeros(4, dtype=np.int64)
        for start in range(0, len(self._cells), _CHUNK):
            # An empty cell is unseen too; its status bits are of none of the three.
            cells = self._cells[start : start + _CHUNK][self._seen[start : start + _CHUNK] == 0]
            unseen += np.bincount((cells & _STATUS_BITS).astype(np.uint8), minlength=4)
        found = (count - lost for count, lost in zip(expected, unseen.tolist(), strict=False))
        return Tally(expected, tuple(found), repeated)

    @functools.cached_property
    def _expected_by_status(self) -> tuple[int, ...]:
        whole = np.zeros(4, dtype=np.int64)
        for cells, _ in self._chunks():
            whole += np.bincount((cells & _STATUS_BITS).astype(np.uint8), minlength=4)
        return tuple(whole[:3].tolist())

    def clear(self) -> None:
        """Nothing was seen."""
        self._seen[:] = 0

    def digest(self) -> str:
        """SHA-256 of the expected ids and their statuses, equal for the same rows in any order."""
        if self._digest is None:
            digest = hashlib.sha256(f"{self.attempt}:{self.rows}".encode())
            for cells, _ in self._chunks():
                digest.update(cells.astype("<u8", copy=False).data)
            self._digest = digest.hexdigest()
        return self._digest

    def entries(self) -> Keys:
        """The numbers of the expected ids with their statuses: `uint64[rows]`, sorted."""
        entries = np.empty(self.rows, dtype=np.uint64)
        end = 0
        for cells, _ in self._chunks():
            entries[end : end + len(cells)] = cells
            end += len(cells)
        return entries

    def counts(self) -> Times:
        """How often each was seen, in the order of `entries`: `uint8[rows]`."""
        return np.concatenate([self._seen[:0], *(seen for _, seen in self._chunks())])

    def add_counts(self, counts: Times) -> None:
        """Add the counts of an index of the same ids, in the order of `entries`: `uint8[rows]`."""
        end = 0
        for start in range(0, len(self._cells), _CHUNK):
            places = np.flatnonzero(self._cells[start : start + _CHUNK] != _EMPTY) + start
            self._count(places, counts[end : end + len(places)])
            end += len(places)

    def add_counts_of(self, entries: Keys, counts: Times) -> None:
        """Add counts of another index, each of whose ids is one of this; see `add_counts`."""
        for start in range(0, len(entries), _CHUNK):
            places, _ = self._find(entries[start : start + _CHUNK] & ~_STATUS_BITS)
            self._count(places, counts[start : start + _CHUNK])

    def united(self, entries: Keys) -> IdIndex:
        """This index and further ids; what was seen of this one stays counted.

        Raises:
            StateError: a row has another status there.
        """
        every = np.empty(self.rows + len(entries), dtype=np.uint64)
        every[: self.rows] = self.entries()
        every[self.rows :] = entries
        every.sort()
        new = np.ones(len(every), dtype=np.bool_)
        np.not_equal(every[1:], every[:-1], out=new[1:])
        if not new.all():
            every = every[new]
        if len(_equal_neighbours(every)):
            raise StateError(
                "The ledgers hold a row with two statuses.",
                remedy="Join ledgers of datasets that were loaded alike.",
            )
        union = IdIndex(every, len(every), self.attempt)
        for cells, seen in self._chunks():
            union.add_counts_of(cells, seen)
        return union

    def _count(self, places: Places, times: npt.NDArray[np.integer]) -> None:
        total = self._seen[places] + np.minimum(times, MOST_SEEN).astype(np.uint16)
        self._seen[places] = np.minimum(total, MOST_SEEN)

    def _find(self, keys: Keys) -> tuple[Places, npt.NDArray[np.bool_]]:
        """Where keys are (status bits 0), and whether they are there."""
        cells = self._cells
        places = np.empty(len(keys), dtype=np.int64)
        far = [places[:0]]
        for start in range(0, len(keys), _BLOCK):
            wanted = keys[start : start + _BLOCK]
            near = _ideal(wanted, self._slots)
            for _ in range(_DENSE_STEPS):
                near += cells.take(near) < wanted
            places[start : start + _BLOCK] = near
            far.append(np.flatnonzero(cells.take(near) < wanted) + start)
        on = np.concatenate(far)  # once for all blocks: they are few, and take many steps
        while len(on):
            places[on] += 1
            on = on[cells.take(places[on]) < keys[on]]
        # An empty cell differs from every key in more than a status would.
        return places, (cells.take(places) ^ keys) < _STATUS_BITS

    def _chunks(self) -> Iterator[tuple[Keys, Times]]:
        """The filled cells and their counts, in order, some at a time."""
        for start in range(0, len(self._cells), _CHUNK):
            cells = self._cells[start : start + _CHUNK]
            filled = cells != _EMPTY
            yield cells[filled], self._seen[start : start + _CHUNK][filled]


def _ideal(keys: Keys, slots: int) -> Places:
    """The first cell that a key may be in: its size as a share of all numbers."""
    upper = keys >> np.uint64(32)
    return ((upper * np.uint64(slots)) >> np.uint64(32)).astype(np.int64)


def _spread(cells: Keys, rows: int, slots: int) -> Keys:
    """Move the sorted keys to their cells, in place: at the one ideal for each, or the next free.

    A key's cell is then never before its number in the order, so moving them from the last to the
    first overwrites none that is still to be moved.
    """
    if not cells.flags.owndata:
        cells = cells.copy()
    starts = range(0, rows, _CHUNK)
    shifts = [0]
    for start in starts:
        number = np.arange(start, min(start + _CHUNK, rows))
        ahead = _ideal(cells[number[0] : number[-1] + 1], slots) - number
        shifts.append(max(shifts[-1], int(ahead.max())))
    size = max(slots, rows + shifts[-1]) + 1  # the last cell stays empty: it ends every look-up
    cells.resize(size, refcheck=False)
    end = size
    for start, shift in reversed(list(zip(starts, shifts[:-1], strict=True))):
        keys = cells[start : min(start + _CHUNK, rows)].copy()
        number = np.arange(start, start + len(keys))
        ahead = np.maximum(_ideal(keys, slots) - number, shift)
        places = np.maximum.accumulate(ahead) + number
        cells[start:end] = _EMPTY
        cells[places] = keys
        end = int(places[0])
    cells[:end] = _EMPTY
    return cells


def first_rows(
    batches: Iterable[IdBatch], wanted: Callable[[pa.Array], npt.NDArray[np.integer]], most: int
) -> Sequence[tuple[str, int]]:
    """(id, number) of the first `most` ids where `wanted` gives a number above 0, in row order."""
    found: dict[str, int] = {}  # where datasets overlap, a row stands in both
    for batch in batches:
        numbers = wanted(batch.ids)
        for row in np.flatnonzero(numbers).tolist():
            found[batch.ids[row].as_py()] = int(numbers[row])
            if len(found) == most:
                return list(found.items())
    return list(found.items())
