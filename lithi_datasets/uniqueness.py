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

__all__ = ["duplicate_hashes", "hash_ids", "new_seed", "refuse_duplicates"]

Hashes = npt.NDArray[np.uint64]
Located = tuple[str, int, pa.Array]
"""Part path, number of the array's first row in the part, ids."""

WINDOW_HASHES = 8 * 2**20
"""Hashes sorted at a time: 64 MiB."""

_NAMED_IDS = 5
_GATHER_BYTES = 4 * 2**20
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_FINAL = np.uint64(0xC2B2AE3D27D4EB4F)


def new_seed() -> int:
    """A fresh seed, in [0, 2^64)."""
    return secrets.randbits(64)


def hash_ids(ids: pa.Array, seed: int) -> Hashes:
    """Hash strings (`string` or `large_string`, no nulls) to `uint64[len(ids)]`, vectorised."""
    count = len(ids)
    hashes = np.empty(count, dtype=np.uint64)
    if not count:
        return hashes
    wide = pa.types.is_large_string(ids.type)
    _, offset_buffer, data_buffer = ids.buffers()
    raw = np.frombuffer(offset_buffer, dtype=np.int64 if wide else np.int32)
    offsets: npt.NDArray[np.int64] = raw[ids.offset : ids.offset + count + 1].astype(np.int64)
    data = np.frombuffer(data_buffer or b"", dtype=np.uint8)
    lengths = np.diff(offsets)
    order: npt.NDArray[np.int64] = np.argsort(lengths, kind="stable")
    bounds = np.flatnonzero(np.diff(lengths[order])) + 1
    groups: list[npt.NDArray[np.int64]] = np.split(order, bounds)
    for group in groups:
        length = int(lengths[group[0]])
        step = max(1, _GATHER_BYTES // (8 * max(1, length)))
        for start in range(0, len(group), step):
            rows = group[start : start + step]
            hashes[rows] = _hash_equal_lengths(data, offsets[rows], length, seed)
    return hashes


def _hash_equal_lengths(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], length: int, seed: int
) -> Hashes:
    words = -(-length // 8)
    block = np.zeros((len(starts), words * 8), dtype=np.uint8)
    block[:, :length] = data[starts[:, None] + np.arange(length)]
    state = np.full(len(starts), np.uint64(seed) ^ np.uint64(length), dtype=np.uint64)
    for column in block.view("<u8").T:
        state = (state ^ column) * _MULTIPLIER
        state ^= state >> np.uint64(29)
    state = state * _FINAL
    return state ^ (state >> np.uint64(32))


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
