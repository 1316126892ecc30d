"""`split_by_node`: the share of one rank, disjoint by construction."""

from __future__ import annotations

from typing import Any

import datasets

from lithi_datasets.builder import mark_node, stream_of_parts, stream_view
from lithi_datasets.errors import UsageError
from lithi_datasets.provenance import provenance_of
from lithi_datasets.reading.plan import assign_parts, check_rank, index_range
from lithi_datasets.reading.shares import as_share

__all__ = ["split_by_node"]


def split_by_node(ds: Any, rank: int, world_size: int) -> Any:
    """The share of one rank: an index range of a map-style dataset, whole parts of a stream.

    The shares of all ranks make up the dataset; sizes of map-style shares differ by at most 1. A
    stream's parts are balanced by rows, see `partition_plan`. A rank may get nothing.

    Args:
        ds: a dataset of `load` or `load_dataset("lithi_bundle", …)`, not split before.
        rank: in [0, world_size).
        world_size: number of ranks.

    Returns:
        A dataset of the kind of `ds`, which remembers that it is a share; see
        `lithi_datasets.reading.shares` for what accelerate makes of it.

    Raises:
        UsageError: there is no such rank, the dataset is not of a bundle, or is a share already.
    """
    rank, world_size = check_rank(rank, world_size)
    node = provenance_of(ds).node
    if node is not None:
        raise UsageError(
            "This dataset is the share of one rank already.",
            expected="the whole dataset",
            found=f"the share of rank {node['rank']} of {node['world_size']}",
        )
    if isinstance(ds, datasets.Dataset):
        start, stop = index_range(len(ds), rank, world_size)
        # datasets refuses an empty range at the end.
        share = ds.select(range(start, stop) if start < stop else [])
        return as_share(mark_node(share, rank, world_size))
    if isinstance(ds, datasets.IterableDataset):
        view = stream_view(ds)
        sizes = [view.builder.bundle.parts[index].rows for index in view.parts]
        owned = assign_parts(sizes, world_size)[rank][0]
        share = stream_of_parts(ds, [view.parts[own] for own in owned])
        return as_share(mark_node(share, rank, world_size))
    raise UsageError(
        "split_by_node splits one dataset.",
        expected="a Dataset or IterableDataset of a bundle",
        found=type(ds).__name__,
        remedy="Choose a split of it.",
    )
