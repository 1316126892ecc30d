"""A ledger of ten million rows fits in 200 MB, in whatever order they come.

    python tests/test_ledger_memory.py ROWS in_order|shuffled FOLDER

is the process that is measured. Its ids are made up; the dataset holds nothing else.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

BATCH = 1000


def made_up(folder: Path, rows: int) -> Path:
    """An Arrow file of `rows` ids, `item-00000000` and so on."""
    path = folder / "ids.arrow"
    with pa.ipc.new_stream(path, pa.schema({"item_id": pa.string()})) as writer:
        for first in range(0, rows, 2**17):
            numbers = np.arange(first, min(rows, first + 2**17))
            digits = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), 8, "0")
            ids = pc.binary_join_element_wise("item-", digits, "")
            writer.write_batch(pa.record_batch({"item_id": ids}))
    return path


def numbers_of(rows: int, order: str) -> Iterator[list[int]]:
    """The numbers of the rows, a batch at a time."""
    if order == "in_order":
        yield from (list(range(first, first + BATCH)) for first in range(0, rows, BATCH))
        return
    shuffled = np.random.default_rng(0).permutation(np.arange(rows, dtype=np.int32))
    yield from (shuffled[first : first + BATCH].tolist() for first in range(0, rows, BATCH))


def memory(name: str) -> int:
    """A line of what Linux says of this process, bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def measure(rows: int, order: str, folder: Path) -> dict[str, object]:
    import datasets

    import lithi_datasets as lithi
    from lithi_datasets.provenance import Provenance

    counts = {"items": rows, "rows": rows, "accepted": rows}
    statuses = {"accepted": rows, "failed": 0, "abstained": 0}
    known = Provenance(
        version_id="res_made_up",
        content_sha256="0123456789abcdef" * 4,
        item_id_field="item_id",
        counts={**counts, **statuses, "outstanding": 0},
        required=("item_id",),
        nullable=(),
        statuses=None,
        splits={"train": rows},
        status_counts={"train": statuses},
    )
    info = datasets.DatasetInfo(download_checksums=known.as_checksums())
    ds = datasets.Dataset.from_file(str(folder / "ids.arrow"), info, split=datasets.Split.TRAIN)
    for chunk in ds.data.column("item_id").chunks:
        chunk.validate(full=True)  # from here on the file is in memory
    batches = numbers_of(rows, order)
    first = next(batches)
    before = memory("VmRSS")
    ledger = lithi.Ledger(ds)
    ledger.observe({"item_id": [f"item-{n:08d}" for n in first]})
    for numbers in batches:
        ledger.observe({"item_id": [f"item-{n:08d}" for n in numbers]})
    found = ledger.reconcile().as_dict()
    ledger.observe({"item_id": ["item-00000007", "no row's"]})
    try:
        ledger.reconcile()
    except lithi.ReconcileError as error:
        named = [*error.repeated, *error.foreign]
    return {"grown": memory("VmHWM") - before, "found": found, "named": named}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("order", ["in_order", "shuffled"])
@pytest.mark.parametrize(
    ("rows", "limit"),
    [(1_000_000, 40e6), pytest.param(10_000_000, 200e6, marks=pytest.mark.soak)],
)
def test_memory_is_a_few_bytes_a_row(tmp_path: Path, rows: int, limit: float, order: str) -> None:
    made_up(tmp_path, rows)
    command = [sys.executable, __file__, str(rows), order, str(tmp_path)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result = json.loads(text)
    assert result["found"]["rows"] == rows
    assert result["named"] == ["item-00000007", "no row's"]
    assert result["grown"] < limit


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))))
