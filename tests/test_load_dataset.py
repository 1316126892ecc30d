"""`load_dataset("lithi_bundle", …)`: rows, types, splits, and what the keywords mean."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import MakeTable, result_table
from datasets.distributed import split_dataset_by_node

import lithi_datasets as lithi
from lithi_datasets.testing import PartSpec, fault_filesystem, write_bundle

FORMATS = {
    "parquet": {"format": "parquet"},
    "arrow_file": {"format": "arrow"},
    "arrow_stream": {"format": "arrow", "options": {"stream": True}},
}


def _load(folder: Path, cache: Path, **keywords: Any) -> Any:
    return datasets.load_dataset(
        "lithi_bundle", data_dir=str(folder), cache_dir=str(cache), **keywords
    )


def _table(ds: datasets.Dataset) -> pa.Table:
    return ds.with_format("arrow")[:]


def _plain(table: pa.Table) -> pa.Table:
    return table.cast(pa.schema([pa.field(f.name, f.type) for f in table.schema]))


@pytest.mark.parametrize("writing", FORMATS.values(), ids=list(FORMATS))
def test_rows_and_types_equal_the_tables_that_went_in(
    writing: dict[str, Any], tmp_path: Path, cache_dir: Path, make_table: MakeTable
) -> None:
    tables = [make_table(7), make_table(0), make_table(5, 7), make_table(9000, 12)]
    write_bundle(tmp_path / "b", tables, **writing)
    ds = _load(tmp_path / "b", cache_dir, split="train")
    whole = pa.concat_tables(tables)
    assert ds.data.schema.equals(_plain(whole).schema)
    assert _table(ds).equals(_plain(whole))
    stream = _load(tmp_path / "b", cache_dir, split="train", streaming=True)
    assert list(stream) == whole.to_pylist()
    assert stream.features == ds.features


def test_every_part_empty_gives_empty_splits_of_the_declared_types(
    tmp_path: Path, cache_dir: Path, make_table: MakeTable
) -> None:
    write_bundle(tmp_path / "b", {"train": [make_table(0), make_table(0)], "test": make_table(0)})
    loaded = _load(tmp_path / "b", cache_dir)
    assert {split: len(ds) for split, ds in loaded.items()} == {"train": 0, "test": 0}
    assert loaded["test"].features["vector"] == lithi.open_bundle(tmp_path / "b").features["vector"]
    assert list(_load(tmp_path / "b", cache_dir, split="train", streaming=True)) == []
    assert list(lithi.load(tmp_path / "b", cache_dir=cache_dir)) == []


def test_no_part_at_all_is_one_empty_split(tmp_path: Path, cache_dir: Path) -> None:
    fields = [
        {"name": "item_id", "type": "string", "nullable": False},
        {"name": "lithi_status", "type": "string", "nullable": False},
    ]
    write_bundle(tmp_path / "b", [], fields=fields)
    loaded = _load(tmp_path / "b", cache_dir)
    assert {split: len(ds) for split, ds in loaded.items()} == {"train": 0}
    assert list(_load(tmp_path / "b", cache_dir, split="train", streaming=True)) == []


def test_splits_come_from_the_manifest_in_their_order(
    tmp_path: Path, cache_dir: Path, make_table: MakeTable
) -> None:
    write_bundle(
        tmp_path / "b",
        [
            PartSpec(make_table(3), split="valid.v2"),
            PartSpec(make_table(4, 3), split="train"),
            PartSpec(make_table(5, 7), split="valid.v2", format="arrow"),
        ],
    )
    loaded = _load(tmp_path / "b", cache_dir)
    assert list(loaded) == ["valid.v2", "train"]
    assert loaded["valid.v2"]["item_id"][:] == [f"item-{n:06d}" for n in (0, 1, 2, 7, 8, 9, 10, 11)]
    both = _load(tmp_path / "b", cache_dir, split="train+valid.v2[2:5]")
    assert both["item_id"][:] == [f"item-{n:06d}" for n in (3, 4, 5, 6, 2, 7, 8)]
    assert len(_load(tmp_path / "b", cache_dir, split="all")) == 12
    assert len(_load(tmp_path / "b", cache_dir, split="train[:50%]")) == 2
    with pytest.raises(lithi.UsageError, match=r"valid\.v2"):
        _load(tmp_path / "b", cache_dir, split="test")
    with pytest.raises(lithi.UsageError, match=r"valid\.v2"):
        _load(tmp_path / "b", cache_dir, split="test", streaming=True)


def test_a_staged_input_with_another_id_field(tmp_path: Path, cache_dir: Path) -> None:
    table = pa.table({"n": pa.array([1, 2], pa.int16()), "key": pa.array(["00123", "0x1"])})
    write_bundle(tmp_path / "b", table, kind="staged_input", item_id_field="key")
    ds = _load(tmp_path / "b", cache_dir, split="train")
    assert _table(ds).equals(table)
    assert lithi.open_bundle(tmp_path / "b").item_id_field == "key"
    kept = lithi.load(tmp_path / "b", columns=[], statuses=["accepted"], cache_dir=cache_dir)
    assert kept.column_names == ["key"]
    assert kept["key"][:] == ["00123", "0x1"]
    assert len(lithi.load(tmp_path / "b", statuses=["failed"], cache_dir=cache_dir)) == 0


def test_statuses_and_columns_choose_rows_and_columns_map_style_and_streaming(
    tmp_path: Path, cache_dir: Path, uneven_tables: list[pa.Table]
) -> None:
    write_bundle(tmp_path / "b", uneven_tables)
    whole = pa.concat_tables(uneven_tables).to_pylist()
    wanted = [
        {name: row[name] for name in ("item_id", "big", "lithi_status")}
        for row in whole
        if row["lithi_status"] != "accepted"
    ]
    view: dict[str, Any] = {"statuses": ["failed", "abstained"], "columns": ["big"]}
    ds = _load(tmp_path / "b", cache_dir, split="train", **view)
    assert ds.column_names == ["item_id", "big", "lithi_status"]
    assert ds[:] == {name: [row[name] for row in wanted] for name in ds.column_names}
    stream = _load(tmp_path / "b", cache_dir, split="train", streaming=True, **view)
    assert list(stream) == wanted
    assert stream.column_names == ds.column_names


@pytest.mark.parametrize(
    "keywords",
    [
        {"columns": ["nope"]},
        {"columns": "score"},
        {"statuses": ["nope"]},
        {"statuses": []},
        {"statuses": "accepted"},
        {"features": datasets.Features({"a": datasets.Value("string")})},
        {"storage_options": {"key": "hunter22"}},
        {"token": "hunter22"},
        {"nonsense": 1},
        {"num_proc": 0},
        {"data_files": "other/result-manifest.json"},
    ],
    ids=lambda keywords: next(iter(keywords)) + "=" + repr(next(iter(keywords.values())))[:12],
)
def test_a_keyword_without_a_meaning_is_wrong_usage(
    keywords: dict[str, Any], tmp_path: Path, cache_dir: Path, make_table: MakeTable
) -> None:
    write_bundle(tmp_path / "b", make_table(5))
    with pytest.raises(lithi.UsageError) as caught:
        _load(tmp_path / "b", cache_dir, **keywords)
    assert "hunter22" not in str(caught.value)


@pytest.mark.parametrize(
    "data_files", [["a", "b"], {"train": "a"}, {"train": ["a"], "test": ["b"]}], ids=str
)
def test_several_data_files_are_wrong_usage(data_files: Any, cache_dir: Path) -> None:
    with pytest.raises(lithi.UsageError, match="one manifest"):
        datasets.load_dataset("lithi_bundle", data_files=data_files, cache_dir=str(cache_dir))
    with pytest.raises(lithi.UsageError, match="data_dir"):
        datasets.load_dataset("lithi_bundle", cache_dir=str(cache_dir))


@pytest.mark.parametrize(
    "name", ["plain", "a[b]*?", "mit ümlaut & space", "[0-9]", "{x}", "a%20b", "~x"]
)
def test_any_folder_name_loads_through_every_door(
    name: str, tmp_path: Path, cache_dir: Path, make_table: MakeTable
) -> None:
    folder = tmp_path / name
    snapshot = write_bundle(folder, make_table(5))
    manifest = str(folder / "result-manifest.json")
    for keywords in (
        {"data_dir": str(folder)},
        {"data_files": manifest},
        {"data_files": [str(folder)]},
    ):
        ds = datasets.load_dataset(
            "lithi_bundle", cache_dir=str(cache_dir), split="train", **keywords
        )
        assert lithi.snapshot_of(ds) == snapshot
    assert lithi.open_bundle(folder).snapshot == snapshot
    assert lithi.open_bundle(manifest).verify().rows == 5


@pytest.mark.parametrize("name", ["plain", "a[b]*?"])
@pytest.mark.parametrize("made", [True, False], ids=["empty", "missing"])
def test_a_folder_without_a_bundle_is_manifest_missing_through_every_door(
    name: str, made: bool, tmp_path: Path, cache_dir: Path
) -> None:
    folder = tmp_path / name
    if made:
        folder.mkdir()
    manifest = str(folder / "result-manifest.json")
    for keywords in (
        {"data_dir": str(folder)},
        {"data_files": manifest},
        {"data_files": str(folder)},
    ):
        for streaming in (False, True):
            with pytest.raises(lithi.ManifestMissing):
                datasets.load_dataset(
                    "lithi_bundle", cache_dir=str(cache_dir), streaming=streaming, **keywords
                )
    for source in (folder, manifest):
        with pytest.raises(lithi.ManifestMissing):
            lithi.open_bundle(source)


def test_a_url_loads_through_both_keywords(cache_dir: Path, make_table: MakeTable) -> None:
    snapshot = write_bundle("memory://test_load/b", make_table(5))
    for keywords in (
        {"data_dir": "memory://test_load/b"},
        {"data_files": "memory://test_load/b/result-manifest.json"},
    ):
        ds = datasets.load_dataset(
            "lithi_bundle", cache_dir=str(cache_dir), split="train", **keywords
        )
        assert lithi.snapshot_of(ds) == snapshot


def test_strays_cost_nothing_and_are_not_opened(
    tmp_path: Path, cache_dir: Path, make_table: MakeTable
) -> None:
    write_bundle(tmp_path / "b", make_table(5))
    for number in range(20_000):
        (tmp_path / "b" / f"stray-{number}.parquet").touch()
    os.mkfifo(tmp_path / "b" / "stray.fifo")
    with fault_filesystem(tmp_path / "b") as scene:
        for streaming in (False, True):
            loaded = datasets.load_dataset(
                "lithi_bundle",
                data_dir=scene.url,
                cache_dir=str(cache_dir),
                streaming=streaming,
                split="train",
            )
            assert len(list(loaded)) == 5
        assert set(scene.touched) == {"result-manifest.json", "parts/part-00000.parquet"}
        assert not scene.lists
    assert len(lithi.load(tmp_path / "b", cache_dir=cache_dir)) == 5


def test_the_snapshot_survives_what_users_do_to_a_dataset(
    tmp_path: Path, cache_dir: Path, make_table: MakeTable
) -> None:
    snapshot = write_bundle(tmp_path / "b", {"train": make_table(20), "test": make_table(4, 20)})
    both = _load(tmp_path / "b", cache_dir)
    ds = both["train"]
    ds.save_to_disk(str(tmp_path / "saved"))
    derived = {
        "itself": ds,
        "dict": both,
        "map": ds.map(lambda row: {"twice": row["score"] * 2}),
        "map_columns_removed": ds.map(lambda row: {"x": 1}, remove_columns=ds.column_names),
        "filter": ds.filter(lambda row: row["lithi_status"] == "accepted"),
        "select": ds.select([3, 1]),
        "shuffle": ds.shuffle(seed=1),
        "shard": ds.shard(num_shards=3, index=1),
        "pickle": pickle.loads(pickle.dumps(ds)),
        "saved": datasets.load_from_disk(str(tmp_path / "saved")),
        "format": ds.with_format("numpy"),
        "renamed": ds.rename_column("score", "points"),
        "node": split_dataset_by_node(ds, 0, 2),
        "train_test": ds.train_test_split(test_size=0.5, seed=1)["test"],
        "concatenated": datasets.concatenate_datasets([ds, both["test"]]),
    }
    stream = _load(tmp_path / "b", cache_dir, split="train", streaming=True)
    derived["stream"] = stream
    derived["stream_map"] = (
        stream.map(lambda row: {"x": 1}).filter(lambda row: True).shuffle(seed=1)
    )
    derived["stream_node"] = split_dataset_by_node(stream, 0, 2)
    for name, one in derived.items():
        assert lithi.snapshot_of(one) == snapshot, name
    for foreign in (datasets.Dataset.from_dict({"a": [1]}), None, 3, ds.with_format("arrow")[:]):
        with pytest.raises(lithi.UsageError):
            lithi.snapshot_of(foreign)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("streaming", [False, True], ids=["map", "stream"])
def test_ranks_read_every_row_once(
    world_size: int, streaming: bool, tmp_path: Path, cache_dir: Path, uneven_tables: list[pa.Table]
) -> None:
    write_bundle(tmp_path / "b", uneven_tables)
    ds = _load(tmp_path / "b", cache_dir, split="train", streaming=streaming)
    seen = [
        row["item_id"]
        for rank in range(world_size)
        for row in split_dataset_by_node(ds, rank, world_size)
    ]
    assert sorted(seen) == pa.concat_tables(uneven_tables)["item_id"].to_pylist()


def test_a_pin_and_partial_are_keywords_of_load_dataset(
    tmp_path: Path, cache_dir: Path, make_table: MakeTable
) -> None:
    snapshot = write_bundle(tmp_path / "b", make_table(5), outstanding=["x"])
    with pytest.raises(lithi.BundlePartial):
        _load(tmp_path / "b", cache_dir)
    ds = _load(
        tmp_path / "b", cache_dir, allow_partial=True, snapshot=snapshot.as_dict(), split="train"
    )
    assert len(ds) == 5
    with pytest.raises(lithi.SnapshotMismatch):
        _load(
            tmp_path / "b",
            cache_dir,
            allow_partial=True,
            snapshot={**snapshot.as_dict(), "version_id": "y"},
        )


def test_load_gives_torch_tensors(tmp_path: Path, cache_dir: Path, make_table: MakeTable) -> None:
    import torch

    write_bundle(tmp_path / "b", make_table(5))
    row = lithi.load(tmp_path / "b", cache_dir=cache_dir)[0]
    assert torch.is_tensor(row["score"])
    assert row["item_id"] == "item-000000"
    stream = lithi.load(tmp_path / "b", streaming=True)
    assert torch.is_tensor(next(iter(stream))["score"])
    with pytest.raises(lithi.UsageError, match="num_proc"):
        lithi.load(tmp_path / "b", streaming=True, num_proc=2)


STREAM_ONE_ROW = """
import sys, datasets, lithi_datasets
ds = datasets.load_dataset("lithi_bundle", data_dir=sys.argv[1], split="train", streaming=True)
print(next(iter(ds))["item_id"])
"""


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_a_program_that_takes_one_row_of_a_stream_ends(
    format: str, tmp_path: Path, make_table: MakeTable
) -> None:
    write_bundle(tmp_path / "b", [make_table(50_000), make_table(50_000, 50_000)], format=format)
    ended = subprocess.run(
        [sys.executable, "-c", STREAM_ONE_ROW, str(tmp_path / "b")],
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    assert ended.stdout.strip() == "item-000000"


def test_other_builders_of_datasets_still_resolve_their_files(
    tmp_path: Path, cache_dir: Path
) -> None:
    pq.write_table(pa.table({"a": [1], "b": [2]}), tmp_path / "x.parquet")
    files = str(tmp_path / "*.parquet")
    ds = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=str(cache_dir))
    assert ds[:] == {"a": [1], "b": [2]}


def test_the_first_row_of_a_stream_needs_one_part(tmp_path: Path) -> None:
    write_bundle(tmp_path / "b", [result_table(5, 5 * n) for n in range(4)])
    with fault_filesystem(tmp_path / "b") as scene:
        stream = datasets.load_dataset(
            "lithi_bundle", data_dir=scene.url, split="train", streaming=True
        )
        next(iter(stream))
        assert [scene.opens[f"parts/part-0000{n}.parquet"] for n in range(4)] == [1, 0, 0, 0]
