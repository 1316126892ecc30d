"""The snapshot beside a checkpoint: which bundle, and which rows of it, a model was trained on.

    lithi.record_snapshot("out/checkpoint-100", ds, loader=loader)
    record = lithi.check_snapshot("out/checkpoint-100", ds)
    loader.load_state_dict(record["loader"])

The callbacks do that for a training library: `SnapshotCallback` for `transformers.Trainer`,
`LightningSnapshotCallback` for Lightning, `register_accelerate_hooks` for accelerate. None of these
libraries is imported before its callback is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lithi_datasets.checkpoint_record import (
    RECORD_NAME,
    check_snapshot,
    known_of,
    record_snapshot,
    scope_of,
)

if TYPE_CHECKING:
    from lithi_datasets.checkpoint_lightning import LightningSnapshotCallback
    from lithi_datasets.checkpoint_trainer import SnapshotCallback

__all__ = [
    "RECORD_NAME",
    "LightningSnapshotCallback",
    "SnapshotCallback",
    "check_snapshot",
    "model_card_metadata",
    "record_snapshot",
    "register_accelerate_hooks",
]


def register_accelerate_hooks(accelerator: Any, ds: Any) -> Callable[[], None]:
    """Write the snapshot with every `save_state`, check it with every `load_state`.

    The main process writes; every process checks, before anything is loaded.

    Args:
        accelerator: an `accelerate.Accelerator`.
        ds: the dataset that is trained on; as in `record_snapshot`.

    Returns:
        A function that removes the hooks.

    Raises:
        UsageError: the dataset is not of a bundle.
    """
    known_of(ds)

    def save(models: Any, weights: Any, output_dir: str) -> None:
        del models, weights
        if accelerator.is_main_process:
            record_snapshot(output_dir, ds)

    def load(models: Any, input_dir: str) -> None:
        del models
        check_snapshot(input_dir, ds)

    handles = (
        accelerator.register_save_state_pre_hook(save),
        accelerator.register_load_state_pre_hook(load),
    )

    def remove() -> None:
        for handle in handles:
            handle.remove()

    return remove


def model_card_metadata(ds: Any) -> dict[str, Any]:
    """What the card of a model says about the bundle that it was trained on.

    Args:
        ds: the dataset, or dictionary of splits, that was trained on; or its opened bundle.

    Returns:
        `{"lithi_bundle": {…}}`: the snapshot, the split, the statuses and the number of rows, to be
        passed as `ModelCardData(**…)` or merged into its `to_dict()`.

    Raises:
        UsageError: the dataset is not of a bundle.
    """
    known = known_of(ds)
    scope = {name: value for name, value in scope_of(ds, known).items() if name != "view"}
    kept = {name: value for name, value in scope.items() if value is not None}
    return {"lithi_bundle": {**known.snapshot.as_dict(), **kept}}


def __getattr__(name: str) -> Any:
    """Import a training library when its callback is asked for."""
    if name == "SnapshotCallback":
        from lithi_datasets.checkpoint_trainer import SnapshotCallback

        return SnapshotCallback
    if name == "LightningSnapshotCallback":
        from lithi_datasets.checkpoint_lightning import LightningSnapshotCallback

        return LightningSnapshotCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
