"""A bundle of every kind of column, for the tests of the format."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import datasets
import numpy as np
import pyarrow as pa

NEW_STREAMS = int(datasets.__version__.split(".")[0]) >= 5
POINT = pa.struct(
    [
        ("x", pa.int8()),
        ("t", pa.string()),
        ("v", pa.list_(pa.float32(), 2)),
        ("r", pa.list_(pa.int16())),
    ]
)
MAKERS: dict[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "flag": (pa.bool_(), lambda i: i % 2 == 0),
    "i8": (pa.int8(), lambda i: i - 3),
    "u16": (pa.uint16(), lambda i: 2**16 - 1 - i),
    "u32": (pa.uint32(), lambda i: 2**32 - 1 - i),
    "u64": (pa.uint64(), lambda i: 2**63 + 1 + i),
    "i64": (pa.int64(), lambda i: 2**53 + 1 + i),
    "f16": (pa.float16(), lambda i: np.float16(i / 2)),
    "f32": (pa.float32(), lambda i: i / 7),
    "f64": (pa.float64(), lambda i: 1e300 + i),
    "date": (pa.date32(), lambda i: i),
    "date_ms": (pa.date64(), lambda i: i * 86_400_000),
    "time": (pa.time32("ms"), lambda i: i),
    "time_us": (pa.time64("us"), lambda i: i),
    "lasted": (pa.duration("s"), lambda i: i),
    "at": (pa.timestamp("us", "Europe/Berlin"), lambda i: i),
    "fixed": (pa.list_(pa.uint16(), 3), lambda i: [i, i + 1, i + 2]),
    "matrix": (pa.list_(pa.list_(pa.int8(), 2), 3), lambda i: [[i, i], [1, 2], [3, 4]]),
    "words": (pa.list_(pa.string(), 2), lambda i: ["a", str(i)]),
    "ragged": (pa.list_(pa.int16()), lambda i: list(range(i % 5))),
    "equal": (pa.list_(pa.int16()), lambda i: [i, i]),
    "points": (pa.list_(pa.list_(pa.float32(), 2)), lambda i: [[1.0, 2.0]] * (i % 3)),
    "deep": (pa.list_(pa.list_(pa.int32())), lambda i: [[1], [], [2, 3]][: i % 4]),
    "large": (pa.large_list(pa.float64()), lambda i: [1.5] * (i % 3)),
    "tags": (pa.list_(pa.string()), lambda i: ["x", None][: i % 3]),
    "point": (POINT, lambda i: {"x": i, "t": "t", "v": [1, i], "r": list(range(i % 3))}),
    "boxes": (pa.list_(pa.struct([("k", pa.uint8())])), lambda i: [{"k": k} for k in range(i % 3)]),
    "text": (pa.string(), lambda i: f"t{i}"),
    "raw": (pa.binary(), lambda i: b"\xff\x00"),
    "price": (pa.decimal128(10, 2), lambda i: Decimal(f"{i}.50")),
}  # fmt: skip
TENSORS = [
    *("flag", "i8", "u16", "u32", "u64", "i64", "f16", "f32", "f64"),
    *("date", "date_ms", "time", "time_us", "lasted", "at", "fixed", "matrix"),
]


def every_column(rows: int, first: int = 0, *, nulls: bool = False) -> pa.Table:
    columns = {"item_id": pa.array([f"i{i}" for i in range(first, first + rows)])}
    for name, (kind, make) in MAKERS.items():
        values = [None if nulls and i % 4 == 1 else make(i) for i in range(first, first + rows)]
        columns[name] = pa.array(values, kind)
    columns["lithi_status"] = pa.array(["accepted"] * rows)
    return pa.table(columns)


def dataset_of(table: pa.Table) -> datasets.Dataset:
    return datasets.Dataset(datasets.table.InMemoryTable(table))


def untouched(_: Any) -> dict[str, Any]:
    return {}
