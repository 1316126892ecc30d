"""The rest of the demo: checkpoint, reconcile, predict, stage, verify, and the chain of digests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lithi_datasets.checkpoint import check_snapshot, record_snapshot
from lithi_datasets.ledger import Ledger
from lithi_datasets.staging import stage_predictions

if TYPE_CHECKING:
    import datasets
    import torch

__all__ = ["LoopReport", "close_loop"]

VERSION_ID = "pred_sample_digits_1"


@dataclass(frozen=True)
class LoopReport:
    """What came of the trained model.

    Attributes:
        reconciled: what the ledger counted over the train split, held against the manifest.
        checkpoint: the snapshot recorded beside the checkpoint.
        staged: the snapshot of the bundle of predictions.
        derived_from: the snapshot that the bundle of predictions names as its source.
        staged_rows: rows of it that were verified.
    """

    reconciled: dict[str, Any]
    checkpoint: dict[str, str]
    staged: dict[str, str]
    derived_from: dict[str, str]
    staged_rows: int


def close_loop(
    model: torch.nn.Module,
    train: datasets.Dataset,
    test: datasets.Dataset,
    folder: Path,
    ink: Callable[[dict[str, Any]], torch.Tensor],
) -> LoopReport:
    """Save the model with its snapshot, account for the rows, write predictions back.

    Args:
        model: reads `float32[B, 64]`, gives `float32[B, 10]`.
        train: the split that it was trained on.
        test: the split to predict.
        folder: where the checkpoint and the bundle go.
        ink: makes the model's input of a batch.

    Raises:
        LithiError: a row was lost, or the staged bundle does not verify.
    """
    import torch

    from lithi_datasets.reading.loader import torch_loader

    checkpoint = folder / "checkpoint"
    checkpoint.mkdir()
    torch.save(model.state_dict(), checkpoint / "model.pt")
    record_snapshot(checkpoint, train)
    recorded = check_snapshot(checkpoint, train)["snapshot"]

    ledger = Ledger(train)
    for _ in ledger.watch(torch_loader(train, 256, shuffle=True, seed=0)):
        pass  # an epoch; what is done with the batches is not the ledger's business

    def predictions() -> Iterator[dict[str, Any]]:
        with torch.no_grad():
            for batch in torch_loader(test, 128):
                label = model(ink(batch)).argmax(dim=1)
                yield {"item_id": batch["item_id"], "digit": label.to(torch.int8)}

    names = {"digit": [str(digit) for digit in range(10)]}
    bundle = stage_predictions(
        folder / "predictions",
        predictions(),
        source=test,
        version_id=VERSION_ID,
        class_names=names,
    )
    return LoopReport(
        reconciled=ledger.reconcile().as_dict(),
        checkpoint=dict(recorded),
        staged=bundle.snapshot.as_dict(),
        derived_from=next(one.as_dict() for one in bundle.manifest.derived_from or ()),
        staged_rows=bundle.verify().rows,
    )
