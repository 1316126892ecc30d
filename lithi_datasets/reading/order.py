"""In which order the rows of an epoch come: P, a permutation of the rows, never held whole.

Shuffled, P is made in two steps, each a function of (key, rows, seed, epoch) alone:

1. The rows are cut into runs of `RUN_ROWS` consecutive rows (the last run may be shorter). There
   are K windows, as many as leave each at least `WINDOW_RUNS` runs. Each K consecutive runs go to
   the K windows, one to each, at random: a window has runs from all over the dataset, one from each
   512th of it.
2. Inside a window P goes layer by layer: each layer takes one row of each run, which one and in
   which order being random, and each row once. So any layer of 512 rows comes from 512 places of
   the dataset, where a plain shuffle of the window would hit some runs twice and miss others.

A reader fetches a window as slices of consecutive rows, joins them once and takes from them: one
slice for 32 rows, where a full permutation needs one for each row. Up to 32,736 rows (1,023 runs)
there is one window, and P is a plain full permutation.

Randomness is SHA-256 for the seeds and SplitMix64 for the numbers (Steele, Lea, Flood, 2014),
written out here: `numpy.random` promises its raw bits, but neither `permutation` nor `shuffle`,
from one version to the next. Only integer arithmetic and the sorting of different keys are asked of
numpy, so P is the same on every platform, hash seed and version. `ORDER_FORMAT` changes whenever P
does.
"""

from __future__ import annotations

import hashlib
import json
import operator
from dataclasses import KW_ONLY, dataclass, fields
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lithi_datasets.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "ORDER_FORMAT",
    "RUN_ROWS",
    "WINDOW_RUNS",
    "EpochOrder",
    "Piece",
    "runs_of",
    "shuffled_parts",
    "whole",
]

Rows = npt.NDArray[np.int64]
Runs = tuple[tuple[int, int], ...]
"""(first row, number of rows) of slices of consecutive rows, ascending."""

ORDER_FORMAT = 1
"""Raised whenever the same key, rows, seed and epoch would give another order than before."""

RUN_ROWS = 32
"""Rows of a run. With runs of 16, a row costs twice as much to fetch and join; with runs of 64, all
of reading gets no more than a tenth faster."""

WINDOW_RUNS = 512
"""Runs that a window mixes at least: 16,384 rows, which are 6 MiB where a row has 64 floats and
some strings."""

_KEPT_WINDOWS = 2
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True, eq=False)
class Piece:
    """Consecutive rows of P, as something to fetch and something to take from it.

    Join the rows of `runs` in the order given; `take` then picks the rows of the piece out of them.

    Attributes:
        runs: (first row, number of rows) of what to fetch, ascending, no row twice.
        take: `int64[n]` positions in the joined rows, not to be written to; None where those rows
            are the piece as they are.
        window: number of the window that the piece lies in, or None. Pieces of one order with the
            same number have the same `runs`.
        first: position of the piece's first row in its window.
        blocks: of a whole window, which runs it has: `int64[k]`, ascending, of rows from 32 times
            each number on; otherwise None.
    """

    runs: Runs
    take: Rows | None
    _: KW_ONLY
    window: int | None = None
    first: int = 0
    blocks: Rows | None = None

    @property
    def rows(self) -> int:
        """How many rows of P the piece is."""
        return sum(count for _, count in self.runs) if self.take is None else len(self.take)

    @cached_property
    def numbers(self) -> Rows:
        """Those rows, by their number in the dataset: `int64[rows]`."""
        fetched = _expand(self.runs)
        return fetched if self.take is None else fetched.take(self.take)


