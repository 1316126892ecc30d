"""How long the text readers take, as a multiple of pyarrow's own readers, on plain columns.

    python benchmarks/text_formats.py [rows]

The table has eight columns, two each of int64, float64, string and bool. Both sides get the bytes
in memory and give all rows as Arrow batches of the declared types; each figure is the best of nine
runs. pyarrow is measured as it comes, with threads, and on one thread, which is what a reader in a
DataLoader's worker or in a conversion process has.
"""

from __future__ import annotations

import csv
import io
import json
import os
import platform
import random
import sys
import time
from collections.abc import Callable, Sequence
from typing import BinaryIO

import pyarrow as pa
import pyarrow.csv
import pyarrow.json

from lithi_datasets.formats import ReadRequest, reader_for
from lithi_datasets.schema import declared_schema
from lithi_datasets.types import Field

ROWS = 200_000
RUNS = 9
LIMIT = 3.0
COLUMNS = {
    "id": "string",
    "text": "string",
    "large": "int64",
    "small": "int64",
    "unit": "float64",
    "wide": "float64",
    "even": "bool",
    "third": "bool",
}


class Source:
    """Bytes in memory as a reader gets them."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def arrow(self) -> pa.NativeFile:
        return pa.BufferReader(self._data)

    def stream(self) -> BinaryIO:
        return io.BytesIO(self._data)


def table(rows: int) -> list[dict[str, object]]:
    numbers = random.Random(20261130)
    return [
        {
            "id": f"item-{row:08d}",
            "text": f"some text of usual length, with a comma, {row % 977}",
            "large": numbers.getrandbits(63) - 2**62,
            "small": numbers.randrange(1000),
            "unit": numbers.random(),
            "wide": numbers.gauss(0, 1e6),
            "even": row % 2 == 0,
            "third": row % 3 == 0,
        }
        for row in range(rows)
    ]


def as_jsonl(rows: list[dict[str, object]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def as_csv(rows: list[dict[str, object]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        writer.writerow([str(v).lower() if isinstance(v, bool) else v for v in row.values()])
    return text.getvalue().encode()


def ours(data: bytes, format: str) -> Callable[[], int]:
    fields = tuple(Field(name=name, type=type) for name, type in COLUMNS.items())
    request = ReadRequest(fields=fields, declared=declared_schema(fields), path=f"part.{format}")
    read = reader_for(format)
    return lambda: sum(batch.num_rows for batch in read(Source(data), request))


def pyarrow_json(data: bytes, schema: pa.Schema, *, threads: bool) -> Callable[[], int]:
    options = pa.json.ParseOptions(explicit_schema=schema)
    how = pa.json.ReadOptions(use_threads=threads)
    return lambda: pa.json.read_json(pa.BufferReader(data), how, options).num_rows


def pyarrow_csv(data: bytes, schema: pa.Schema, *, threads: bool) -> Callable[[], int]:
    types = pa.csv.ConvertOptions(column_types=schema)
    how = pa.csv.ReadOptions(use_threads=threads)
    return lambda: pa.csv.read_csv(pa.BufferReader(data), how, convert_options=types).num_rows


def best(readers: Sequence[Callable[[], int]], rows: int) -> list[float]:
    """Seconds of each reader, the best of its runs; they take turns, as a machine may be shared."""
    times = [float("inf")] * len(readers)
    for _ in range(RUNS):
        for index, read in enumerate(readers):
            begin = time.perf_counter()
            assert read() == rows
            times[index] = min(times[index], time.perf_counter() - begin)
    return times


def main() -> int:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    data = table(rows)
    schema = declared_schema(tuple(Field(name=n, type=t) for n, t in COLUMNS.items()))
    print(f"{rows} rows of {len(COLUMNS)} plain columns, best of {RUNS} runs")
    print(f"pyarrow {pa.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores")
    worst = 0.0
    for format, text, theirs in (
        ("jsonl", as_jsonl(data), pyarrow_json),
        ("csv", as_csv(data), pyarrow_csv),
    ):
        alone, threads = (theirs(text, schema, threads=threads) for threads in (False, True))
        own, one, many = best([ours(text, format), alone, threads], rows)
        worst = max(worst, own / one, own / many)
        print(f"{format:5}  {len(text) / 1e6:.1f} MB  lithi_datasets {own:.3f} s", end="")
        print(f"  pyarrow on one thread {one:.3f} s: {own / one:.2f}×", end="")
        print(f"  pyarrow with threads {many:.3f} s: {own / many:.2f}×")
    print(f"the largest ratio is {worst:.2f}×; the limit is {LIMIT:.0f}×")
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
