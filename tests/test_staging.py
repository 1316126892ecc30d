"""Predictions back as a bundle: each id once, dtypes as given, whole or not at all."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from conftest import MakeTable

import lithi_datasets as lithi
from lithi_datasets.staging import StagedShare, commit_predictions, stage_predictions
from lithi_datasets.testing import write_bundle

IDS = [f"item-{n:06d}" for n in range(37)]


@pytest.fixture
def source(tmp_path: Path, make_table: MakeTable) -> Any:
    """A dataset of 37 rows."""
    write_bundle(tmp_path / "b", [make_table(20), make_table(17, 20)])
    return lithi.load(tmp_path / "b", cache_dir=tmp_path / "cache")


def _predict(source: Any, **loader: Any) -> Iterator[dict[str, Any]]:
    for batch in lithi.torch_loader(source, 4, **loader):
        rows = len(batch["item_id"])
        yield {
            "item_id": batch["item_id"],
            "logits": torch.arange(3 * rows, dtype=torch.float16).reshape(rows, 3),
            "label": torch.ones(rows, dtype=torch.int8),
        }


def _stage(folder: Path, predictions: Any, source: Any, **keywords: Any) -> Any:
    return stage_predictions(folder, predictions, source=source, version_id="pred_1", **keywords)


@pytest.mark.parametrize("format", ["parquet", "arrow", "jsonl"])
def test_predictions_become_a_bundle_derived_from_their_source(
    format: str, tmp_path: Path, source: Any
) -> None:
    bundle = _stage(tmp_path / "p", _predict(source), source, format=format)
    assert bundle.manifest.bundle_kind == "staged_input"
    assert bundle.manifest.derived_from == (lithi.snapshot_of(source),)
    assert bundle.arrow_schema.field("logits").type == pa.list_(pa.float16(), 3)
    assert bundle.arrow_schema.field("label").type == pa.int8()
    assert bundle.verify().rows == 37
    assert lithi.open_bundle(tmp_path / "p").snapshot == bundle.snapshot
    staged = lithi.load(tmp_path / "p", cache_dir=tmp_path / "cache")
    assert staged.with_format(None)["item_id"][:] == IDS
    assert not list(tmp_path.glob(".lithi-tmp-*"))


@pytest.mark.parametrize("format", ["parquet", "arrow", "jsonl", "csv"])
def test_integers_past_2_53_with_nulls_survive(format: str, tmp_path: Path, source: Any) -> None:
    big = [2**53 + 1 + n if n % 3 else None for n in range(37)]
    bundle = _stage(tmp_path / "p", {"item_id": IDS, "big": big}, source, format=format)
    rows = pa.Table.from_batches([batch for n in range(1) for batch in bundle.read_part(n)])
    assert rows["big"].to_pylist() == big
    assert rows.schema.field("big").type == pa.int64()


def test_every_shape_of_predictions_is_taken(tmp_path: Path, source: Any) -> None:
    import datasets

    table = pa.table({"item_id": IDS, "x": pa.array(range(37), pa.uint16())})
    shapes: dict[str, Any] = {
        "table": table,
        "batch": table.to_batches()[0],
        "dataset": datasets.Dataset(table),
        "dict": {"item_id": IDS, "x": np.arange(37, dtype=np.uint16)},
        "iterator": iter([table.slice(0, 5), table.slice(5).to_batches()[0]]),
        "scalars": {"item_id": tuple(IDS), "x": [np.uint16(n) for n in range(37)]},
        "tensors": {"item_id": IDS, "x": [torch.tensor(n, dtype=torch.uint16) for n in range(37)]},
    }
    digests = set()
    for name, predictions in shapes.items():
        bundle = _stage(tmp_path / name, predictions, source)
        assert bundle.arrow_schema.field("x").type == pa.uint16(), name
        digests.add(bundle.parts[0].sha256)
    assert len(digests) == 1


def test_a_column_that_begins_with_nulls_gets_its_type_from_later_batches(
    tmp_path: Path, source: Any
) -> None:
    batches = [
        {"item_id": IDS[:5], "x": [None] * 5},
        {"item_id": IDS[5:], "x": [1.5] * 32},
    ]
    bundle = _stage(tmp_path / "p", batches, source, part_bytes=1)
    assert bundle.arrow_schema.field("x").type == pa.float64()
    assert [part.rows for part in bundle.parts] == [1] * 37
    with pytest.raises(lithi.UsageError, match="nothing but nulls"):
        _stage(tmp_path / "q", batches[:1], source, missing="outstanding")


@pytest.mark.parametrize(
    ("predictions", "named"),
    [
        ({"item_id": IDS[:-1]}, "'item-000036'"),
        ({"item_id": [*IDS, IDS[3]]}, "'item-000003'"),
        ({"item_id": [*IDS, "stranger"]}, "'stranger'"),
        ({"item_id": [*IDS[:-1], None]}, "null"),
        ({"item_id": list(range(37))}, "0"),
        ({"id": IDS}, "'id'"),
        ({"item_id": IDS, "x": [1]}, "x: 1"),
        ({"item_id": IDS, "x": torch.zeros(37, dtype=torch.bfloat16)}, "bfloat16"),
        ([{"item_id": IDS[:9], "x": [1] * 9}, {"item_id": IDS[9:], "x": [1.5] * 28}], "double"),
        ([{"item_id": IDS[:9], "x": [1] * 9}, {"item_id": IDS[9:]}], "item_id"),
        ([], "no predictions"),
        ("item-000001", "str"),
        ([3], "int"),
        ({"item_id": IDS, "lithi_status": ["fine"] * 37}, "fine"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_wrong_predictions_are_refused_by_name_and_leave_nothing(
    predictions: Any, named: str, tmp_path: Path, source: Any
) -> None:
    with pytest.raises(lithi.LithiError) as caught:
        _stage(tmp_path / "p", predictions, source)
    assert named in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "cache"]


def test_a_folder_that_holds_anything_is_refused(tmp_path: Path, source: Any) -> None:
    _stage(tmp_path / "p", _predict(source), source)
    before = (tmp_path / "p" / "result-manifest.json").read_bytes()
    with pytest.raises(lithi.UsageError, match="result-manifest"):
        _stage(tmp_path / "p", _predict(source), source)
    assert (tmp_path / "p" / "result-manifest.json").read_bytes() == before


def test_missing_ids_make_a_partial_bundle_that_binds_them(tmp_path: Path, source: Any) -> None:
    bundle = _stage(tmp_path / "p", {"item_id": IDS[:30]}, source, missing="outstanding")
    assert bundle.manifest.status == "PARTIAL"
    assert bundle.outstanding_items() == IDS[30:]
    assert bundle.verify().files == 2
    with pytest.raises(lithi.BundlePartial) as caught:
        lithi.open_bundle(tmp_path / "p")
    assert caught.value.next_action is not None
    assert caught.value.next_action["action"] == "RESUBMIT_OUTSTANDING"


def test_a_view_of_the_source_wants_its_own_ids_only(tmp_path: Path, source: Any) -> None:
    part = source.select(range(10))
    bundle = _stage(tmp_path / "p", {"item_id": IDS[:10][::-1]}, part)
    assert bundle.counts.rows == 10
    whole = _stage(tmp_path / "q", {"item_id": IDS}, lithi.open_bundle(tmp_path / "b"))
    assert whole.counts.rows == 37
    stream = lithi.load(tmp_path / "b", streaming=True)
    assert _stage(tmp_path / "r", {"item_id": IDS}, stream).counts.rows == 37


def test_ranks_stage_their_own_and_one_commits(tmp_path: Path, source: Any) -> None:
    for rank in range(3):
        share = _stage(
            tmp_path / "p",
            _predict(source, rank=rank, world_size=3),
            source,
            rank=rank,
            world_size=3,
        )
        assert isinstance(share, StagedShare)
    bundle = commit_predictions(tmp_path / "p", source=source, version_id="pred_1", world_size=3)
    assert bundle.verify().rows == 37
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "cache", "p"]


def test_a_row_that_two_ranks_predicted_is_refused_by_name_or_dropped_on_request(
    tmp_path: Path, source: Any
) -> None:
    def stage(x: float) -> None:
        for rank, ids in enumerate((IDS[:19], [*IDS[19:], IDS[0]])):
            values = [1.0] * (len(ids) - 1) + [x if rank else 1.0]
            predictions = {"item_id": ids, "x": values}
            _stage(tmp_path / "p", predictions, source, rank=rank, world_size=2)

    def commit(**keywords: Any) -> Any:
        return commit_predictions(
            tmp_path / "p", source=source, version_id="pred_1", world_size=2, **keywords
        )

    stage(2.0)
    with pytest.raises(lithi.UsageError, match="item-000000"):
        commit()
    with pytest.raises(lithi.UsageError, match="different predictions"):
        commit(duplicates="deduplicate")
    stage(1.0)
    assert commit(duplicates="deduplicate").verify().rows == 37


def test_a_share_that_is_missing_or_of_another_source_is_a_state_error(
    tmp_path: Path, source: Any, make_table: MakeTable
) -> None:
    _stage(tmp_path / "p", {"item_id": IDS}, source, rank=0, world_size=2)
    with pytest.raises(lithi.StateError, match="rank 1"):
        commit_predictions(tmp_path / "p", source=source, version_id="pred_1", world_size=2)
    write_bundle(tmp_path / "o", make_table(37), version_id="other")
    other = lithi.open_bundle(tmp_path / "o")
    _stage(tmp_path / "p", {"item_id": IDS}, source, rank=1, world_size=2)
    with pytest.raises(lithi.StateError, match="another source"):
        commit_predictions(tmp_path / "p", source=other, version_id="pred_1", world_size=2)


STAGE = """
import multiprocessing, os, signal, sys, time
import numpy as np
import lithi_datasets as lithi
from lithi_datasets.staging import stage_predictions

