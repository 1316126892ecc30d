"""What a ledger costs, as a share of the loader's time at batch 256, on a map-style dataset.

    python benchmarks/ledger.py [rows]

A row has an id, a text, 64 floats, a label, a status and a confidence, about 340 bytes. The loader
is `torch_loader` in this process, in the rows' order (its fastest way) and shuffled. In one loop
each batch is timed twice: until the loader gave it, and until the ledger took it. Of each batch,
and of what is done once, the best of the runs counts, so that other work on the machine falls out.

*epoch* is that loop and reconciling; *first* also what is done only once, before or after the first
epoch: shuffled, an index of all ids; in order, counting the statuses.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import time
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


def epoch(ledger: Ledger, loader: Any) -> tuple[list[float], list[float]]:
    """Seconds of each batch: the loader's, and the ledger's."""
    clock = time.perf_counter
    loading, counting = [], []
    batches = iter(loader)
    while True:
        begin = clock()
        batch = next(batches, None)
        loaded = clock()
        if batch is None:
            return loading, counting
        ledger.observe(batch)
        counting.append(clock() - loaded)
        loading.append(loaded - begin)


def timed(run: Any) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def measure(ds: Any, *, shuffle: bool) -> dict[str, float]:
    """Seconds of the loader, and of the ledger: each epoch, and once."""
    loading, counting, reconciling, once = [], [], [], []
    for _ in range(RUNS):
        ledger = Ledger(ds)
        if shuffle:
            ledger.observe({ledger._known.item_id_field: ["no row's"]})
        before = timed(ledger._counted)  # an id that is nowhere makes the index
        ledger.reset()
        of_loader, of_ledger = epoch(ledger, torch_loader(ds, BATCH, shuffle=shuffle, seed=1))
        loading.append(of_loader)
        counting.append(of_ledger)
        after = timed(ledger.reconcile)
        again = timed(ledger.reconcile)
        reconciling.append(again)
        once.append(before + after - again)
    each = float(np.min(counting, axis=0).sum()) + min(reconciling)
    return {
        "loader": float(np.min(loading, axis=0).sum()),
        "epoch": each,
        "first": each + min(once),
    }


def main() -> int:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    worst = 0.0
    with tempfile.TemporaryDirectory(prefix="lithi-ledger-") as folder:
        bundle = Path(folder) / "bundle"
        size = -(-rows // PARTS)
        starts = range(0, rows, size)
        write_bundle(bundle, [table(first, min(size, rows - first)) for first in starts])
        ds = lithi.load(bundle, cache_dir=Path(folder) / "cache")
        print(f"{rows} rows, batches of {BATCH}, best of {RUNS} runs")
        print(
            f"Python {platform.python_version()}, torch {torch.__version__}, "
            f"pyarrow {pa.__version__}, numpy {np.__version__}, {os.cpu_count()} cores, "
            f"load {os.getloadavg()[0]:.1f}"
        )
        for shuffle in (False, True):
            best = measure(ds, shuffle=shuffle)
            shares = {name: best[name] / best["loader"] for name in ("epoch", "first")}
            worst = max(worst, shares["epoch"])
            print(f"{'shuffled' if shuffle else 'in order':9}", end="")
            print(f" loader {best['loader'] / rows * 1e9:6.0f} ns a row", end="")
            for name, share in shares.items():
                print(f"   {name} {best[name] / rows * 1e9:5.0f} ns a row: {share:6.2%}", end="")
            print()
    print(f"the largest share of an epoch is {worst:.2%}; the limit is {LIMIT:.0%}")
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
