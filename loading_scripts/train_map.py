"""Map-style training on a bundle: every rank reads its own rows, and all make the same steps.

    python loading_scripts/train_map.py [BUNDLE]
    torchrun --nproc-per-node 2 loading_scripts/train_map.py [BUNDLE]

By default on the sample that ships with the package.
"""

import os
import sys

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import lithi_datasets as lithi
from lithi_datasets import sample

EPOCHS, BATCH_ROWS = 3, 32


def main() -> None:
    """Train a small network to read digits."""
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    source = sys.argv[1] if len(sys.argv) > 1 else sample.path()
    rows = lithi.load(source, "train", statuses=["accepted"], columns=["pixels", "label"])
    # Not split beforehand: the loader gives each rank its share of every step.
    loader = lithi.torch_loader(
        rows, BATCH_ROWS, rank=rank, world_size=world_size, shuffle=True, seed=1
    )
    torch.manual_seed(1)
    model: nn.Module = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    if world_size > 1:
        distributed.init_process_group("gloo")
        model = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(EPOCHS):
        loader.set_epoch(epoch)
        read = 0
        for batch in loader:
            loss = nn.functional.cross_entropy(model(batch["pixels"] / 16), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            read += len(batch["item_id"])
        print(f"rank {rank} epoch {epoch}: {read} rows in {len(loader)} steps, loss {loss:.2f}")
    if world_size > 1:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
