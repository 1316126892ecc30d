"""Item ids are unique over a whole bundle: found exactly, in bounded memory.

Each id is hashed to 64 bits (8 bytes a row, on disk). Equal ids have equal hashes, so only hashes
that stand twice are suspects; the ids behind a few of them are then compared byte for byte. The
hash is seeded at random for each run: a crafted bundle can't make suspects at will.
"""

from __future__ import annotations

import itertools
import secrets
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lithi_datasets.errors import DuplicateItemId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

__all__ = ["duplicate_hashes", "hash_ids", "hash_spaced", "new_seed", "refuse_duplicates"]

Hashes = npt.NDArray[np.uint64]
Located = tuple[str, int, pa.Array]
"""Part path, number of the array's first row in the part, ids."""

WINDOW_HASHES = 8 * 2**20
"""Hashes sorted at a time: 64 MiB."""

_NAMED_IDS = 5
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_FINAL = np.uint64(0xC2B2AE3D27D4EB4F)
_WORD = 8
_BLOCK = 2**14  # hashes that are made together: they stay in the processor's cache
_ALL_BITS = np.uint64(2**64 - 1)


def new_seed() -> int:
    """A fresh seed, in [0, 2^64)."""
    return secrets.randbits(64)


def hash_ids(ids: pa.Array, seed: int) -> Hashes:
    """Hash strings (`string` or `large_string`, no nulls) to `uint64[len(ids)]`, vectorised."""
    count = len(ids)
    if not count:
        return np.empty(0, dtype=np.uint64)
    kind = np.int64 if pa.types.is_large_string(ids.type) else np.int32
    _, offset_buffer, data_buffer = ids.buffers()
    # A buffer may be padded to any length.
    raw = np.frombuffer(offset_buffer, dtype=kind, count=ids.offset + count + 1)[ids.offset :]
    first, size = int(raw[0]), int(raw[-1]) - int(raw[0])
    data = np.frombuffer(data_buffer or b"", dtype=np.uint8)[first : first + size + _WORD]
    if len(data) < size + _WORD:
        data = np.append(data[:size], np.zeros(_WORD, dtype=np.uint8))
    lengths = np.diff(raw)
    if (lengths == lengths[0]).all():
        # Ids are mostly numbered with leading zeros, or digests: nothing has to be gathered.
        length = int(lengths[0])
        return hash_spaced(data, count, length, length, seed)
    starts = raw[:-1].astype(np.int64) - first
    return _hash_mixed_lengths(data, starts, lengths.astype(np.int64), seed)


def hash_spaced(
    data: npt.NDArray[np.uint8], count: int, length: int, stride: int, seed: int
) -> Hashes:
    """The same hashes, of `count` strings of one length that lie at equal distances.

    Args:
        data: begins with the first string, and goes on for 7 bytes after the last one at least.
        count: how many they are.
        length: of each, in bytes.
        stride: bytes from the beginning of one to that of the next.
        seed: in [0, 2^64).
    """
    hashes = np.full(count, np.uint64(seed) ^ np.uint64(length), dtype=np.uint64)
    for start in range(0, count, _BLOCK):
        state = hashes[start : start + _BLOCK]
        for at in range(0, length, _WORD):
            place = start * stride + at
            words: Hashes = np.ndarray(state.shape, "<u8", data, place, (stride,)).copy()
            if length - at < _WORD:
                words &= np.uint64(2 ** (8 * (length - at)) - 1)
            _mix(state, words)
        _finish(state)
    return hashes


def _hash_mixed_lengths(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    seed: int,
) -> Hashes:
    """The hashes of strings at `starts` in `data`, which goes on for 7 bytes after the last one."""
    # The 8 bytes at any offset as one number.
    words: Hashes = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
    hashes = np.uint64(seed) ^ lengths.astype(np.uint64)
    shortest = int(lengths.min())
    rows: slice | npt.NDArray[np.int64] = slice(None)
    for at in range(0, int(lengths.max()), 8):
        if at >= shortest:
            rows = np.flatnonzero(lengths) if isinstance(rows, slice) else rows
            rows = rows[lengths[rows] > at]
        found = words[starts[rows] + at]
        if at + 8 > shortest:
            beyond = np.maximum(at + 8 - lengths[rows], 0).astype(np.uint64)
            found &= _ALL_BITS >> (beyond * np.uint64(8))
        state = hashes[rows]
        _mix(state, found)
        hashes[rows] = state
    return _finish(hashes)


def _mix(state: Hashes, words: Hashes) -> None:
    state ^= words
    state *= _MULTIPLIER
    state ^= state >> np.uint64(29)


def _finish(state: Hashes) -> Hashes:
    state *= _FINAL
    state ^= state >> np.uint64(32)
    return state


def duplicate_hashes(files: Sequence[Path]) -> Hashes:
    """The hashes that stand more than once in `files` (raw little-endian uint64), sorted.

    Memory is bounded by `WINDOW_HASHES`: larger totals are looked through range by range.
    """
    arrays = [np.memmap(path, dtype="<u8", mode="r") for path in files if path.stat().st_size]
    total = sum(len(array) for array in arrays)
    ranges = max(1, -(-total // WINDOW_HASHES))
    edges = [(2**64 * index) // ranges for index in range(ranges + 1)]
    found = [
        _repeated(np.concatenate([np.empty(0, np.uint64), *_within(arrays, low, high - 1)]))
        for low, high in itertools.pairwise(edges)
    ]
    return np.concatenate(found)


def _within(arrays: Iterable[Hashes], low: int, high: int) -> Iterator[Hashes]:
    for array in arrays:
        for start in range(0, len(array), WINDOW_HASHES):
            piece = np.asarray(array[start : start + WINDOW_HASHES])
            yield piece[(piece >= np.uint64(low)) & (piece <= np.uint64(high))]


def _repeated(hashes: Hashes) -> Hashes:
    hashes.sort()
    repeats = hashes[1:][hashes[1:] == hashes[:-1]]
    return np.unique(repeats)


def refuse_duplicates(suspects: Hashes, seed: int, locate: Callable[[], Iterable[Located]]) -> None:
    """Compare the ids behind the suspects.

    Args:
        suspects: `uint64[k]`, sorted, from `duplicate_hashes`.
        seed: the seed they were hashed with.
        locate: reads all ids again, in row order.

    Raises:
        DuplicateItemId: naming up to five ids and where they are.
    """
    # A batch of suspects at a time: two different ids with one hash are possible, if hardly.
    for start in range(0, len(suspects), 64):
        places = _places(suspects[start : start + 64], seed, locate())
        repeated = {item: where for item, where in places.items() if len(where) > 1}
        if repeated:
            named = list(repeated.items())[:_NAMED_IDS]
            more = len(suspects) - len(named)
            raise DuplicateItemId(
                "Item ids stand more than once in the bundle.",
                path=named[0][1][0],
                expected="each item id once over the whole bundle",
                found="; ".join(f"{item!r} at {' and '.join(where)}" for item, where in named)
                + (f"; and {more} more ids" if more > 0 else ""),
            )


def _places(suspects: Hashes, seed: int, located: Iterable[Located]) -> dict[str, list[str]]:
    places: dict[str, list[str]] = {}
    for path, first_row, ids in located:
        rows = np.flatnonzero(np.isin(hash_ids(ids, seed), suspects))
        for row in rows.tolist():
            where = places.setdefault(ids[row].as_py(), [])
            if len(where) < _NAMED_IDS:
                where.append(f"{path} row {first_row + row}")
    return places
