"""The scripts under loading_scripts/: each one is run as a user would run it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import datasets
import pytest
from conftest import MakeTable

import lithi_datasets as lithi
from lithi_datasets import sample
from lithi_datasets.testing import write_bundle

ROOT = Path(__file__).parent.parent
SCRIPTS = ROOT / "loading_scripts"
SCRIPT = str(SCRIPTS / "lithi_bundle.py")
RUNS_SCRIPTS = int(datasets.__version__.partition(".")[0]) < 4

before_4 = pytest.mark.skipif(not RUNS_SCRIPTS, reason="datasets 4 and newer run no scripts")


@before_4
def test_the_script_loads_a_bundle_as_the_registered_name_does(
    tmp_path: Path, make_table: MakeTable, cache_dir: Path
) -> None:
    write_bundle(
        tmp_path / "b", {"train": [make_table(5), make_table(4, 5)], "test": make_table(2, 9)}
    )
    loaded = [
        datasets.load_dataset(
            name, data_dir=str(tmp_path / "b"), cache_dir=str(cache_dir), **options
        )
        for name, options in ((SCRIPT, {"trust_remote_code": True}), ("lithi_bundle", {}))
    ]
    script, named = loaded
    assert {split: ds.num_rows for split, ds in script.items()} == {"train": 9, "test": 2}
    assert script["train"]._fingerprint == named["train"]._fingerprint
    assert script["train"].features == named["train"].features
    assert script["train"].cache_files == named["train"].cache_files
    assert lithi.snapshot_of(script["train"]) == lithi.open_bundle(tmp_path / "b").snapshot


@before_4
def test_the_script_takes_the_keywords_and_streams(
    tmp_path: Path, make_table: MakeTable, cache_dir: Path
) -> None:
    snapshot = write_bundle(tmp_path / "b", make_table(10))
    stream = datasets.load_dataset(
        SCRIPT,
        data_dir=str(tmp_path / "b"),
        trust_remote_code=True,
        split="train",
        streaming=True,
        statuses=["failed"],
        columns=["big"],
        snapshot=snapshot.as_dict(),
        cache_dir=str(cache_dir),
    )
    rows = list(stream)
    assert [row["item_id"] for row in rows] == ["item-000002", "item-000007"]
    assert rows[0].keys() == {"item_id", "big", "lithi_status"}


@before_4
def test_errors_come_through_the_script_as_themselves(
    tmp_path: Path, make_table: MakeTable, cache_dir: Path
) -> None:
    def load(folder: Path) -> None:
        datasets.load_dataset(
            SCRIPT, data_dir=str(folder), trust_remote_code=True, cache_dir=str(cache_dir)
        )

    (tmp_path / "empty").mkdir()
    for folder in ("empty", "nowhere"):
        with pytest.raises(lithi.ManifestMissing):
            load(tmp_path / folder)
    write_bundle(tmp_path / "b", make_table(5))
    part = tmp_path / "b" / "parts" / "part-00000.parquet"
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    with pytest.raises(lithi.FileDigestMismatch) as caught:
        load(tmp_path / "b")
    assert str(caught.value.path).endswith("parts/part-00000.parquet")
    assert not list(cache_dir.rglob("*.arrow"))


@pytest.mark.skipif(RUNS_SCRIPTS, reason="datasets 3.6 runs scripts")
def test_newer_datasets_refuse_scripts_and_the_docs_say_what_replaces_them() -> None:
    with pytest.raises(RuntimeError, match="no longer supported"):
        datasets.load_dataset(SCRIPT, data_dir=sample.path())
    for page in (SCRIPT, ROOT / "docs" / "loading-scripts.md"):
        text = Path(page).read_text(encoding="utf-8")
        assert 'load_dataset("lithi_bundle", data_dir=' in text
        assert "trust_remote_code=True" in text


def run(*command: str, home: Path) -> str:
    """The output of a script, run with an empty home and cache."""
    environment = {
        **{name: os.environ[name] for name in ("PATH", "HF_HUB_OFFLINE")},
        "HOME": str(home),
        "HF_HOME": str(home / "hf"),
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, env=environment, timeout=200
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def torchrun(script: str, home: Path, *arguments: str) -> str:
    options = ("--standalone", "--nproc-per-node", "2")
    command = ("-m", "torch.distributed.run", *options, str(SCRIPTS / script), *arguments)
    return run(*command, home=home)


def rows_of(printed: str, epoch: int) -> list[int]:
    return [int(n) for n in re.findall(rf"rank \d epoch {epoch}: (\d+) rows", printed)]


def accepted_rows() -> int:
    """Rows of the sample's split `train` that the run accepted."""
    bundle = lithi.open_bundle(sample.path())
    counts = [bundle.parts[index].status_counts for index in bundle.splits["train"]]
    return sum(count.accepted for count in counts if count is not None)


def test_map_style_training_runs_alone(tmp_path: Path) -> None:
    printed = run(str(SCRIPTS / "train_map.py"), home=tmp_path)
    assert [rows_of(printed, epoch) for epoch in range(3)] == [[accepted_rows()]] * 3


def test_map_style_training_splits_every_row_once_over_ranks(tmp_path: Path) -> None:
    printed = torchrun("train_map.py", tmp_path)
    steps = {*re.findall(r"in (\d+) steps", printed)}
    assert len(steps) == 1
    shares = rows_of(printed, 0)
    assert len(shares) == 2
    assert abs(shares[0] - shares[1]) <= int(next(iter(steps)))
    assert sum(shares) == accepted_rows()


def test_training_on_a_stream_reads_every_row_once_under_torchrun(tmp_path: Path) -> None:
    printed = torchrun("train_stream.py", tmp_path)
    bundle = lithi.open_bundle(sample.path())
    total = sum(bundle.parts[index].rows for index in bundle.splits["train"])
    for epoch in range(2):
        shares = rows_of(printed, epoch)
        assert len(shares) == 2
        assert sum(shares) == total


def test_predictions_are_written_back_alone_and_by_two_ranks(tmp_path: Path) -> None:
    source = lithi.open_bundle(sample.path())
    test = lithi.load(source, "test").with_format(None)
    for name, printed in (
        ("one", run(str(SCRIPTS / "write_predictions.py"), str(tmp_path / "one"), home=tmp_path)),
        ("two", torchrun("write_predictions.py", tmp_path, str(tmp_path / "two"))),
    ):
        assert f"360 rows in {tmp_path / name}" in printed
        staged = lithi.open_bundle(tmp_path / name)
        assert staged.manifest.derived_from[0].as_dict() == source.snapshot.as_dict()
        rows = lithi.load(staged, cache_dir=tmp_path / "cache").with_format(None)
        assert sorted(rows["item_id"]) == sorted(test["item_id"])
        assert {"logits", "digit"} < rows.features.keys()
    assert re.findall(r"rank \d: (\d+) rows", printed) == ["180", "180"]
