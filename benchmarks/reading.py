"""How fast batches come, against the stock DataLoader, `ds.iter`, MosaicML Streaming and LitData.

One run, the same rows for all, batch 256, no workers; each peer in an environment of its own.
Prints ratios to named peers; the rows a second are there to see what they are made of.

Usage: python benchmarks/reading.py [--rows N] [--seconds S] [--no-peers]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader

import lithi_datasets as lithi
from lithi_datasets.testing import write_bundle

BATCH = 256
PEERS = {
    "MosaicML Streaming": ("mosaicml-streaming", "mosaic.py"),
    "LitData": ("litdata", "litdata_rows.py"),
}
HERE = Path(__file__).parent


def make_rows(rows: int) -> pa.Table:
    """64 floats, an id, three strings, two numbers."""
    random = np.random.default_rng(0)
    return pa.table(
        {
            "item_id": pa.array([f"item-{n:08d}" for n in range(rows)]),
            "embedding": pa.FixedSizeListArray.from_arrays(
                pa.array(random.random(rows * 64, dtype=np.float32)), 64
            ),
            "s1": pa.array([f"a sentence with the number {n % 997} in it" for n in range(rows)]),
            "s2": pa.array([f"tag-{n % 13}" for n in range(rows)]),
            "s3": pa.array([f"https://example.org/{n}" for n in range(rows)]),
            "x": pa.array(random.random(rows)),
            "n": pa.array(random.integers(0, 1000, rows)),
        }
    )


def rate(batches: Iterable[Any], seconds: float) -> float:
    """Rows a second over a whole pass, or as much of it as fits."""
    rows, start = 0, time.perf_counter()
    for batch in batches:
        rows += len(batch["item_id"])
        if time.perf_counter() - start > seconds:
            break
    return rows / (time.perf_counter() - start)


def bare(ds: datasets.Dataset) -> Iterator[dict[str, Any]]:
    """The limit: the numbers of Arrow slices as tensors, the strings as lists, nothing else."""
    for stored in ds.with_format("arrow").data.table.to_batches():
        for start in range(0, stored.num_rows, BATCH):
            batch = stored.slice(start, BATCH)
            out: dict[str, Any] = {}
            for name, array in zip(batch.schema.names, batch.columns, strict=True):
                if pa.types.is_string(array.type):
                    out[name] = array.to_pylist()
                    continue
                flat = array.flatten() if pa.types.is_fixed_size_list(array.type) else array
                values = flat.to_numpy(zero_copy_only=True).copy()
                out[name] = torch.from_numpy(values.reshape(len(array), -1))
            yield out


def peer(name: str, rows: Path, work: Path, seconds: float) -> dict[str, float]:
    """Run a peer in its own environment; made once, below .venvs."""
    package, script = PEERS[name]
    home = HERE.parent / ".venvs" / f"bench-{package}"
    python = home / "bin" / "python"
    if not (home / ".filled").exists():
        venv.create(home, with_pip=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "uv"]
        subprocess.run(pip, check=True)
        # pip's resolver tries versions of a peer's many dependencies for half an hour.
        uv = [str(home / "bin" / "uv"), "pip", "install", "--quiet", "--python", str(python)]
        wheels = os.environ.get("PIP_FIND_LINKS", "")
        subprocess.run(
            [*uv, "torch==2.13.0", "pyarrow", package],
            check=True,
            env={**os.environ, "UV_FIND_LINKS": wheels},
        )
        (home / ".filled").touch()
    command = [
        str(python),
        str(HERE / "peers" / script),
        str(rows),
        str(work / package),
        str(seconds),
    ]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return found


def measure(work: Path, rows: int, seconds: float) -> dict[str, float]:
    """Rows a second of everything that runs in this process."""
    table = make_rows(rows)
    pq.write_table(table, work / "rows.parquet")
    quarter = -(-rows // 4)
    parts = [table.slice(start, quarter) for start in range(0, rows, quarter)]
    required = ["embedding", "s1", "s2", "s3", "x", "n"]
    # A staged input needs no lithi_status, so all read the same columns.
    write_bundle(work / "bundle", parts, required=required, kind="staged_input")
    ds = lithi.load(work / "bundle", cache_dir=work / "cache")
    stock = datasets.load_dataset(
        "parquet", data_files=str(work / "rows.parquet"), split="train", cache_dir=str(work / "c2")
    ).with_format("torch")
    stream = lithi.load(work / "bundle", streaming=True)
    runs: dict[str, Callable[[], Iterable[Any]]] = {
        "ours in order": lambda: lithi.torch_loader(ds, BATCH),
        "ours shuffled": lambda: lithi.torch_loader(ds, BATCH, shuffle=True, seed=1),
        "ours stream": lambda: lithi.torch_loader(stream, BATCH),
        "bare Arrow to tensors": lambda: bare(ds),
        "stock DataLoader in order": lambda: DataLoader(stock, batch_size=BATCH),
        "stock DataLoader shuffled": lambda: DataLoader(stock, batch_size=BATCH, shuffle=True),
        "ds.iter": lambda: stock.iter(BATCH),
    }
    return {name: max(rate(run(), seconds) for _ in range(2)) for name, run in runs.items()}


def report(found: dict[str, float]) -> None:
    """Print what was measured, then the ratios."""
    for name, value in found.items():
        print(f"{name:32s} {value:12,.0f} rows/s")
    pairs = [
        ("ours in order", "stock DataLoader in order"),
        ("ours shuffled", "stock DataLoader shuffled"),
        ("ours stream", "stock DataLoader in order"),
        ("ours in order", "ds.iter"),
        ("ours in order", "bare Arrow to tensors"),
    ]
    for kind in ("in order", "shuffled"):
        peers = [f"{name} {kind}" for name in PEERS if f"{name} {kind}" in found]
        if peers:
            pairs.append((f"ours {kind}", max(peers, key=found.__getitem__)))
    print()
    for ours, other in pairs:
        print(f"{ours} is {found[ours] / found[other]:.2f} times {other}")


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, default=200_000)
    arguments.add_argument("--seconds", type=float, default=15.0)
    arguments.add_argument("--no-peers", action="store_true")
    given = arguments.parse_args()
    versions = (
        f"torch {torch.__version__}, pyarrow {pa.__version__}, datasets {datasets.__version__}"
    )
    print(f"measured on {os.cpu_count()} cores, {platform.machine()}, {versions}:")
    print(f"{given.rows:,} rows of 64 floats, an id, three strings, two numbers; batch {BATCH},")
    print("no workers")
    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory(prefix="lithi-bench-") as folder:
        work = Path(folder)
        found = measure(work, given.rows, given.seconds)
        for name in () if given.no_peers else PEERS:
            try:
                rates = peer(name, work / "rows.parquet", work, given.seconds)
            except subprocess.CalledProcessError as error:
                print(f"{name} could not be run: {(error.stderr or '')[-300:]}", file=sys.stderr)
                continue
            found |= {f"{name} {kind}": value for kind, value in rates.items()}
    report(found)


if __name__ == "__main__":
    main()
