"""Who reads what: steps and index ranges of a map-style dataset, whole parts of a stream.

Pure arithmetic on numbers that are in the manifest; nothing here reads data or knows torch. All
ranks compute the same plan on their own.
"""

from __future__ import annotations

import heapq
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, TypedDict

from lithi_datasets.errors import UsageError
from lithi_datasets.reading.order import whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lithi_datasets.bundle import Bundle

__all__ = [
    "PLAN_VERSION",
    "PartPlan",
    "PartitionPlan",
    "RankPlan",
    "StepPlan",
    "WorkerPlan",
    "assign_parts",
    "check_rank",
    "index_range",
    "partition_plan",
]

PLAN_VERSION = 1
"""Raised whenever the same bundle, ranks and workers would give another plan than before."""

Range = tuple[int, int]


@dataclass(frozen=True)
class StepPlan:
    """The steps of the rows of P that are left, for W ranks and batches of up to B rows.

    Step k covers the next W·B rows, rank r takes the r-th of W consecutive pieces of them whose
    sizes differ by at most 1 (the larger ones first). So every rank makes `steps` steps. If the
    last step would hold m < W rows, W - m rows move to it from the step before, where there is one
    and B > 1. A piece is empty only where B = 1 or fewer than W rows are left.

    The plan of a resumed epoch is that of the rows left: with the same W and B it goes on as the
    old one would have, with others each row is still read once, however often that happens.

    With `drop_last` every piece has B rows, and what this plan can't fill a step with, less than
    W·B rows, is dropped at its end. A state saved after the last step counts those rows as left: at
    the same W and B no step is left and the epoch is over, at a smaller W·B some of them are read.

    Args:
        rows: number of rows N of P.
        world_size: number of ranks W, at least 1.
        batch_size: rows of a batch B, at least 1.
        consumed: rows of P that all ranks together have read, in [0, N].
        drop_last: only full batches.

    Raises:
        UsageError: an argument is of another kind or out of range.
    """

    rows: int
    world_size: int
    batch_size: int
    _: KW_ONLY
    consumed: int = 0
    drop_last: bool = False

    def __post_init__(self) -> None:
        for name, least in (("rows", 0), ("world_size", 1), ("batch_size", 1), ("consumed", 0)):
            object.__setattr__(self, name, whole(name, getattr(self, name), least=least))
        if not isinstance(self.drop_last, bool):
            raise UsageError("drop_last= is True or False.", found=repr(self.drop_last))
        if self.consumed > self.rows:
            raise UsageError(
                "More rows are consumed than there are.",
                expected=f"consumed= of at most {self.rows}",
                found=self.consumed,
            )

    @property
    def step_rows(self) -> int:
        """W·B, the rows of a full step."""
        return self.world_size * self.batch_size

    @property
    def steps(self) -> int:
        """How many batches every rank makes: the loader's length."""
        left = self.rows - self.consumed
        return left // self.step_rows if self.drop_last else -(-left // self.step_rows)

    @property
    def dropped(self) -> int:
        """Rows that no rank reads, the last ones of P: 0 without `drop_last`."""
        return (self.rows - self.consumed) % self.step_rows if self.drop_last else 0

    def bounds(self, step: int) -> Range:
        """(start, stop) of the rows of P that all ranks read in step `step`.

        Raises:
            UsageError: there is no such step.
        """
        steps = self.steps
        step = whole("step", step)
        if not 0 <= step < steps:
            raise UsageError(
                "There is no such step.", expected=f"a step in [0, {steps})", found=step
            )
        return self._start(step), self._start(step + 1)

    def piece(self, step: int, rank: int) -> Range:
        """(start, stop) of the rows of P that rank `rank` reads in step `step`: at most B rows.

        Raises:
            UsageError: there is no such step or rank.
        """
        start, stop = self.bounds(step)
        first, end = index_range(stop - start, rank, self.world_size)
        return start + first, start + end

    def consumed_after(self, step: int) -> int:
        """Rows of P that are read once all ranks have made step `step`: the `consumed` of a state.

        Raises:
            UsageError: there is no such step.
        """
        return self.bounds(step)[1]

    def _start(self, step: int) -> int:
        """First row of a step; for step `steps`, the row after the last one that is read."""
        steps = self.steps
        if step == steps:
            return self.rows - self.dropped
        start = self.consumed + step * self.step_rows
        if step == 0 or step < steps - 1 or self.batch_size == 1:
            return start
        # The last of several steps is filled up to a row for each rank; full ones need no filling.
        return min(start, self.rows - self.world_size)


