"""What `split_by_node` returns: the share of one rank, which accelerate must not split again.

`accelerator.prepare` splits every stock DataLoader over its processes, without asking the dataset
whether it is split already. But it does ask the dataset a few things before the first batch, and
the classes here answer those with a `UsageError`, where accelerate runs several processes:

- a map-style dataset has no `set_epoch` and no `total_dataset_length` of its own; accelerate looks
  for both when an epoch begins, the second where it hides every exception, so that it is answered
  by the next read. It asks neither with `drop_last=True` and a seedable shuffling sampler together;
- a stream is asked for `n_shards` and for `generator`, when it is prepared with
  `dispatch_batches=False`. With `dispatch_batches=True`, its default for streams, accelerate asks
  nothing that a plain loop wouldn't ask as well.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import datasets

from lithi_datasets.errors import UsageError
from lithi_datasets.reading.processes import accelerate_processes

__all__ = ["MapShare", "StreamShare", "as_share"]

# What makes a new dataset of one; `datasets` would make it of its own class.
_KEEPS_SHARE = (
    *("map", "filter", "select", "select_columns", "remove_columns", "rename_column"),
    *("rename_columns", "cast", "cast_column", "add_column", "shuffle", "sort", "shard", "take"),
    *("skip", "flatten", "flatten_indices", "batch", "repeat", "with_format", "with_transform"),
)


def _refuse_second_split() -> None:
    processes = accelerate_processes()
    if processes > 1:
        raise UsageError(
            "accelerate was about to split a dataset again that split_by_node split already.",
            expected=f"each row on one of {processes} ranks",
            found="the share of one rank, in a DataLoader that was prepared",
            remedy="Don't pass this DataLoader to prepare; or pass torch_loader(ds, …, "
            "rank=accelerator.process_index, world_size=accelerator.num_processes) of the whole "
            "dataset, which it leaves as it is; or pass a DataLoader of the whole dataset.",
        )


class MapShare(datasets.Dataset):
    """A share of a map-style dataset; made by `split_by_node`."""

    _splits_again = False

    @property
    def total_dataset_length(self) -> int:
        """The rows of this share; asked by a prepared DataLoader only."""
        self._splits_again = accelerate_processes() > 1
        return len(self)

    def set_epoch(self, epoch: int) -> None:
        """Does nothing; called by a prepared DataLoader only.

        Raises:
            UsageError: accelerate runs several processes.
        """
        del epoch
        self._splits_again = False  # it may be read outside of that DataLoader afterwards
        _refuse_second_split()

    def __getitem__(self, key: Any) -> Any:
        self._check()
        return super().__getitem__(key)

    def __getitems__(self, keys: list[int]) -> Any:
        self._check()
        return super().__getitems__(keys)

    def _check(self) -> None:
        if self._splits_again:
            self._splits_again = False
            _refuse_second_split()


class StreamShare(datasets.IterableDataset):
    """A share of a stream; made by `split_by_node`."""

    @property
    def n_shards(self) -> int:
        """The parts of this share; the name that accelerate asks for.

        Raises:
            UsageError: accelerate runs several processes.
        """
        _refuse_second_split()
        return int(self.num_shards)

    @property
    def generator(self) -> None:
        """None: there is no random generator in it; asked by accelerate.

        Raises:
            UsageError: accelerate runs several processes.
        """
        _refuse_second_split()


def as_share(ds: Any) -> Any:
    """The same dataset as a share of the kind that fits; changed in place."""
    if type(ds) is datasets.Dataset:
        ds.__class__ = MapShare
    elif type(ds) is datasets.IterableDataset:
        ds.__class__ = StreamShare
    return ds


def _keeping_share(name: str, base: type) -> Any:
    stock = getattr(base, name)

    @wraps(stock)
    def kept(*args: Any, **keywords: Any) -> Any:
        return as_share(stock(*args, **keywords))

    return kept


for _share in (MapShare, StreamShare):
    for _name in _KEEPS_SHARE:
        if hasattr(_share.__base__, _name):
            setattr(_share, _name, _keeping_share(_name, _share.__base__))
