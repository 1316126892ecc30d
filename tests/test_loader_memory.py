"""Memory of a loader with workers stays where it was, epoch after epoch."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import lithi_datasets as lithi
from lithi_datasets.testing import write_bundle

ROWS = 40_000


def _held() -> int:
    """Bytes of this process and its workers that no file is behind (PSS of anonymous memory)."""
    total = 0
    pids = ["self", *(str(child.pid) for child in multiprocessing.active_children())]
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
        except OSError:
            continue
        total += sum(
            int(line.split()[1]) * 1024
            for line in text.splitlines()
            if line.startswith("Pss_Anon:")
        )
    return total


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's /proc")
def test_memory_is_flat_over_three_epochs_with_four_workers(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    table = pa.table(
        {
            "item_id": [f"item-{n:06d}" for n in range(ROWS)],
            "vector": pa.FixedSizeListArray.from_arrays(
                pa.array(random.random(ROWS * 64, dtype=np.float32)), 64
            ),
            "lithi_status": ["accepted"] * ROWS,
        }
    )
    write_bundle(tmp_path / "b", table)
    ds = lithi.load(tmp_path / "b", cache_dir=tmp_path / "c")
    loader = lithi.torch_loader(ds, 256, num_workers=4, shuffle=True, seed=1)
    most = []
    for _ in range(3):
        peak = 0
        for number, _batch in enumerate(loader):
            if number % 20 == 0:
                peak = max(peak, _held())
        most.append(peak)
    rows_alone = ROWS * 64 * 4
    assert most[2] < most[0] + rows_alone, most
