"""`LightningSnapshotCallback`: the snapshot in the checkpoints of Lightning.

A checkpoint of Lightning is one file, so the record is a member of it.
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch.callbacks import Callback

from lithi_datasets.checkpoint_record import check_record, snapshot_record
from lithi_datasets.errors import StateError

__all__ = ["LightningSnapshotCallback"]

_KEY = "lithi_snapshot"


class LightningSnapshotCallback(Callback):
    """Puts the snapshot into every checkpoint as `"lithi_snapshot"`, and checks it on resume.

    `fit(ckpt_path=…)` is refused before the first step, with `SnapshotMismatch` where the
    checkpoint is of another bundle and with `StateError` where it is of other rows or doesn't say.
    `validate`, `test` and `predict` take any.

    Args:
        ds: the dataset that is trained on; as in `record_snapshot`.

    Raises:
        UsageError: the dataset is not of a bundle.
    """

    def __init__(self, ds: Any) -> None:
        super().__init__()
        self._ds = ds
        snapshot_record(ds)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Add the record."""
        del trainer, pl_module
        checkpoint[_KEY] = snapshot_record(self._ds)

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Check the record, where training goes on."""
        del pl_module
        if trainer.state.fn != "fit":
            return
        if _KEY not in checkpoint:
            raise StateError(
                "The checkpoint does not say which bundle it was trained on.",
                path=str(trainer.ckpt_path),
                expected="a checkpoint that was saved with LightningSnapshotCallback",
                found="one without a snapshot",
                remedy="Resume without the callback once, on purpose, to put one into the next.",
            )
        check_record(checkpoint[_KEY], self._ds, path=str(trainer.ckpt_path))
