"""Predictions written back as a bundle of their own, which names the one that they were made from.

    python loading_scripts/write_predictions.py FOLDER [BUNDLE]
    torchrun --nproc-per-node 2 loading_scripts/write_predictions.py FOLDER [BUNDLE]

By default of the sample that ships with the package. Each rank predicts its own rows; the bundle
appears whole, once every item has one prediction, and not at all where an item has two or none.
"""

import os
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import distributed, nn

import lithi_datasets as lithi
from lithi_datasets import sample

BATCH_ROWS, VERSION_ID = 128, "pred_digits_1"


def predictions(model: nn.Module, loader: Any) -> Iterator[dict[str, Any]]:
    """Batches with the item ids, the logits `float32[B, 10]` and the digit `int8[B]`."""
    with torch.no_grad():
        for batch in loader:
            logits = model(batch["pixels"] / 16)
            digit = logits.argmax(dim=1).to(torch.int8)
            yield {"item_id": batch["item_id"], "logits": logits, "digit": digit}


def main() -> None:
    """Predict the digits of the split `test`, with a network that has yet to be trained."""
    folder = sys.argv[1]
    source = sys.argv[2] if len(sys.argv) > 2 else sample.path()
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    test = lithi.load(source, "test", columns=["pixels"])
    loader = lithi.torch_loader(test, BATCH_ROWS, rank=rank, world_size=world_size)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    made = {"source": test, "version_id": VERSION_ID}
    staged = lithi.stage_predictions(
        folder, predictions(model, loader), rank=rank, world_size=world_size, **made
    )
    if world_size > 1:
        print(f"rank {rank}: {staged.rows} rows", flush=True)
        distributed.init_process_group("gloo")
        distributed.barrier()  # all shares are there
        if rank == 0:
            staged = lithi.commit_predictions(folder, world_size=world_size, **made)
        distributed.destroy_process_group()
    if rank == 0:
        derived = staged.manifest.derived_from[0]
        print(f"{staged.verify().rows} rows in {folder}, derived from {derived.content_sha256}")


if __name__ == "__main__":
    main()
