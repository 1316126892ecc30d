"""`SnapshotCallback`: the snapshot in the checkpoints of `transformers.Trainer`.

A callback isn't told which checkpoint is resumed. What it is given is the `TrainerState` of that
checkpoint, whose `stateful_callbacks` are kept as they were read; so the record stands there too,
under a name that no callback has: a callback's own state would make the Trainer build it anew,
without its dataset, where `restore_callback_states_from_checkpoint` is set.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from lithi_datasets.checkpoint_record import (
    RECORD_NAME,
    check_record,
    check_snapshot,
    record_snapshot,
    snapshot_record,
)
from lithi_datasets.errors import StateError

__all__ = ["SnapshotCallback"]

_KEY = "lithi_snapshot"
_WHERE = "trainer_state.json"


class SnapshotCallback(TrainerCallback):
    """Writes `lithi-snapshot.json` into every checkpoint, and checks it on resume.

    Resume is refused before the first step, with `SnapshotMismatch` where the checkpoint is of
    another bundle and with `StateError` where it is of other rows or doesn't say.

    Args:
        ds: the dataset that is trained on; as in `record_snapshot`.

    Raises:
        UsageError: the dataset is not of a bundle.
    """

    def __init__(self, ds: Any) -> None:
        self._ds = ds
        snapshot_record(ds)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Check what is resumed, and note what the next checkpoints are of."""
        del control
        kept = state.stateful_callbacks.get(_KEY)
        if kept is not None:
            attributes = kept.get("attributes") if isinstance(kept, dict) else kept
            check_record(attributes, self._ds, path=_WHERE)
            self._check_file(args, state, kept)
        elif state.global_step > 0:
            raise StateError(
                "The checkpoint does not say which bundle it was trained on.",
                path=_WHERE,
                expected="a checkpoint that was saved with SnapshotCallback",
                found=f"one of step {state.global_step} without a snapshot",
                remedy="Resume without the callback once, on purpose, to put one into the next.",
            )
        state.stateful_callbacks[_KEY] = {"args": {}, "attributes": snapshot_record(self._ds)}

    def _check_file(self, args: Any, state: Any, kept: Any) -> None:
        """Hold the file to the dataset as well, where the checkpoint is found to be this one.

        Where it is missing, the record in the state has said already what the file would.
        """
        folder = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        try:
            stored = json.loads((folder / _WHERE).read_bytes())["stateful_callbacks"][_KEY]
        except (OSError, ValueError, KeyError, TypeError):
            return
        if stored == kept and (folder / RECORD_NAME).exists():
            check_snapshot(folder, self._ds)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the file; of a hyperparameter search only `trainer_state.json` has the record."""
        del control
        folder = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        if args.should_save and folder.is_dir():
            record_snapshot(folder, self._ds)
