"""`torch_loader`: a torch DataLoader whose items are whole batches.

The dataset behind it makes one batch an item and the sampler says which, so nothing is collated and
no worker keeps a position: an item names its epoch, where the epoch began and its step, and any
worker makes the same batch of it. The position lives in the process that iterates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import datasets
import torch.utils.data as torch_data

from lithi_datasets.errors import UsageError
from lithi_datasets.provenance import Provenance, provenance_of
from lithi_datasets.reading.batches import Failure, LoaderOptions, MapBatches, StepItem
from lithi_datasets.reading.order import ORDER_FORMAT, whole
from lithi_datasets.reading.origins import forget_origins
from lithi_datasets.reading.plan import StepPlan
from lithi_datasets.reading.processes import accelerate_place, accelerate_processes
from lithi_datasets.reading.rows import RowReader
from lithi_datasets.reading.state import STATE_VERSION, check_state, taken

__all__ = ["Loader", "MapLoader", "as_it_is", "torch_loader"]


class Loader(torch_data.DataLoader[Any]):
    """A DataLoader that knows where it is; made by `torch_loader`.

    `iter()` starts at the position and moves it; a loop that is left early goes on from there, and
    after the end of an epoch the next `iter()` is the next epoch.
    """

    options: LoaderOptions
    known: Provenance
    epoch: int

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Tell accelerate to leave this loader as it is: it is split already.

        Raises:
            UsageError: it is split for another number of processes than accelerate runs, or every
                process reads the share of the same rank.
        """
        node = self.known.node or {"rank": 0, "world_size": 1}
        given = (self.options.rank, self.options.world_size)
        rank, ranks = given if given[1] > 1 else (node["rank"], node["world_size"])
        place, processes = accelerate_place(), accelerate_processes()
        # Fewer ranks than processes are fine where several processes hold the parts of one model.
        if ranks == processes and rank == place:
            return True
        if 1 < ranks < processes and processes % ranks == 0:
            return True
        raise UsageError(
            "This loader isn't split as accelerate runs: rows would be read twice or never.",
            expected=f"a loader of rank {place} of {processes}",
            found=f"a loader of rank {rank} of {ranks}",
            remedy="Pass rank=accelerator.process_index and "
            "world_size=accelerator.num_processes to torch_loader.",
        )

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, value: bool) -> None:
        """Accelerate sets it on all that it prepared; the answer stays what it is."""

    @property
    def dropped(self) -> int:
        """Rows of the epoch that `drop_last` leaves out."""
        raise NotImplementedError

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; the current one keeps its position.

        Raises:
            UsageError: `epoch` is no integer of at least 0.
        """
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """The position as plain JSON: what `load_state_dict` continues from."""
        raise NotImplementedError

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue where a state was saved.

        Raises:
            StateError: it is broken, or of other rows; both values are shown.
        """
        raise NotImplementedError

    def _delivered(self) -> Iterator[Any]:
        """The items of the workers; an error of ours comes out as itself.

        Without workers they are made here: torch's own loop adds a fifth to the cost of a batch,
        for what whole batches have no use for.
        """
        for item in super().__iter__() if self.num_workers or self.pin_memory else self._made():
            if isinstance(item, Failure):
                raise item.error
            yield item

    def _made(self) -> Iterator[Any]:
        if isinstance(self.dataset, torch_data.IterableDataset):
            return iter(self.dataset)
        return (self.dataset[item] for item in self.sampler)


class _Steps(torch_data.DistributedSampler[StepItem]):
    """Which batches are next; reads the position when an iteration starts.

    It is a DistributedSampler for what that says: ranks share the rows already. Lightning would
    put one of torch around any other, which repeats rows.
    """

    def __init__(self, options: LoaderOptions, rows: int) -> None:
        self.options, self.rows = options, rows
        self.epoch = self.consumed = self.dropped = 0

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; the current one keeps its position."""
        if whole("epoch", epoch, least=0) != self.epoch:
            self.go_to(int(epoch))

    def go_to(self, epoch: int) -> None:
        self.epoch, self.consumed, self.dropped = epoch, 0, 0

    def plan(self) -> StepPlan:
        options = self.options
        return StepPlan(
            self.rows,
            options.world_size,
            options.batch_size,
            consumed=self.consumed,
            drop_last=options.drop_last,
        )

    def __len__(self) -> int:
        return self.plan().steps

    def __iter__(self) -> Iterator[StepItem]:
        epoch, consumed = self.epoch, self.consumed
        for step in range(self.plan().steps):
            yield StepItem(epoch, consumed, step)


def as_it_is(item: Any) -> Any:
    """Whole batches need no collating; torch's default would walk through every string."""
    return item


