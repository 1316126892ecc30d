"""Fixtures of all tests. Nothing here reaches a network; every cache is a temporary folder."""

from __future__ import annotations

import os
import tempfile

_HOME = tempfile.mkdtemp(prefix="lithi-tests-")
os.environ["HF_HOME"] = _HOME
os.environ["HF_DATASETS_CACHE"] = os.path.join(_HOME, "datasets")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"
# Tests run side by side, and the tensors are small: more threads only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable, Sequence  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import pyarrow as pa  # noqa: E402
import pytest  # noqa: E402

STATUS_CYCLE = ("accepted", "accepted", "failed", "accepted", "abstained")

MakeTable = Callable[..., pa.Table]


def result_table(rows: int, first: int = 0, **columns: Any) -> pa.Table:
    """Rows of a result: ids, a float, a nullable integer past 2^53, a list, the three columns."""
    numbers = range(first, first + rows)
    statuses = [STATUS_CYCLE[n % len(STATUS_CYCLE)] for n in numbers]
    return pa.table(
        {
            "item_id": pa.array([f"item-{n:06d}" for n in numbers], pa.string()),
            "score": pa.array([n / 7 for n in numbers], pa.float32()),
            "big": pa.array([2**53 + 1 + n if n % 3 else None for n in numbers], pa.int64()),
            "vector": pa.array([[n, n + 1, n + 2] for n in numbers], pa.list_(pa.uint8(), 3))
            if first + rows < 250
            else pa.array([[n % 250] * 3 for n in numbers], pa.list_(pa.uint8(), 3)),
            "lithi_status": pa.array(statuses, pa.string()),
            "lithi_confidence": pa.array([(n % 10) / 10 for n in numbers], pa.float64()),
            "lithi_verification": pa.array(["ok" if n % 2 else None for n in numbers], pa.string()),
            **columns,
        }
    )


@pytest.fixture
def make_table() -> MakeTable:
    """A function `(rows, first=0, **columns) -> pa.Table` of result rows."""
    return result_table


@pytest.fixture
def uneven_tables() -> list[pa.Table]:
    """Parts of 10, 1, 1, 10 and 15 rows."""
    sizes: Sequence[int] = (10, 1, 1, 10, 15)
    return [result_table(n, sum(sizes[:i])) for i, n in enumerate(sizes)]


@pytest.fixture
def cache_dir(tmp_path: Path) -> Path:
    """A cache folder of this test alone."""
    return tmp_path / "cache"
