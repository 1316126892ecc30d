"""Staging under strain: part sizes, memory, ranks that died, targets and arguments."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import MakeTable

import lithi_datasets as lithi
from lithi_datasets.testing import write_bundle

IDS = [f"item-{n:06d}" for n in range(12)]


@pytest.fixture
def source(tmp_path: Path, make_table: MakeTable) -> lithi.Bundle:
    """A bundle of 12 rows."""
    write_bundle(tmp_path / "b", make_table(12))
    return lithi.open_bundle(tmp_path / "b")


def _stage(folder: Path, predictions: Any, source: Any, **keywords: Any) -> Any:
    keywords = {"version_id": "pred_1", **keywords}
    return lithi.stage_predictions(folder, predictions, source=source, **keywords)


def _commit(folder: Path, source: Any, **keywords: Any) -> Any:
    keywords = {"version_id": "pred_1", "world_size": 2, **keywords}
    return lithi.commit_predictions(folder, source=source, **keywords)


def test_parts_have_the_stated_size_however_the_rows_come(
    tmp_path: Path, make_table: MakeTable
) -> None:
    write_bundle(tmp_path / "b", make_table(40_000))
    source = lithi.open_bundle(tmp_path / "b")
    ids = [f"item-{n:06d}" for n in range(40_000)]
    values = np.arange(40_000 * 16, dtype=np.float64).reshape(40_000, 16)

    def cut(rows: int) -> Iterator[dict[str, Any]]:
        for start in range(0, 40_000, rows):
            stop = start + rows
            yield {"item_id": ids[start:stop], "x": values[start:stop]}

    for rows in (40_000, 1_000, 16):
        bundle = _stage(tmp_path / f"p{rows}", cut(rows), source, part_bytes=2**20, format="arrow")
        sizes = [part.bytes for part in bundle.parts]
        assert max(sizes) < 1.1 * 2**20
        assert min(sizes[:-1]) > 0.9 * 2**20


TINY = """
import resource, sys
import numpy as np
import lithi_datasets as lithi

bundle = lithi.open_bundle(sys.argv[1])
ids = [row for batch in bundle.read_part(0) for row in batch["item_id"].to_pylist()]

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

def batches(rows, columns):
    for start in range(0, len(ids), rows):
        yield {"item_id": ids[start:start + rows],
               **{f"c{n}": np.zeros(rows, np.int8) for n in range(columns)}}

