"""How many rows of an epoch a loader leaves out on purpose, because a batch would not be full.

Loaders are told by what they have, so that nothing here imports torch. What a loader says goes
under a name: ranks that speak of the same rows use the same name, others a name of their own.
"""

from __future__ import annotations

from typing import Any

__all__ = ["dropped_rows"]


def dropped_rows(loader: Any, own: str) -> dict[str, int]:
    """Rows that `drop_last` leaves out of an epoch, by the name that they are counted under.

    Known are the loaders of `torch_loader`, a map-style `DataLoader` (and what derives from it),
    with a `DistributedSampler` or prepared by accelerate. Of any other loader nothing is known.

    Args:
        loader: what was iterated.
        own: a name that no other rank uses.
    """
    if hasattr(loader, "options") and hasattr(loader, "dropped"):
        return _of_ours(loader)
    sampler = getattr(loader, "batch_sampler", None)
    if hasattr(sampler, "skip_batches"):  # accelerate's skip_first_batches, after a resume
        sampler = getattr(sampler, "batch_sampler", None)
    if sampler is None or not hasattr(loader, "dataset"):
        return {}
    try:
        if hasattr(sampler, "num_processes") and hasattr(sampler, "batch_sampler"):
            return _of_accelerate(sampler)
        found = {own: len(sampler.sampler) % sampler.batch_size} if sampler.drop_last else {}
        return found | _of_distributed(sampler.sampler)
    except (AttributeError, TypeError):  # a sampler of somebody's own, or one without a length
        return {}


def _of_ours(loader: Any) -> dict[str, int]:
    state, options = loader.state_dict(), loader.options
    name = f"{state['kind']}:{state['view']}"
    if state["kind"] == "stream":  # each rank speaks of its own parts
        name += f":{options.rank}/{options.world_size}"
    return {name: loader.dropped}


def _of_accelerate(shards: Any) -> dict[str, int]:
    """All processes read batches of one sampler in turns, or pieces of each."""
    whole = shards.batch_sampler
    if not whole.drop_last:
        return {}
    rows, batches = len(whole.sampler), len(whole)
    if not shards.split_batches:
        batches -= batches % shards.num_processes
    return {f"accelerate:{rows}": rows - batches * whole.batch_size}


def _of_distributed(sampler: Any) -> dict[str, int]:
    """A `DistributedSampler` that cuts the tail off instead of padding."""
    if not (getattr(sampler, "drop_last", False) and hasattr(sampler, "num_replicas")):
        return {}
    rows = len(sampler.dataset)
    return {f"sampler:{rows}": rows - sampler.num_samples * sampler.num_replicas}
