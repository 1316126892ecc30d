"""Training on a stream under torchrun: nothing is converted, whole parts go to the ranks.

    torchrun --nproc-per-node 2 loading_scripts/train_stream.py [BUNDLE]

Parts differ in size, so ranks may make different numbers of steps. `Join` lets those that are done
answer for the others' collectives until all are done; without it the longest rank would hang.
"""

import sys

import torch
from torch import distributed, nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import lithi_datasets as lithi
from lithi_datasets import sample

EPOCHS, BATCH_ROWS = 2, 32


def main() -> None:
    """Train a small network to read digits."""
    distributed.init_process_group("gloo")
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    source = sys.argv[1] if len(sys.argv) > 1 else sample.path()
    stream = lithi.load(source, "train", streaming=True, columns=["pixels", "label"])
    loader = lithi.torch_loader(stream, BATCH_ROWS, rank=rank, world_size=world_size)
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(EPOCHS):
        loader.set_epoch(epoch)
        read = steps = 0
        with Join([model]):
            for batch in loader:
                loss = nn.functional.cross_entropy(model(batch["pixels"] / 16), batch["label"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                read, steps = read + len(batch["item_id"]), steps + 1
        print(f"rank {rank} epoch {epoch}: {read} rows in {steps} steps")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
