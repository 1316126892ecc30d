"""What a ledger costs, as a share of the loader's time at batch 256, on a map-style dataset.

    python benchmarks/ledger.py [rows]

The rows are those of `benchmarks/reading.py` with a status: 64 floats, an id, three strings, two
numbers. The loader is `torch_loader` in this process, in the rows' order (its fastest way) and
shuffled. In one loop each batch is timed twice: until the loader gave it, and until the ledger took
it. Of each batch, and of what is done once, the best of the runs counts, so that other work on the
machine falls out.

An epoch of the ledger ends with reconciling. *first* is that with a new ledger, which has more to
do once: shuffled, an index of all ids; in order, counting the statuses.
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
RUNS = 6
BATCH = 256
PARTS = 4
LIMIT = 0.05
STATUSES = ("accepted", "accepted", "failed", "abstained")


def table(first: int, rows: int) -> pa.Table:
    numbers = range(first, first + rows)
    random = np.random.default_rng(first)
    floats = random.random(rows * 64, dtype=np.float32)
    return pa.table(
        {
            "item_id": pa.array([f"item-{n:08d}" for n in numbers]),
            "embedding": pa.FixedSizeListArray.from_arrays(pa.array(floats), 64),
            "s1": pa.array([f"a sentence with the number {n % 997} in it" for n in numbers]),
            "s2": pa.array([f"tag-{n % 13}" for n in numbers]),
            "s3": pa.array([f"https://example.org/{n}" for n in numbers]),
            "x": pa.array(random.random(rows)),
            "n": pa.array(random.integers(0, 1000, rows)),
            "lithi_status": pa.array([STATUSES[n % len(STATUSES)] for n in numbers]),
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


def timed(run: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def measure(ds: Any, *, shuffle: bool) -> dict[str, float]:
    """Seconds of an epoch: of the loader, of the ledger in the first one and in later ones."""
    each: dict[str, list[list[float]]] = {"loader": [], "first": [], "later": []}
    for _ in range(RUNS):
        ledger = Ledger(ds)
        for name in ("first", "later"):
            loading, counting = epoch(ledger, torch_loader(ds, BATCH, shuffle=shuffle, seed=1))
            counting.append(timed(ledger.reconcile))
            each["loader"].append(loading)
            each[name].append(counting)
            ledger.reset()
    return {name: float(np.min(times, axis=0).sum()) for name, times in each.items()}


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
            shares = {name: best[name] / best["loader"] for name in ("first", "later")}
            worst = max(worst, shares["later"])
            print(f"{'shuffled' if shuffle else 'in order':9}", end="")
            print(f" loader {best['loader'] / rows * 1e9:6.0f} ns a row", end="")
            for name, share in shares.items():
                print(f"   {name} {best[name] / rows * 1e9:5.0f} ns a row: {share:6.2%}", end="")
            print()
    print(f"the largest share of a later epoch is {worst:.2%}; the limit is {LIMIT:.0%}")
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
