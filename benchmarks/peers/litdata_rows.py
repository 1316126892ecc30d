"""LitData over the benchmark's rows; run by benchmarks/reading.py in its own environment.

Usage: litdata_rows.py ROWS.parquet FOLDER SECONDS. Prints JSON: rows read a second, in order and
shuffled.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from litdata import StreamingDataLoader, StreamingDataset, optimize


def rows_of(path: str) -> Iterator[dict[str, Any]]:
    """The rows of a Parquet file."""
    for batch in pq.ParquetFile(path).iter_batches(8192):
        for row in batch.to_pylist():
            row["embedding"] = np.asarray(row["embedding"], dtype=np.float32)
            yield row


def rate(folder: Path, seconds: float, *, shuffle: bool) -> float:
    """Rows a second at batch 256, no workers."""
    data = StreamingDataset(str(folder), shuffle=shuffle)
    loader = StreamingDataLoader(data, batch_size=256)
    rows, start = 0, time.perf_counter()
    for batch in loader:
        rows += len(batch["item_id"])
        if time.perf_counter() - start > seconds:
            break
    return rows / (time.perf_counter() - start)


if __name__ == "__main__":
    parquet, target, limit = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
    if not (target / "index.json").exists():
        optimize(
            fn=rows_of, inputs=[parquet], output_dir=str(target), chunk_bytes="64MB", num_workers=1
        )
    found = {
        name: rate(target, limit, shuffle=name == "shuffled") for name in ("in order", "shuffled")
    }
    print(json.dumps(found))