lithi.stage_predictions(sys.argv[2] + "/p", batches(1000, 40), source=bundle, version_id="p")
before = peak()
lithi.stage_predictions(sys.argv[2] + "/q", batches(5, 40), source=bundle, version_id="p")
print(peak() - before)
"""


def test_batches_of_a_few_rows_do_not_pile_up(tmp_path: Path, make_table: MakeTable) -> None:
    write_bundle(tmp_path / "b", make_table(40_000))
    script = [sys.executable, "-c", TINY, str(tmp_path / "b"), str(tmp_path)]
    grown = int(subprocess.run(script, check=True, capture_output=True, text=True).stdout)
    assert grown < 24 * 1024  # KiB; 8,000 tables of 40 columns held as they came take 350 MiB


def test_an_output_disk_that_is_full_is_a_storage_error_and_leaves_nothing(
    tmp_path: Path, source: Any
) -> None:
    kept = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, kept[1]))
    try:
        with pytest.raises(lithi.StorageError, match="could not be written"):
            _stage(tmp_path / "p", {"item_id": IDS, "x": np.random.rand(12, 512)}, source)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, kept)
        signal.signal(signal.SIGXFSZ, handler)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b"]


def test_a_rank_without_a_value_or_without_a_row_joins_the_others(
    tmp_path: Path, source: Any
) -> None:
    place = {"world_size": 4}
    _stage(tmp_path / "p", {"item_id": IDS[:6], "x": [None] * 6}, source, rank=0, **place)
    _stage(tmp_path / "p", {"item_id": IDS[6:], "x": [2**53 + 1] * 6}, source, rank=1, **place)
    _stage(tmp_path / "p", {"item_id": [], "x": []}, source, rank=2, **place)
    _stage(tmp_path / "p", iter([]), source, rank=3, **place)
    bundle = _commit(tmp_path / "p", source, world_size=4)
    rows = pa.Table.from_batches(list(bundle.read_part(0)))
    assert rows["x"].to_pylist() == [None] * 6 + [2**53 + 1] * 6
    assert bundle.arrow_schema.field("x").type == pa.int64()


def test_predictions_of_an_earlier_run_do_not_stand_for_a_rank_that_died(
    tmp_path: Path, source: Any
) -> None:
    for rank in range(2):
        predictions = {"item_id": IDS[6 * rank : 6 * rank + 6], "x": [0] * 6}
        _stage(tmp_path / "p", predictions, source, rank=rank, world_size=2)

    def dies() -> Iterator[dict[str, Any]]:
        yield {"item_id": IDS[6:], "x": [1] * 6}
        os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if not child:
        _stage(tmp_path / "p", dies(), source, rank=1, world_size=2)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    with pytest.raises(lithi.StateError, match="rank 1"):
        _commit(tmp_path / "p", source)


def test_a_share_for_another_version_or_with_other_bytes_is_a_state_error(
    tmp_path: Path, source: Any
) -> None:
    for rank in range(2):
        predictions = {"item_id": IDS[6 * rank : 6 * rank + 6], "x": [0] * 6}
        share = _stage(tmp_path / "p", predictions, source, rank=rank, world_size=2)
    with pytest.raises(lithi.StateError, match="pred_2") as caught:
        _commit(tmp_path / "p", source, version_id="pred_2")
    assert caught.value.found == "pred_1"
    rows = share.folder / "rows.arrow"
    whole = rows.read_bytes()
    for broken in (whole[:-8], whole[: len(whole) // 2], b"\0" * len(whole), b""):
        rows.write_bytes(broken)
        with pytest.raises(lithi.StateError, match="rank 1"):
            _commit(tmp_path / "p", source)
    rows.write_bytes(whole)
    note = share.folder / "share.json"
    text = note.read_text()
    for broken_note in ("[]", "{}", "", "null", text.replace("source", "sauce")):
        note.write_text(broken_note)
        with pytest.raises(lithi.StateError, match="rank 1"):
            _commit(tmp_path / "p", source)
    note.write_text(text)
    assert _commit(tmp_path / "p", source).verify().rows == 12


def test_repeated_rows_are_compared_exactly_whatever_their_times(
    tmp_path: Path, source: Any
) -> None:
    far = pa.array([2**40] * 13, pa.timestamp("s"))
    nowhere = pa.array([0] * 13, pa.timestamp("s", "Nowhere/Atall"))
    deep = pa.array([[{"t": 2**30}]] * 13, pa.list_(pa.struct([("t", pa.date32())])))
    for name, column in (("far", far), ("nowhere", nowhere), ("deep", deep)):
        table = pa.table({"item_id": [*IDS, IDS[0]], "x": column})
        bundle = _stage(tmp_path / name, table, source, duplicates="deduplicate")
        assert bundle.counts.rows == 12


def test_a_link_to_a_folder_is_followed(tmp_path: Path, source: Any) -> None:
    (tmp_path / "real").mkdir()
    for name, target in (("p", "real"), ("q", "new")):
        (tmp_path / name).symlink_to(tmp_path / target)
        _stage(tmp_path / name, {"item_id": IDS}, source)
        assert (tmp_path / name).is_symlink()
        assert lithi.open_bundle(tmp_path / target).verify().rows == 12


@pytest.mark.parametrize("folder", [None, 5, "", "a\0b", b"p", "memory://p"], ids=repr)
def test_a_folder_that_is_none_is_a_usage_error(folder: Any, source: Any) -> None:
    with pytest.raises(lithi.UsageError, match="local folder"):
        _stage(folder, {"item_id": IDS}, source)


@pytest.mark.parametrize(
    "wrong",
    [
        {"format": None},
        {"format": ["parquet"]},
        {"part_bytes": True},
        {"class_names": 5},
        {"class_names": {"x": "ab"}},
        {"missing": ["refuse"]},
        {"rank": 0.0},
        {"world_size": True},
        {"version_id": ""},
        {"version_id": "a\nb"},
        {"version_id": "\ud800"},
        {"version_id": None},
    ],
    ids=lambda wrong: str(wrong).replace("\ud800", "surrogate"),
)
def test_an_argument_that_is_wrong_is_a_usage_error(
    wrong: dict[str, Any], tmp_path: Path, source: Any
) -> None:
    with pytest.raises(lithi.UsageError):
        _stage(tmp_path / "p", {"item_id": IDS, "x": [0] * 12}, source, **wrong)
    with pytest.raises(lithi.UsageError):
        _commit(tmp_path / "p", source, world_size="2")


def test_a_source_of_several_splits_or_without_ids(tmp_path: Path, make_table: MakeTable) -> None:
    write_bundle(tmp_path / "s", {"train": make_table(8), "test": make_table(4, 8)})
    splits = lithi.load(tmp_path / "s", None, cache_dir=tmp_path / "cache")
    assert _stage(tmp_path / "p", {"item_id": IDS}, splits).counts.rows == 12
    for streaming in (False, True):
        ds = lithi.load(tmp_path / "s", streaming=streaming, cache_dir=tmp_path / "cache")
        with pytest.raises(lithi.UsageError, match="item_id"):
            _stage(tmp_path / "q", {"item_id": IDS}, ds.remove_columns("item_id"))


def test_a_source_that_holds_an_item_twice_is_named(tmp_path: Path, make_table: MakeTable) -> None:
    write_bundle(tmp_path / "t", [make_table(8), make_table(1)])
    with pytest.raises(lithi.DuplicateItemId, match="item-000000"):
        _stage(tmp_path / "p", {"item_id": IDS[:8]}, lithi.open_bundle(tmp_path / "t"))


def test_a_commit_killed_at_any_moment_leaves_a_whole_bundle_or_the_shares(
    tmp_path: Path, make_table: MakeTable
) -> None:
    write_bundle(tmp_path / "b", make_table(4_000))
    source = lithi.open_bundle(tmp_path / "b")
    ids = [f"item-{n:06d}" for n in range(4_000)]
    whole = 0
    for number in range(12):
        target = tmp_path / f"p{number}"
        for rank in range(2):
            half = ids[2_000 * rank : 2_000 * rank + 2_000]
            predictions = {"item_id": half, "x": np.zeros((2_000, 8))}
            _stage(target, predictions, source, rank=rank, world_size=2)
        child = os.fork()
        if not child:
            _commit(target, source, part_bytes=2**12)
            os._exit(0)
        time.sleep(0.02 * number)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if target.exists():
            whole += 1
        else:
            _commit(target, source, part_bytes=2**12)
        assert lithi.open_bundle(target).verify().rows == 4_000
    assert whole < 12
