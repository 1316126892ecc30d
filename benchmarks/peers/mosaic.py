"""MosaicML Streaming over the rows of benchmarks/reading.py, which runs this in a .venv of its own.

Usage: mosaic.py ROWS.parquet FOLDER SECONDS. Prints JSON: rows a second, in order and shuffled.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pyarrow.parquet as pq

# It imports torchvision for data of images, whose build on PyPI does not load beside a CPU build of
# torch. None is read here, so a stand-in is imported in its place.
for name in ("", ".datasets", ".transforms", ".transforms.functional"):
    sys.modules[f"torchvision{name}"] = MagicMock(__spec__=ModuleSpec("torchvision", None))
sys.modules["torchvision.datasets"].VisionDataset = object  # type: ignore[attr-defined]

from streaming import MDSWriter, StreamingDataLoader, StreamingDataset  # noqa: E402

COLUMNS = {
    "item_id": "str",
    "embedding": "ndarray:float32:64",
    "s1": "str",
    "s2": "str",
    "s3": "str",
    "x": "float64",
    "n": "int64",
}


def write(rows: Path, folder: Path) -> None:
    """Write the rows as MDS shards."""
    if (folder / "index.json").exists():
        return
    with MDSWriter(out=str(folder), columns=COLUMNS) as out:
        for batch in pq.ParquetFile(rows).iter_batches(8192):
            for row in batch.to_pylist():
                row["embedding"] = np.asarray(row["embedding"], dtype=np.float32)
                out.write({name: row[name] for name in COLUMNS})


def rate(folder: Path, seconds: float, *, shuffle: bool) -> float:
    """Rows a second at batch 256, no workers."""
    data: Any = StreamingDataset(local=str(folder), shuffle=shuffle, batch_size=256)
    loader = StreamingDataLoader(data, batch_size=256)
    rows, start = 0, time.perf_counter()
    for batch in loader:
        rows += len(batch["item_id"])
        if time.perf_counter() - start > seconds:
            break
    return rows / (time.perf_counter() - start)


if __name__ == "__main__":
    parquet, target, limit = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
    write(parquet, target)
    found = {
        name: rate(target, limit, shuffle=name == "shuffled") for name in ("in order", "shuffled")
    }
    print(json.dumps(found))