@dataclass(frozen=True)
class EpochOrder:
    """The order P of one epoch.

    Nothing of the size of the dataset is held: 8 bytes for each run of 32 rows, once a shuffled row
    is asked for, and the last two windows. A pickle holds the arguments alone.

    Args:
        key: which data: the bundle's digest and the fingerprint of the view.
        rows: number of rows N.
        shuffle: False for the rows as they are; `seed` and `epoch` then change nothing.
        seed: any integer; None only where `shuffle` is False.
        epoch: at least 0; each one has an order of its own.

    Raises:
        UsageError: an argument of another kind or out of range, or shuffling without a seed.
    """

    key: str
    rows: int
    _: KW_ONLY
    shuffle: bool
    seed: int | None
    epoch: int

    def __post_init__(self) -> None:
        if not isinstance(self.key, str) or not isinstance(self.shuffle, bool):
            raise UsageError(
                "An order takes key= as text and shuffle= as True or False.",
                found=f"key={self.key!r}, shuffle={self.shuffle!r}",
            )
        if self.shuffle and self.seed is None:
            raise UsageError(
                "shuffle=True needs a seed: ranks that shuffle each in their own way read some rows"
                " twice and others never.",
                expected="seed=<an integer, the same on every rank>",
                found="seed=None",
            )
        # numpy's integers are no JSON, which the seeds are derived from.
        object.__setattr__(self, "rows", whole("rows", self.rows, least=0))
        object.__setattr__(self, "epoch", whole("epoch", self.epoch, least=0))
        if self.seed is not None:
            object.__setattr__(self, "seed", whole("seed", self.seed))

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: self.__dict__[field.name] for field in fields(self)}

    def indices(self, start: int, stop: int) -> Rows:
        """P[start:stop], as a new `int64[stop - start]`.

        Raises:
            UsageError: not 0 ≤ start ≤ stop ≤ rows.
        """
        start, stop = self._range(start, stop)
        if not self.shuffle:
            return np.arange(start, stop, dtype=np.int64)
        found = [window.rows[part] for window, part in self._cut(start, stop)]
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def windows(self, start: int, stop: int) -> Iterator[Piece]:
        """P[start:stop] in pieces of one window each, every piece with all the runs of its window.

        For a reader that keeps a window for the next steps. It is fastest to fetch
        `window(number)`, take from it once, and cut the pieces out of that:
        `.slice(piece.first, piece.rows)`.
        Without shuffling the whole range is one piece.

        Raises:
            UsageError: not 0 ≤ start ≤ stop ≤ rows.
        """
        start, stop = self._range(start, stop)
        if not self.shuffle:
            return iter([Piece(((start, stop - start),), None)] if start < stop else [])
        return (
            Piece(window.runs, window.take[part], window=window.number, first=part.start)
            for window, part in self._cut(start, stop)
        )

    def window(self, number: int) -> Piece:
        """The whole window `number`, as named by `Piece.window`.

        Raises:
            UsageError: there is no such window; without shuffling there is none.
        """
        number, count = whole("number", number), self._windows if self.shuffle and self.rows else 0
        if not 0 <= number < count:
            raise UsageError("There is no such window.", expected=f"in [0, {count})", found=number)
        window = self._window(number)
        return Piece(window.runs, window.take, window=number, blocks=window.blocks)

    def gather(self, start: int, stop: int, *, gap: int = RUN_ROWS) -> Piece:
        """P[start:stop] as one piece that fetches little more than it needs; see `runs_of`.

        For a reader that would use only a small part of each window (many ranks), or whose rows are
        so wide that a window of them is too much to hold.

        Raises:
            UsageError: not 0 ≤ start ≤ stop ≤ rows, or gap below 1.
        """
        start, stop = self._range(start, stop)
        if not self.shuffle:
            return Piece(((start, stop - start),) if start < stop else (), None)
        return Piece(*runs_of(self.indices(start, stop), gap=gap))

    def _range(self, start: int, stop: int) -> tuple[int, int]:
        first, end = whole("start", start), whole("stop", stop)
        if not 0 <= first <= end <= self.rows:
            raise UsageError(
                "The order has no such rows.",
                expected=f"0 <= start <= stop <= {self.rows}",
                found=f"start={first}, stop={end}",
            )
        return first, end

    def _cut(self, start: int, stop: int) -> Iterator[tuple[_Window, slice]]:
        while start < stop:
            window = self._window(self._number(start))
            end = min(stop, window.start + len(window.take))
            yield window, slice(start - window.start, end - window.start)
            start = end

    @property
    def _runs(self) -> int:
        return -(-self.rows // RUN_ROWS)

    @property
    def _windows(self) -> int:
        # Rounded down, and the runs shared out evenly: a last window of few runs would mix badly.
        return max(1, self._runs // WINDOW_RUNS)

    @cached_property
    def _table(self) -> Rows:
        """`int64[strata, windows]`: the run of each stratum that each window has.

        Numbers from `_runs` on stand for no run; they are in the last line only.
        """
        strata = -(-self._runs // self._windows)
        table = _permutations(self._derive("runs"), strata, self._windows)
        table += np.arange(strata)[:, None] * self._windows
        return table

    @cached_property
    def _starts(self) -> Rows:
        """`int64[windows + 1]`: the first row in P of each window, and N."""
        strata = len(self._table)
        last = np.clip(self.rows - self._table[-1] * RUN_ROWS, 0, RUN_ROWS)
        return np.concatenate([[0], np.cumsum((strata - 1) * RUN_ROWS + last)])

    @cached_property
    def _recent(self) -> dict[int, _Window]:
        return {}

    def _derive(self, purpose: str | int) -> int:
        text = json.dumps([ORDER_FORMAT, self.key, self.rows, self.seed, self.epoch, purpose])
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")

    def _number(self, row: int) -> int:
        """The window that holds row `row` of P."""
        if self._windows == 1:
            return 0
        return int(np.searchsorted(self._starts, row, side="right")) - 1

    def _window(self, number: int) -> _Window:
        found = self._recent.get(number)
        if found is None:
            found = self._make_window(number)
            found.take.setflags(write=False)  # pieces are views of it
            while len(self._recent) >= _KEPT_WINDOWS:
                self._recent.pop(next(iter(self._recent)))
            self._recent[number] = found
        return found

    def _make_window(self, number: int) -> _Window:
        seed = self._derive(number)
        if self._windows == 1:
            every = np.arange(self._runs)
            return _Window(0, 0, ((0, self.rows),), _permutation(seed, self.rows), every)
        firsts = self._table[:, number] * RUN_ROWS
        firsts = firsts[firsts < self.rows]
        counts = np.minimum(RUN_ROWS, self.rows - firsts)
        start = int(self._starts[number])
        blocks = firsts // RUN_ROWS
        return _Window(number, start, _joined(firsts, counts), _layers(seed, counts), blocks)


@dataclass(frozen=True, eq=False)
class _Window:
    """One window: number, first row in P, runs, P there as positions in the runs, and blocks."""

    number: int
    start: int
    runs: Runs
    take: Rows
    blocks: Rows

    @cached_property
    def rows(self) -> Rows:
        """P there, as row numbers."""
        return _expand(self.runs)[self.take]


def runs_of(rows: npt.ArrayLike, *, gap: int = RUN_ROWS) -> tuple[Runs, Rows]:
    """What to fetch for rows in any order, and how to take them from it.

    Serves rows of any origin, such as the index map that `select` and `filter` leave.

    Args:
        rows: row numbers, `int[n]`, in any order, also twice.
        gap: rows at most this far apart are fetched in one slice, with what lies between them.

    Returns:
        Slices, ascending, no row in two of them; and `int64[n]` positions in their joined rows.

    Raises:
        UsageError: gap below 1.
    """
    gap = whole("gap", gap, least=1)
    wanted = np.asarray(rows, dtype=np.int64)
    if not len(wanted):
        return (), np.empty(0, np.int64)
    ordered = np.sort(wanted)
    cuts = np.flatnonzero(np.diff(ordered) > gap)
    firsts = ordered[np.concatenate([[0], cuts + 1])]
    counts = ordered[np.concatenate([cuts, [len(ordered) - 1]])] - firsts + 1
    before = np.cumsum(counts) - counts
    run = np.searchsorted(firsts, wanted, side="right") - 1
    return _pairs(firsts, counts), wanted - firsts[run] + before[run]


def shuffled_parts(parts: Iterable[int], *, key: str, seed: int, epoch: int) -> tuple[int, ...]:
    """The parts of a stream in the order of an epoch.

    All orders are cut from one permutation of all parts: a worker's own order does not depend on
    which other parts it has. Who owns a part never depends on the epoch (`plan.assign_parts`).

    Args:
        parts: part indexes, each once.
        key: which data, as in `EpochOrder`.
        seed: any integer.
        epoch: at least 0.

    Raises:
        UsageError: an argument of another kind or out of range.
    """
    seed, epoch = whole("seed", seed), whole("epoch", epoch, least=0)

    def rank(part: int) -> tuple[bytes, int]:
        text = json.dumps([ORDER_FORMAT, key, "parts", seed, epoch, part])
        return hashlib.sha256(text.encode()).digest(), part

    return tuple(sorted((whole("part", part, least=0) for part in parts), key=rank))


def whole(name: str, value: object, *, least: int | None = None) -> int:
    """`value` as an int.

    Raises:
        UsageError: it is no integer (True and False are none), or below `least`.
    """
    expected = "an integer" if least is None else f"an integer of at least {least}"
    try:
        # operator.index takes what is exactly an integer, numpy's included, and no float or text.
        found = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        found = None
    if found is None or (least is not None and found < least):
        raise UsageError(
            f"{name}= is out of range or no integer.", expected=expected, found=repr(value)
        )
    return found


def _splitmix(seed: int, count: int) -> npt.NDArray[np.uint64]:
    """The first `count` numbers of SplitMix64; in place, because `count` may be many millions."""
    numbers = np.arange(1, count + 1, dtype=np.uint64)
    numbers *= _GOLDEN
    numbers += np.uint64(seed)
    numbers ^= numbers >> np.uint64(30)
    numbers *= _MIX_1
    numbers ^= numbers >> np.uint64(27)
    numbers *= _MIX_2
    numbers ^= numbers >> np.uint64(31)
    return numbers


def _permutations(seed: int, many: int, count: int) -> Rows:
    """`int64[many, count]`: each line is a permutation of 0 … count - 1.

    Random keys are sorted with the number that they belong to in their low bits. So all keys
    differ, and any correct sort gives the same result, stable or not.
    """
    keys = _splitmix(seed, many * count).reshape(many, count)
    mask = np.uint64((1 << max(0, count - 1).bit_length()) - 1)
    keys &= ~mask
    keys |= np.arange(count, dtype=np.uint64)
    keys.sort(axis=1)
    keys &= mask
    return keys.view(np.int64)


def _permutation(seed: int, count: int) -> Rows:
    return _permutations(seed, 1, count).ravel()


def _layers(seed: int, counts: Rows) -> Rows:
    """A window's rows, layer by layer, as positions in its joined runs: `int64[sum(counts)]`."""
    runs = len(counts)
    offsets = np.cumsum(counts) - counts
    chosen = _permutations(seed, runs, RUN_ROWS)  # [run, layer]: the row of the run in that layer
    run = _permutations(seed ^ int(_MIX_1), RUN_ROWS, runs)  # [layer, place]: the run at that place
    row = chosen[run, np.arange(RUN_ROWS)[:, None]]
    # A short run has no row in some of the layers.
    positions: Rows = (offsets[run] + row)[row < counts[run]]
    return positions


def _joined(firsts: Rows, counts: Rows) -> Runs:
    """Ascending runs, those that touch made one: fewer slices to fetch."""
    cuts = np.flatnonzero(firsts[1:] != firsts[:-1] + counts[:-1]) + 1
    heads = np.concatenate([[0], cuts])
    return _pairs(firsts[heads], np.add.reduceat(counts, heads))


def _pairs(firsts: Rows, counts: Rows) -> Runs:
    return tuple(zip(firsts.tolist(), counts.tolist(), strict=True))


def _expand(runs: Runs) -> Rows:
    """The rows of `runs`, one after the other."""
    # Of nested tuples numpy would look at each part by itself.
    pairs = np.fromiter(chain.from_iterable(runs), np.int64, 2 * len(runs))
    firsts, counts = pairs[::2], pairs[1::2]
    before = np.cumsum(counts) - counts
    return np.repeat(firsts - before, counts) + np.arange(int(counts.sum()))
