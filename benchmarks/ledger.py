"""What a ledger costs, as a share of the loader's time at batch 256, on a map-style dataset.

    python benchmarks/ledger.py [rows]

A row has an id, a text, 64 floats, a label, a status and a confidence, about 330 bytes. The loader
is `torch_loader` in this process, in row order, its fastest way, and its time is that of an epoch
whose batches nobody uses. The ledger's time is that of counting the ids of the same batches, read
before; building its index is once, before the first epoch, and is shown apart and together.
Loader, ledger and index take turns, and each figure is the best of the runs: other work on the
machine then hits all alike.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"

import numpy as np
import pyarrow as pa
import torch

import lithi_datasets as lithi
from lithi_datasets.ledger import Ledger
from lithi_datasets.reading.loader import torch_loader
from lithi_datasets.testing import write_bundle

ROWS = 400_000
RUNS = 7
BATCH = 256
PARTS = 4
LIMIT = 0.05
STATUSES = np.array(["accepted", "accepted", "failed", "abstained"])


def table(first: int, rows: int) -> pa.Table:
    numbers = np.arange(first, first + rows)
    floats = np.random.default_rng(first).random(rows * 64, dtype=np.float32)
    return pa.table(
        {
            "item_id": pa.array([f"item-{number:08d}" for number in numbers]),
            "text": pa.array([f"some text of usual length, {number}" for number in numbers]),
            "embedding": pa.FixedSizeListArray.from_arrays(pa.array(floats), 64),
            "label": pa.array(numbers % 7),
            "lithi_status": pa.array(STATUSES[numbers % len(STATUSES)].tolist()),
            "lithi_confidence": pa.array((numbers % 10) / 10),
        }
    )


def timed(run: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def measure(ds: Any) -> dict[str, float]:
    """Seconds of an epoch: the loader, counting its ids, building the index, reconciling."""
    batches = [{"item_id": batch["item_id"]} for batch in torch_loader(ds, BATCH)]
    best: dict[str, float] = {}

    def read() -> None:
        for _ in torch_loader(ds, BATCH):
            pass

    for _ in range(RUNS):
        ledger = Ledger(ds)

        def count(ledger: Ledger = ledger) -> None:
            for batch in batches:
                ledger.observe(batch)
            ledger.state_dict()  # the last ids are counted too

        steps = {
            "loader": read,
            "index": lambda ledger=ledger: ledger.reset() or ledger.state_dict(),
            "ledger": count,
            "reconcile": ledger.reconcile,
        }
        for name, run in steps.items():
            best[name] = min(timed(run), best.get(name, float("inf")))
    return best


def main() -> int:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    with tempfile.TemporaryDirectory(prefix="lithi-ledger-") as folder:
        bundle = Path(folder) / "bundle"
        size = -(-rows // PARTS)
        starts = range(0, rows, size)
        write_bundle(bundle, [table(first, min(size, rows - first)) for first in starts])
        best = measure(lithi.load(bundle, cache_dir=Path(folder) / "cache"))
    print(f"{rows} rows, batches of {BATCH}, best of {RUNS} runs")
    print(
        f"Python {platform.python_version()}, torch {torch.__version__}, pyarrow {pa.__version__}, "
        f"numpy {np.__version__}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
    for name, seconds in best.items():
        share = "" if name == "loader" else f"  {seconds / best['loader']:6.2%} of the loader's"
        print(f"{name:9}  {seconds / rows * 1e9:7.0f} ns a row{share}")
    first = (best["ledger"] + best["index"]) / best["loader"]
    print(
        f"an epoch {best['ledger'] / best['loader']:.2%}, the first one, with the index {first:.2%}"
    )
    print(f"the limit is {LIMIT:.0%}")
    return 0 if first <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