def check_rank(rank: int, world_size: int) -> tuple[int, int]:
    """`rank` and `world_size` as ints.

    Raises:
        UsageError: one is no integer, world_size is below 1, or rank is not in [0, world_size).
    """
    world_size = whole("world_size", world_size, least=1)
    rank = whole("rank", rank)
    if not 0 <= rank < world_size:
        raise UsageError(
            "There is no such rank.",
            expected=f"a rank in [0, {world_size}), as world_size={world_size}",
            found=f"rank={rank}",
        )
    return rank, world_size


def index_range(rows: int, rank: int, world_size: int) -> Range:
    """(start, stop) of the rank's consecutive share of `rows` rows.

    The shares of all ranks make up the rows in order; sizes differ by at most 1, larger ones first.
    With more ranks than rows the last ranks get an empty share.

    Raises:
        UsageError: one is no integer, rows is below 0, or there is no such rank.
    """
    rank, world_size = check_rank(rank, world_size)
    size, more = divmod(whole("rows", rows, least=0), world_size)
    start = rank * size + min(rank, more)
    return start, start + size + (rank < more)


def assign_parts(
    rows: Sequence[int], world_size: int, num_workers: int = 1
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Whole parts to ranks, then the parts of each rank to its workers, balanced by rows.

    Both times the largest part that is left goes to whoever has the fewest rows so far; among equal
    parts, and among equal owners, the one with the lowest index is next. No owner then has more
    rows than the average and one part. A rank's parts don't depend on the number of workers, nor on
    the epoch.

    Args:
        rows: rows of each part, at least 0; a part without rows has an owner too.
        world_size: number of ranks, at least 1.
        num_workers: workers of each rank; 0, the main process, counts as one.

    Returns:
        For each rank, for each worker, its positions in `rows`, ascending.

    Raises:
        UsageError: an argument is no integer or out of range.
    """
    world_size = whole("world_size", world_size, least=1)
    workers = max(1, whole("num_workers", num_workers, least=0))
    sizes = [whole("rows", size, least=0) for size in rows]
    ranks = _balance(range(len(sizes)), sizes, world_size)
    return tuple(tuple(map(tuple, _balance(parts, sizes, workers))) for parts in ranks)


def _balance(parts: Sequence[int], sizes: Sequence[int], owners: int) -> list[list[int]]:
    owned: list[list[int]] = [[] for _ in range(owners)]
    loads = [(0, owner) for owner in range(owners)]  # a heap: sorted already
    for part in sorted(parts, key=lambda part: (-sizes[part], part)):
        load, owner = loads[0]
        owned[owner].append(part)
        heapq.heapreplace(loads, (load + sizes[part], owner))
    for each in owned:
        each.sort()
    return owned


class PartPlan(TypedDict):
    """A part: its index in `bundle.parts`, its path and its rows."""

    index: int
    path: str
    rows: int


class WorkerPlan(TypedDict):
    """A worker: its parts in manifest order, its rows, its batches (None without a batch size)."""

    worker: int
    rows: int
    steps: int | None
    parts: list[PartPlan]


class RankPlan(TypedDict):
    """A rank: its workers, its rows, its batches (None without a batch size)."""

    rank: int
    rows: int
    steps: int | None
    workers: list[WorkerPlan]


class PartitionPlan(TypedDict):
    """Who reads which part of a split, as plain JSON.

    version: `PLAN_VERSION`.
    snapshot: `{"version_id", "content_sha256"}` of the bundle.
    split, world_size, batch_size, drop_last: as asked for.
    num_workers: processes that read on each rank, so 1 where 0 workers were asked for.
    rows: of the split in the manifest; rows that `statuses=` leaves out are among them. min_rows,
    max_rows: of the ranks with the fewest and the most rows. min_steps, max_steps: the same for
    batches, None without a batch size: ranks that have to stay in step stop at `min_steps`, or
    join.
    ranks: one entry for each rank.
    """

    version: int
    snapshot: dict[str, str]
    split: str
    world_size: int
    num_workers: int
    batch_size: int | None
    drop_last: bool
    rows: int
    min_rows: int
    max_rows: int
    min_steps: int | None
    max_steps: int | None
    ranks: list[RankPlan]


def partition_plan(
    bundle: Bundle,
    world_size: int,
    num_workers: int = 1,
    *,
    split: str = "train",
    batch_size: int | None = None,
    drop_last: bool = False,
) -> PartitionPlan:
    """The owner of every part of a split when it is streamed, from the manifest alone.

    The rule is that of `assign_parts`. It holds for every epoch: shuffling changes the order in
    which a worker reads its parts, never which they are.

    Args:
        bundle: the opened bundle; nothing else of it is read.
        world_size: number of ranks, at least 1.
        num_workers: DataLoader workers of each rank; 0, the main process, counts as one.
        split: the split.
        batch_size: also say how many batches each worker and rank makes. A worker fills its batches
            across parts; its last one may be short, or is left out with `drop_last`.
        drop_last: only full batches.

    Returns:
        A dictionary of plain JSON; `PartitionPlan` says what is in it.

    Raises:
        UsageError: an unknown split, or a number that is no integer or out of range.
    """
    if not isinstance(split, str) or split not in bundle.splits:
        raise UsageError(
            "The bundle has no such split.",
            path=str(bundle.location),
            expected=f"one of {', '.join(bundle.splits)}",
            found=repr(split),
        )
    batch = None if batch_size is None else whole("batch_size", batch_size, least=1)
    indexes = bundle.splits[split]
    parts: list[PartPlan] = [
        {"index": index, "path": bundle.parts[index].path, "rows": bundle.parts[index].rows}
        for index in indexes
    ]
    owners = assign_parts([part["rows"] for part in parts], world_size, num_workers)
    if not isinstance(drop_last, bool):
        raise UsageError("drop_last= is True or False.", found=repr(drop_last))
    ranks = [
        _rank_plan(rank, [[parts[own] for own in worker] for worker in workers], batch, drop_last)
        for rank, workers in enumerate(owners)
    ]
    rows = [rank["rows"] for rank in ranks]
    steps = [rank["steps"] for rank in ranks if rank["steps"] is not None]
    return {
        "version": PLAN_VERSION,
        "snapshot": bundle.snapshot.as_dict(),
        "split": split,
        "world_size": len(ranks),
        "num_workers": len(owners[0]),
        "batch_size": batch,
        "drop_last": drop_last,
        "rows": sum(rows),
        "min_rows": min(rows),
        "max_rows": max(rows),
        "min_steps": min(steps, default=None),
        "max_steps": max(steps, default=None),
        "ranks": ranks,
    }


def _rank_plan(
    rank: int, owned: list[list[PartPlan]], batch_size: int | None, drop_last: bool
) -> RankPlan:
    workers: list[WorkerPlan] = []
    for worker, parts in enumerate(owned):
        rows = sum(part["rows"] for part in parts)
        steps = None
        if batch_size is not None:
            steps = StepPlan(rows, 1, batch_size, drop_last=drop_last).steps
        workers.append({"worker": worker, "rows": rows, "steps": steps, "parts": parts})
    return {
        "rank": rank,
        "rows": sum(worker["rows"] for worker in workers),
        "steps": None if batch_size is None else sum(worker["steps"] or 0 for worker in workers),
        "workers": workers,
    }
