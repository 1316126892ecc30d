"""What a ledger costs at batch 256, as a share of the loader's time.

    python benchmarks/ledger.py [rows]

The rows are those of `benchmarks/reading.py` with a status: 64 floats, an id, three strings, two
numbers. The loader is `torch_loader` in this process, in the rows' order (its fastest way) and
shuffled; the loop does nothing with its batches. Epochs with and without a ledger come in random
order. Of each step, and of reconciling at the end, the median of the runs counts: other work on the
machine falls on all alike, and the best run of a step that takes long is less good than that of a
short one.

The ledger's *own* time is that of counting the batches, of reconciling, and of what the loader does
to remember its batches for it; its share of the time of a loader without a ledger is what has a
limit. *In all* is by how much the loop takes longer, whatever it is caused by; on a machine that is
shared it varies by several percent from run to run.

*later* is an epoch with a ledger that was reset; *first* is one with a new ledger, which has more
to do once: it reads the statuses and, shuffled, hashes the ids of the dataset.
"""

from __future__ import annotations

import os
import platform
import random
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
from lithi_datasets.reading.origins import Origins
from lithi_datasets.testing import write_bundle

ROWS = 400_000
RUNS = 24
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


class Remembering:
    """Times what a loader does to remember a batch: `seconds`, of the last one."""

    seconds = 0.0

    def __init__(self) -> None:
        note = Origins.note

        def timed(origins: Origins, batch: Any, lots: Any) -> None:
            begin = time.perf_counter()
            note(origins, batch, lots)
            self.seconds = time.perf_counter() - begin

        Origins.note = timed  # type: ignore[method-assign]


REMEMBERING = Remembering()


def epoch(loader: Any, ledger: Ledger | None) -> list[tuple[float, float]]:
    """Of each step, and of what comes at the end: seconds of all, and those for the ledger."""
    clock = time.perf_counter
    seconds = []
    batches = iter(loader)
    while True:
        begin = clock()
        batch = next(batches, None)
        if batch is None:
            break
        loaded = clock()
        if ledger is not None:
            ledger.observe(batch)
        end = clock()
        seconds.append((end - begin, end - loaded + REMEMBERING.seconds))
    begin = clock()
    if ledger is not None:
        ledger.reconcile()
    end = clock()
    return [*seconds, (end - begin, end - begin)]


def ledger_for(ds: Any, name: str, loader: Any) -> Ledger | None:
    """The ledger of one run; without one no other may live, since the loader looks for that."""
    if name == "alone":
        return None
    ledger = Ledger(ds)
    if name == "later":
        epoch(loader, ledger)
        ledger.reset()
    return ledger


def measure(ds: Any, *, shuffle: bool) -> dict[str, tuple[float, float]]:
    """Seconds of an epoch, and those for the ledger: without, with a new one, with a reset one."""
    runs: dict[str, list[list[tuple[float, float]]]] = {"alone": [], "first": [], "later": []}
    for run in range(RUNS + 1):
        for name in random.sample(list(runs), len(runs)):
            loader = torch_loader(ds, BATCH, shuffle=shuffle, seed=1)
            ledger = ledger_for(ds, name, loader)
            seconds = epoch(loader, ledger)
            del ledger
            if run:  # the first one warms up
                runs[name].append(seconds)
    medians = {name: np.median(steps, axis=0).sum(axis=0) for name, steps in runs.items()}
    return {name: (float(every), float(own)) for name, (every, own) in medians.items()}


def main() -> int:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    worst = 0.0
    with tempfile.TemporaryDirectory(prefix="lithi-ledger-") as folder:
        bundle = Path(folder) / "bundle"
        size = -(-rows // PARTS)
        starts = range(0, rows, size)
        write_bundle(bundle, [table(first, min(size, rows - first)) for first in starts])
        ds = lithi.load(bundle, cache_dir=Path(folder) / "cache")
        print(f"{rows} rows, batches of {BATCH}, median of {RUNS} runs")
        print(
            f"Python {platform.python_version()}, torch {torch.__version__}, "
            f"pyarrow {pa.__version__}, numpy {np.__version__}, {os.cpu_count()} cores, "
            f"load {os.getloadavg()[0]:.1f}"
        )
        for shuffle in (False, True):
            taken = measure(ds, shuffle=shuffle)
            alone, _ = taken["alone"]
            print(f"{'shuffled' if shuffle else 'in order'}: {alone / rows * 1e9:.0f} ns a row")
            for name in ("first", "later"):
                every, own = taken[name]
                print(
                    f"    {name}: own {own / rows * 1e9:5.1f} ns a row, {own / alone:6.2%};"
                    f" in all {(every - alone) / rows * 1e9:5.1f} ns, {every / alone - 1:6.2%}"
                )
            worst = max(worst, taken["later"][1] / alone)
    print(f"the largest own share of a later epoch is {worst:.2%}; the limit is {LIMIT:.0%}")
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
