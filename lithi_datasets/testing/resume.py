"""Does a loader continue exactly where it stopped? Asked at every step."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lithi_datasets.reading.loader import Loader

__all__ = ["assert_same_after_resume", "same_batch"]


def same_batch(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    """Whether two batches hold the same columns, values, dtypes and shapes."""
    return list(left) == list(right) and all(_same(left[name], right[name]) for name in left)


def _same(left: Any, right: Any) -> bool:
    import torch

    if isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor):
        fits = isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor)
        return (
            fits
            and left.dtype == right.dtype
            and left.shape == right.shape
            # As bytes: a NaN is equal to itself, and -0.0 is not 0.0.
            and left.numpy().tobytes() == right.numpy().tobytes()
        )
    if isinstance(left, Mapping):
        return isinstance(right, Mapping) and same_batch(left, right)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_same, left, right))
    return bool(left == right)


def assert_same_after_resume(make_loader: Callable[[], Loader], *, epochs: int = 2) -> int:
    """Save a loader's state after every step, restore each in a new loader, compare what is left.

    What is left is the rest of the epoch and the whole next one. Each state goes through JSON.

    Args:
        make_loader: makes the loader anew, always with the same arguments.
        epochs: how many epochs to save states in.

    Returns:
        The number of states that were restored.

    Raises:
        AssertionError: a restored loader yields other batches, or another number of them.
    """
    reference = make_loader()
    states = [json.dumps(reference.state_dict())]
    batches: list[list[Any]] = []
    for _ in range(epochs + 1):
        batches.append([])
        for batch in reference:
            batches[-1].append(batch)
            states.append(json.dumps(reference.state_dict()))
    lengths = [len(epoch) for epoch in batches]
    saved_in_epochs = states[: 1 + sum(lengths[:epochs])]
    for step, state in enumerate(saved_in_epochs):
        loader = make_loader()
        loader.load_state_dict(json.loads(state))
        _compare(loader, batches, _place(step, lengths))
    return len(saved_in_epochs)


def _place(step: int, lengths: list[int]) -> tuple[int, int]:
    """(epoch, batches read of it) where the next iteration begins after `step` batches."""
    for epoch, length in enumerate(lengths):
        if step < length:
            return epoch, step
        step -= length
    return len(lengths), 0


def _compare(loader: Loader, batches: list[list[Any]], place: tuple[int, int]) -> None:
    first, done = place
    for epoch in range(first, min(first + 2, len(batches))):
        wanted = batches[epoch][done:] if epoch == first else batches[epoch]
        found = list(loader)
        where = f"restored in epoch {first} after {done} batches, reading epoch {epoch}"
        if len(found) != len(wanted):
            raise AssertionError(f"{where}: {len(found)} batches in place of {len(wanted)}")
        for number, (new, old) in enumerate(zip(found, wanted, strict=True)):
            if not same_batch(new, old):
                raise AssertionError(f"{where}: batch {number} differs")