class MapLoader(Loader):
    """The loader of a map-style dataset."""

    def __init__(self, ds: datasets.Dataset, options: LoaderOptions) -> None:
        self.known = provenance_of(ds)
        self._view = str(ds._fingerprint)
        reader = RowReader(ds)
        key = f"{self.known.content_sha256}:{self._view}"
        self._steps = _Steps(options, reader.rows)
        self.options = options
        super().__init__(
            MapBatches(reader, options, key, self.known),
            batch_size=None,
            sampler=self._steps,
            num_workers=options.num_workers,
            collate_fn=as_it_is,
        )

    @property
    def epoch(self) -> int:  # type: ignore[override]
        """The epoch that the next batch is of, or that was just read to its end."""
        return self._steps.epoch

    @property
    def _at_end(self) -> bool:
        steps = self._steps
        return steps.consumed > 0 and steps.plan().steps == 0

    def __len__(self) -> int:
        """The number of batches that the next `iter()` yields, equal on every rank."""
        if self._at_end:
            return StepPlan(
                self._steps.rows,
                self.options.world_size,
                self.options.batch_size,
                drop_last=self.options.drop_last,
            ).steps
        return len(self._steps)

    @property
    def dropped(self) -> int:
        """Rows of the epoch that `drop_last` leaves out, over all ranks."""
        return self._steps.dropped + self._steps.plan().dropped

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        steps = self._steps
        if self._at_end:
            steps.go_to(steps.epoch + 1)
        plan = steps.plan()
        try:
            for number, batch in enumerate(self._delivered()):
                steps.consumed = plan.consumed_after(number)
                if number == plan.steps - 1:
                    # What is dropped stays so, at whatever world size the state is loaded.
                    steps.consumed, steps.dropped = steps.rows, plan.dropped
                yield batch
        finally:
            forget_origins()

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; the current one keeps its position."""
        self._steps.set_epoch(epoch)

    def _identity(self) -> dict[str, Any]:
        return {
            "version": STATE_VERSION,
            "kind": "map",
            "snapshot": self.known.snapshot.as_dict(),
            "view": self._view,
            "rows": self._steps.rows,
            "shuffle": self.options.shuffle,
            "seed": self.options.seed,
            "order": ORDER_FORMAT,
        }

    def state_dict(self) -> dict[str, Any]:
        """The position as plain JSON; any world size, batch size and worker count continues it."""
        steps = self._steps
        position = {name: getattr(steps, name) for name in ("epoch", "consumed", "dropped")}
        return {**self._identity(), **position}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue where all ranks saved at the same step, at any world size."""
        check_state(state_dict, self._identity(), supersedes=self.known.supersedes)
        steps = self._steps
        epoch = taken(state_dict, "epoch", int, least=0)
        consumed = taken(state_dict, "consumed", int, least=0, most=steps.rows)
        # What is dropped counts as consumed.
        dropped = taken(state_dict, "dropped", int, least=0, most=consumed)
        steps.epoch, steps.consumed, steps.dropped = epoch, consumed, dropped


def torch_loader(
    ds: datasets.Dataset | datasets.IterableDataset,
    batch_size: int,
    *,
    rank: int = 0,
    world_size: int = 1,
    num_workers: int = 0,
    shuffle: bool = False,
    seed: int | None = None,
    drop_last: bool = False,
) -> Loader:
    """A torch DataLoader over whole batches of exact tensors, disjoint over ranks and workers.

    A batch is a dict of columns of B rows: `emb: float32[B, 64]`, strings as a list of B. Each
    column that is declared nullable and is a tensor comes with `<name>__valid`, in every batch.

    Map-style, every rank makes the same number of steps and the rows of a step are consecutive in
    the epoch's order; a state continues at any world size. A stream gives whole parts to ranks, so
    ranks may make different numbers of steps (`partition_plan` says how many).

    Args:
        ds: a dataset of `load` or `load_dataset("lithi_bundle", …)`, map-style or streaming.
        batch_size: rows of a batch.
        rank: this process, in [0, world_size).
        world_size: number of processes that read together.
        num_workers: worker processes; 0 reads in this one.
        shuffle: a new order each epoch; of a stream the order of its parts.
        seed: of the order, the same on every rank; needed to shuffle.
        drop_last: only full batches; the rest of the epoch is counted as dropped.

    Returns:
        A loader with `set_epoch(n)`, `state_dict()`, `load_state_dict(s)` and `len()`.

    Raises:
        UsageError: an argument is wrong, the dataset is not of a bundle, or was split already.
    """
    options = LoaderOptions(
        batch_size=batch_size,
        rank=rank,
        world_size=world_size,
        num_workers=num_workers,
        shuffle=shuffle,
        seed=seed,
        drop_last=drop_last,
    )
    if not isinstance(ds, (datasets.Dataset, datasets.IterableDataset)):
        raise UsageError(
            "A loader reads one dataset.",
            expected="a Dataset or IterableDataset of a bundle",
            found=type(ds).__name__,
            remedy="Choose a split of it.",
        )
    node = provenance_of(ds).node
    if node is not None and options.world_size > 1:
        raise UsageError(
            "This dataset is the share of one rank already; it would be split twice.",
            expected="the whole dataset, or world_size=1",
            found=f"the share of rank {node['rank']} of {node['world_size']}",
            remedy="Pass what split_by_node was given, or leave rank= and world_size= out.",
        )
    if isinstance(ds, datasets.Dataset):
        return MapLoader(ds, options)
    from lithi_datasets.reading.stream import StreamLoader

    return cast(Loader, StreamLoader(ds, options))
