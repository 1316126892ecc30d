"""Identity is the content digest: never a path, a time, a worker count or a hash seed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pytest
from conftest import MakeTable

import lithi_datasets as lithi
from lithi_datasets.testing import write_bundle


def _load(folder: Path | str, cache: Path, **keywords: Any) -> datasets.Dataset:
    return datasets.load_dataset(
        "lithi_bundle", data_dir=str(folder), cache_dir=str(cache), split="train", **keywords
    )


def _entries(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "lithi_bundle").iterdir())


def test_the_same_bytes_in_two_folders_share_fingerprint_and_cache(
    tmp_path: Path, cache_dir: Path, make_table: MakeTable
) -> None:
    write_bundle(tmp_path / "one", make_table(5))
    write_bundle(tmp_path / "two", make_table(5))
    first = _load(tmp_path / "one", cache_dir)
    assert len(_entries(cache_dir)) == 1
    second = _load(tmp_path / "two", cache_dir)
    assert len(_entries(cache_dir)) == 1
    assert first._fingerprint == second._fingerprint
    assert first.cache_files == second.cache_files


def test_a_bundle_rewritten_in_place_gives_the_new_rows(
    tmp_path: Path, cache_dir: Path, make_table: MakeTable
) -> None:
    write_bundle(tmp_path / "b", make_table(5))
    manifest = tmp_path / "b" / "result-manifest.json"
    before = os.stat(manifest)
    first = _load(tmp_path / "b", cache_dir)
    write_bundle(tmp_path / "b", make_table(5, 100), overwrite=True)
    for path in (tmp_path / "b").rglob("*"):
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    second = _load(tmp_path / "b", cache_dir)
    assert second["item_id"][:] == [f"item-{n:06d}" for n in range(100, 105)]
    assert first._fingerprint != second._fingerprint


def test_the_same_relative_path_in_two_working_folders_gives_each_its_rows(
    tmp_path: Path, cache_dir: Path, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, place in enumerate(("here", "there")):
        write_bundle(tmp_path / place / "data", make_table(3, 10 * number))
        monkeypatch.chdir(tmp_path / place)
        assert _load("data", cache_dir)["item_id"][0] == f"item-{10 * number:06d}"


def test_views_of_one_bundle_have_fingerprints_of_their_own(
    tmp_path: Path, cache_dir: Path, make_table: MakeTable
) -> None:
    write_bundle(tmp_path / "b", {"train": make_table(10), "test": make_table(10, 10)})
    views: list[dict[str, Any]] = [
        {},
        {"split": "test"},
        {"split": "train[:5]"},
        {"split": "train[5:]"},
        {"split": "train+test"},
        {"statuses": ["accepted"]},
        {"statuses": ["accepted", "failed"]},
        {"columns": ["big"]},
    ]
    prints = [
        datasets.load_dataset(
            "lithi_bundle",
            data_dir=str(tmp_path / "b"),
            cache_dir=str(cache_dir),
            **{"split": "train", **view},
        )._fingerprint
        for view in views
    ]
    assert len(set(prints)) == len(views)
    same = _load(tmp_path / "b", cache_dir, statuses=["failed", "accepted", "failed"])
    assert same._fingerprint == prints[6]
    every = _load(tmp_path / "b", cache_dir, statuses=["failed", "accepted", "abstained"])
    assert every._fingerprint == prints[0]


def test_a_map_on_one_split_is_not_served_from_the_others_cache(
    tmp_path: Path, cache_dir: Path, make_table: MakeTable
) -> None:
    write_bundle(tmp_path / "b", {"train": make_table(10), "test": make_table(10, 10)})
    both = datasets.load_dataset(
        "lithi_bundle", data_dir=str(tmp_path / "b"), cache_dir=str(cache_dir)
    )
    mapped = {name: ds.map(_shout) for name, ds in both.items()}
    assert mapped["train"]["loud"][0] == "ITEM-000000"
    assert mapped["test"]["loud"][0] == "ITEM-000010"
    again = _load(tmp_path / "b", cache_dir).map(_shout)
    assert again.cache_files == mapped["train"].cache_files


def _shout(row: dict[str, Any]) -> dict[str, Any]:
    return {"loud": row["item_id"].upper()}


PRINT_IDENTITY = """
import sys, json, time
if sys.argv[4] != "now":
    real = time.time
    time.time = lambda: real() + 86400 * 365
import datasets, lithi_datasets
ds = datasets.load_dataset("lithi_bundle", data_dir=sys.argv[1], cache_dir=sys.argv[2],
split="train",
    num_proc=int(sys.argv[3]) or None)
print(json.dumps([ds._fingerprint, ds.map(lambda r: {"x": r["item_id"]})._fingerprint,
    [f["filename"].rsplit("/", 1)[-1] for f in ds.cache_files], len(ds)]))
"""


def test_the_fingerprint_is_equal_over_processes_hash_seeds_workers_and_clock(
    tmp_path: Path, uneven_tables: list[pa.Table]
) -> None:
    write_bundle(tmp_path / "b", uneven_tables)
    found = []
    for number, (seed, workers, clock) in enumerate(
        (("0", 0, "now"), ("1", 2, "now"), ("77", 5, "later"))
    ):
        cache = tmp_path / f"cache{number}"
        ended = subprocess.run(
            [
                sys.executable,
                "-c",
                PRINT_IDENTITY,
                str(tmp_path / "b"),
                str(cache),
                str(workers),
                clock,
            ],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        found.append(json.loads(ended.stdout))
    assert found[0] == found[1] == found[2]
    assert found[0][3] == 37


def test_shards_are_equal_byte_for_byte_for_any_number_of_workers(
    tmp_path: Path, uneven_tables: list[pa.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lithi_datasets.convert.SHARD_SOURCE_BYTES", 1)
    write_bundle(tmp_path / "b", uneven_tables)
    found = []
    for workers in (1, 2, 5):
        ds = _load(tmp_path / "b", tmp_path / f"cache{workers}", num_proc=workers)
        found.append([Path(f["filename"]).read_bytes() for f in ds.cache_files])
    assert len(found[0]) == 5
    assert found[0] == found[1] == found[2]


def test_a_second_load_converts_nothing(
    tmp_path: Path, cache_dir: Path, make_table: MakeTable
) -> None:
    write_bundle(tmp_path / "b", make_table(5))
    (shard,) = [f["filename"] for f in _load(tmp_path / "b", cache_dir).cache_files]
    before = os.stat(shard)
    time.sleep(0.01)
    for path in (tmp_path / "b" / "parts").iterdir():
        path.unlink()
    assert len(_load(tmp_path / "b", cache_dir)) == 5
    assert os.stat(shard).st_mtime_ns == before.st_mtime_ns
    assert (
        lithi.snapshot_of(_load(tmp_path / "b", cache_dir))
        == lithi.open_bundle(tmp_path / "b").snapshot
    )