bundle = lithi.open_bundle(sys.argv[1])
ids = [row for batch in bundle.read_part(0) for row in batch["item_id"].to_pylist()]

def batches():
    for start in range(0, len(ids), 500):
        yield {"item_id": ids[start:start + 500], "x": np.random.rand(500, 64)}

def stage(target):
    stage_predictions(target, batches(), source=bundle, version_id="p", part_bytes=2**18)

context = multiprocessing.get_context("fork")
for number in range(30):
    child = context.Process(target=stage, args=(f"{sys.argv[2]}/p{number}",))
    child.start()
    time.sleep(0.01 + np.random.rand() * 0.6)
    os.kill(child.pid, signal.SIGKILL)
    child.join()
"""


def test_a_writer_killed_at_any_moment_leaves_no_bundle_or_a_whole_one(
    tmp_path: Path, make_table: MakeTable
) -> None:
    write_bundle(tmp_path / "b", make_table(10_000))
    (tmp_path / "out").mkdir()
    script = [sys.executable, "-c", STAGE, str(tmp_path / "b"), str(tmp_path / "out")]
    subprocess.run(script, check=True)
    left = 0
    for number in range(30):
        target = tmp_path / "out" / f"p{number}"
        if target.exists():
            assert lithi.open_bundle(target).verify().rows == 10_000
        else:
            left += 1
            with pytest.raises(lithi.ManifestMissing):
                lithi.open_bundle(target)
    assert left > 0


def test_staging_holds_a_part_not_the_predictions(tmp_path: Path, make_table: MakeTable) -> None:
    write_bundle(tmp_path / "b", make_table(40_000))
    source = lithi.open_bundle(tmp_path / "b")
    ids = [f"item-{n:06d}" for n in range(40_000)]
    peak = 0

    def batches() -> Iterator[dict[str, Any]]:
        nonlocal peak
        for start in range(0, 40_000, 1000):
            peak = max(peak, pa.total_allocated_bytes())
            yield {"item_id": ids[start : start + 1000], "x": np.zeros((1000, 256))}

    bundle = _stage(tmp_path / "p", batches(), source, part_bytes=4 * 2**20)
    assert len(bundle.parts) > 10
    assert peak < 40 * 2**20  # the predictions are 80 MB


def test_supersedes_is_written(tmp_path: Path, source: Any) -> None:
    older = _stage(tmp_path / "p", {"item_id": IDS[:30]}, source, missing="outstanding")
    newer = _stage(tmp_path / "q", {"item_id": IDS}, source, supersedes=older.snapshot)
    assert newer.manifest.supersedes == older.snapshot
