"""The batches of a map-style loader: a pure function of an item, made by any worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch.utils.data as torch_data

from lithi_datasets.errors import LithiError, UsageError
from lithi_datasets.reading.order import EpochOrder, whole
from lithi_datasets.reading.origins import Origins
from lithi_datasets.reading.plan import StepPlan, check_rank
from lithi_datasets.reading.rows import Lot, RowReader, joined
from lithi_datasets.reading.tensors import BatchMaker

if TYPE_CHECKING:
    import numpy.typing as npt

    from lithi_datasets.provenance import Provenance

__all__ = ["Failure", "LoaderOptions", "MapBatches", "StepItem", "in_worker"]

Batch = dict[str, Any]

GROUP_ROWS = 16_384
"""Rows that are fetched at once for coming steps: a window of the shuffled order."""

GROUP_BYTES = 64 * 2**20
"""The most bytes that are fetched at once, where rows are wide."""


@dataclass(frozen=True)
class LoaderOptions:
    """What a loader was asked for; checked.

    Attributes:
        batch_size: rows of a batch, B.
        rank: this process, in [0, world_size).
        world_size: number of processes, W.
        num_workers: worker processes of this process; 0 reads in the process itself.
        shuffle: whether the order of an epoch is shuffled.
        seed: of the order; None only without shuffling.
        drop_last: only full batches.
    """

    batch_size: int
    rank: int
    world_size: int
    num_workers: int
    shuffle: bool
    seed: int | None
    drop_last: bool

    def __post_init__(self) -> None:
        whole("batch_size", self.batch_size, least=1)
        whole("num_workers", self.num_workers, least=0)
        check_rank(self.rank, self.world_size)
        for name in ("shuffle", "drop_last"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"{name}= is True or False.", found=repr(getattr(self, name)))
        if self.seed is not None:
            whole("seed", self.seed)
        elif self.shuffle:
            raise UsageError(
                "shuffle=True needs a seed, the same on every rank.",
                expected="seed=<an integer>",
                found="seed=None",
            )


@dataclass(frozen=True)
class Failure:
    """An error on its way from a worker: torch would rebuild it from its text alone."""

    error: LithiError


@dataclass(frozen=True)
class StepItem:
    """Names one batch: the step of an epoch that began with `consumed` rows of it read."""

    epoch: int
    consumed: int
    step: int


@dataclass(frozen=True)
class _Chosen:
    """Rows of a dataset in any order, by their numbers."""

    numbers: npt.NDArray[np.int64]
    blocks: None = None


def in_worker(error: LithiError) -> Failure:
    """An error of this package as an item, in a worker; raised in the process itself.

    Raises:
        LithiError: `error`, where there is no worker.
    """
    if torch_data.get_worker_info() is None:
        raise error
    return Failure(error)


class MapBatches(torch_data.Dataset[Any]):
    """The batches of a rank, by `StepItem`.

    Args:
        reader: of the rows.
        options: of the loader.
        key: of the order, see `EpochOrder`.
        known: of the dataset.
    """

    def __init__(
        self, reader: RowReader, options: LoaderOptions, key: str, known: Provenance
    ) -> None:
        self._reader, self._options, self._key = reader, options, key
        self._make = BatchMaker(reader.schema, masks=frozenset(known.nullable))
        self._origins = Origins(known.item_id_field, reader.schema)
        self._ahead: dict[StepItem, Lot] = {}
        self._windows: dict[int, Lot] = {}
        self._order: EpochOrder | None = None
        self._planned: StepPlan | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ahead": {}, "_windows": {}, "_order": None}

    def __getitem__(self, item: StepItem) -> Batch | Failure:
        try:
            lots = self._lots(item)
            if len(lots) == 1:
                rows = lots[0].taken
            else:
                rows = joined([lot.taken for lot in lots]) if lots else self._reader.batch(0, 0)
            batch = self._make(rows)
        except LithiError as error:
            return in_worker(error)
        self._origins.note(batch, lots)
        return batch

    def _lots(self, item: StepItem) -> list[Lot]:
        options, reader = self._options, self._reader
        plan = self._plan(item)
        if not options.shuffle and reader.contiguous:
            return reader.lots(*plan.piece(item.step, options.rank))
        if self._alone and reader.contiguous:
            return self._from_windows(self._order_of(item.epoch), *plan.piece(item.step, 0))
        if item not in self._ahead:
            self._fetch(item, plan)
        return [self._ahead.pop(item)]

    @property
    def _alone(self) -> bool:
        """Whether this reader uses all of each window, and a window is not too much to hold."""
        options, wide = self._options, GROUP_ROWS * self._reader.row_bytes > GROUP_BYTES
        return options.world_size == 1 and options.num_workers < 2 and not wide

    def _from_windows(self, order: EpochOrder, start: int, stop: int) -> list[Lot]:
        lots = []
        for piece in order.windows(start, stop):
            number = piece.window if piece.window is not None else 0
            if number not in self._windows:
                window = order.window(number)
                if window.take is None:
                    continue
                rows = self._reader.fetch(window.runs, window.take)
                self._windows = {number: Lot(rows, 0, window.rows, window)}
            held = self._windows[number]
            lots.append(Lot(held.rows, piece.first, piece.rows, held.window))
        return lots

    def _plan(self, item: StepItem) -> StepPlan:
        if self._planned is None or self._planned.consumed != item.consumed:
            options = self._options
            self._planned = StepPlan(
                self._reader.rows,
                options.world_size,
                options.batch_size,
                consumed=item.consumed,
                drop_last=options.drop_last,
            )
        return self._planned

    def _fetch(self, item: StepItem, plan: StepPlan) -> None:
        """Read the rows of this step and of the next ones that this worker will be asked for."""
        options = self._options
        wide = max(1, int(GROUP_BYTES / max(1.0, self._reader.row_bytes)))
        # All ranks read a window of P together, so a rank's share of it is what it reads at once.
        share = max(1, GROUP_ROWS // options.world_size)
        steps = max(1, min(share, wide) // options.batch_size)
        stride = max(1, options.num_workers)
        numbers = range(item.step, min(plan.steps, item.step + steps * stride), stride)
        pieces = [plan.piece(number, options.rank) for number in numbers]
        order = self._order_of(item.epoch)
        positions = np.concatenate([order.indices(*piece) for piece in pieces])
        rows = self._reader.take(positions)
        self._ahead.clear()
        first = 0
        for number, (start, stop) in zip(numbers, pieces, strict=True):
            ahead = Lot(rows, first, stop - start, _Chosen(positions))
            self._ahead[StepItem(item.epoch, item.consumed, number)] = ahead
            first += stop - start

    def _order_of(self, epoch: int) -> EpochOrder:
        if self._order is None or self._order.epoch != epoch:
            options = self._options
            self._windows = {}
            self._order = EpochOrder(
                self._key,
                self._reader.rows,
                shuffle=options.shuffle,
                seed=options.seed,
                epoch=epoch,
            )
        return self._order
