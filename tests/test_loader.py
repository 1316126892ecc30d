"""`torch_loader`: disjoint, equal in steps, exact in types, whatever the ranks and workers."""

from __future__ import annotations

import gc
import itertools
import json
import multiprocessing
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest
import torch
from conftest import MakeTable, result_table

import lithi_datasets as lithi
from lithi_datasets.testing import fault_filesystem, write_bundle

UNEVEN = (10, 1, 1, 10, 15)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle in parts of 10, 1, 1, 10 and 15 rows, converted beside."""
    root = tmp_path_factory.mktemp("loader")
    tables = [result_table(n, sum(UNEVEN[:i])) for i, n in enumerate(UNEVEN)]
    write_bundle(root / "b", tables)
    return root / "b"


def _load(folder: Path, **keywords: Any) -> Any:
    return lithi.load(folder, cache_dir=folder.parent / "cache", **keywords)


def _rows(folder: Path, rows: int) -> datasets.Dataset:
    return _load(folder).select(range(rows))


def _ids(loader: Any) -> list[str]:
    return [item for batch in loader for item in batch["item_id"]]


@pytest.mark.parametrize("shuffle", [False, True], ids=["in_order", "shuffled"])
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("streaming", [False, True], ids=["map", "stream"])
def test_all_ranks_and_workers_together_read_each_row_once(
    folder: Path, streaming: bool, world_size: int, num_workers: int, shuffle: bool
) -> None:
    ds = _load(folder, streaming=streaming)
    for epoch in (0, 1):
        seen: Counter[str] = Counter()
        for rank in range(world_size):
            loader = lithi.torch_loader(
                ds,
                4,
                rank=rank,
                world_size=world_size,
                num_workers=num_workers,
                shuffle=shuffle,
                seed=5,
            )
            loader.set_epoch(epoch)
            length = len(loader)
            batches = list(loader)
            assert len(batches) == length
            seen.update(item for batch in batches for item in batch["item_id"])
        assert seen == Counter(f"item-{n:06d}" for n in range(37))


@pytest.mark.parametrize(
    ("rows", "batch_size", "world_size"),
    [(13, 3, 2), (25, 4, 3), (37, 4, 3), (3, 2, 5), (5, 1, 3), (0, 2, 2), (1, 1, 1)],
)
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_rank_makes_the_same_number_of_steps(
    folder: Path, rows: int, batch_size: int, world_size: int, shuffle: bool
) -> None:
    ds = _rows(folder, rows)
    steps = []
    sizes = []
    for rank in range(world_size):
        loader = lithi.torch_loader(
            ds, batch_size, rank=rank, world_size=world_size, shuffle=shuffle, seed=1
        )
        batches = list(loader)
        steps.append(len(batches))
        sizes.append([len(batch["item_id"]) for batch in batches])
    assert set(steps) == {-(-rows // (batch_size * world_size))}
    for step in zip(*sizes, strict=True):
        assert max(step) - min(step) <= 1
    empty = sum(size == 0 for one in sizes for size in one)
    assert empty == 0 or batch_size == 1 or rows < world_size


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(("batch_size", "world_size"), [(4, 3), (3, 4)])
def test_a_last_step_with_fewer_rows_than_ranks_takes_some_from_the_one_before(
    tmp_path: Path, batch_size: int, world_size: int, shuffle: bool
) -> None:
    sizes = (10, 1, 1, 10, 16)
    tables = [result_table(n, sum(sizes[:i])) for i, n in enumerate(sizes)]
    write_bundle(tmp_path / "b", tables)
    ds = _load(tmp_path / "b")
    whole = _ids(lithi.torch_loader(ds, 38, shuffle=shuffle, seed=1))
    batches = [
        [
            batch["item_id"]
            for batch in lithi.torch_loader(
                ds, batch_size, rank=rank, world_size=world_size, shuffle=shuffle, seed=1
            )
        ]
        for rank in range(world_size)
    ]
    steps = list(zip(*batches, strict=True))
    # 38 rows in steps of 12 leave 2, fewer than the ranks: the step before gives up the rest.
    assert [sum(map(len, step)) for step in steps] == [12, 12, 14 - world_size, world_size]
    assert [len(batch) for batch in steps[-1]] == [1] * world_size
    assert [item for step in steps for batch in step for item in batch] == whole
    assert sorted(whole) == [f"item-{n:06d}" for n in range(38)]


def test_drop_last_gives_full_batches_and_counts_the_rest(folder: Path) -> None:
    ds = _load(folder)
    for world_size in (1, 2, 3):
        loaders = [
            lithi.torch_loader(ds, 4, rank=rank, world_size=world_size, drop_last=True)
            for rank in range(world_size)
        ]
        batches = [list(loader) for loader in loaders]
        assert {len(one) for one in batches} == {37 // (4 * world_size)}
        assert {len(batch["item_id"]) for one in batches for batch in one} == {4}
        assert loaders[0].dropped == 37 % (4 * world_size)


def test_masks_come_with_nullable_tensor_columns_in_every_batch_and_with_no_other(
    tmp_path: Path, make_table: MakeTable
) -> None:
    table = make_table(6, sure=pa.array(range(6), pa.int16()))
    write_bundle(tmp_path / "b", table, required=["sure"])
    for streaming in (False, True):
        ds = lithi.load(tmp_path / "b", cache_dir=tmp_path / "c", streaming=streaming)
        for batch in lithi.torch_loader(ds, 2):
            masks = [name for name in batch if name.endswith("__valid")]
            assert masks == [f"{n}__valid" for n in ("score", "big", "vector", "lithi_confidence")]
            assert batch["big"].dtype == torch.int64
            assert batch["vector__valid"].shape == (2, 3)
            assert batch["sure"].dtype == torch.int16
        whole = next(iter(lithi.torch_loader(ds, 6)))
        assert whole["big"].tolist() == [0, 2**53 + 2, 2**53 + 3, 0, 2**53 + 5, 2**53 + 6]
        assert whole["big__valid"].tolist() == [False, True, True, False, True, True]


def test_a_declared_name_that_is_another_columns_mask_is_refused(
    tmp_path: Path, make_table: MakeTable
) -> None:
    write_bundle(tmp_path / "b", make_table(3, score__valid=pa.array([1, 2, 3])))
    for streaming in (False, True):
        ds = lithi.load(tmp_path / "b", cache_dir=tmp_path / "c", streaming=streaming)
        with pytest.raises(lithi.UsageError, match="score__valid"):
            lithi.torch_loader(ds, 2)


def test_ids_and_status_ride_in_every_batch_whatever_the_format_shows(folder: Path) -> None:
    ds = _load(folder)
    ds.set_format("lithi_torch", columns=["big"])
    batch = next(iter(lithi.torch_loader(ds, 2)))
    assert list(batch) == ["item_id", "big", "big__valid", "lithi_status"]


def test_views_are_read_by_their_own_rows(folder: Path) -> None:
    ds = _load(folder)
    for view in (
        ds.filter(lambda status: status == "accepted", input_columns="lithi_status"),
        ds.shuffle(seed=3),
        ds.select([5, 3, 3, 30]),
        ds.shard(3, 1),
        ds.map(lambda row: {"extra": 1}),
        ds.select(range(36, -1, -1)),
    ):
        wanted = view.with_format(None)["item_id"][:]
        assert _ids(lithi.torch_loader(view, 4)) == wanted
        found = _ids(lithi.torch_loader(view, 4, shuffle=True, seed=0))
        assert sorted(found) == sorted(wanted)


def test_mapped_and_filtered_streams_keep_whole_parts_disjoint(folder: Path) -> None:
    ds = _load(folder, streaming=True)
    view = ds.map(lambda row: {"loud": row["item_id"].upper()}).filter(
        lambda row: row["lithi_status"] == "accepted"
    )
    wanted = sorted(row["item_id"] for row in view)
    found = []
    for rank in range(3):
        loader = lithi.torch_loader(view, 4, rank=rank, world_size=3, num_workers=2)
        with pytest.raises(TypeError, match="no length"):
            len(loader)
        found += [item for batch in loader for item in batch["loud"]]
    assert sorted(found) == [item.upper() for item in wanted]


def test_a_stream_that_was_shuffled_shortened_or_split_by_datasets_is_refused(folder: Path) -> None:
    from datasets.distributed import split_dataset_by_node

    ds = _load(folder, streaming=True)
    for view in (
        ds.shuffle(seed=1),
        ds.take(3),
        ds.skip(3),
        split_dataset_by_node(ds, 0, 2),
        datasets.interleave_datasets([ds, ds]),
    ):
        with pytest.raises(lithi.UsageError):
            lithi.torch_loader(view, 2)


@pytest.mark.parametrize(
    "keywords",
    [
        {"batch_size": 0},
        {"batch_size": 2.5},
        {"batch_size": True},
        {"rank": 2, "world_size": 2},
        {"rank": -1},
        {"world_size": 0},
        {"num_workers": -1},
        {"shuffle": True},
        {"shuffle": 1},
        {"seed": "x"},
        {"drop_last": None},
    ],
    ids=str,
)
def test_wrong_arguments_are_wrong_usage(folder: Path, keywords: dict[str, Any]) -> None:
    with pytest.raises(lithi.UsageError) as caught:
        lithi.torch_loader(_load(folder), **{"batch_size": 2, **keywords})
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("ds", [None, [1], datasets.Dataset.from_dict({"a": [1]})])
def test_data_that_is_not_of_a_bundle_is_refused(ds: Any) -> None:
    with pytest.raises(lithi.UsageError):
        lithi.torch_loader(ds, 2)


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 40])
@pytest.mark.parametrize("streaming", [False, True], ids=["map", "stream"])
def test_split_by_node_is_disjoint_and_complete(
    folder: Path, world_size: int, streaming: bool
) -> None:
    ds = _load(folder, streaming=streaming)
    shares = [lithi.split_by_node(ds, rank, world_size) for rank in range(world_size)]
    ids = [[row["item_id"] for row in share] for share in shares]
    assert sorted(itertools.chain(*ids)) == [f"item-{n:06d}" for n in range(37)]
    if not streaming:
        assert [*itertools.chain(*ids)] == [f"item-{n:06d}" for n in range(37)]
        assert max(map(len, ids)) - min(map(len, ids)) <= 1
    for share in shares[:2]:
        assert lithi.snapshot_of(share) == lithi.snapshot_of(ds)
        assert _ids(lithi.torch_loader(share, 3)) == [row["item_id"] for row in share]
        with pytest.raises(lithi.UsageError, match="already"):
            lithi.split_by_node(share, 0, 2)
        with pytest.raises(lithi.UsageError, match="split twice"):
            lithi.torch_loader(share, 3, world_size=2)
    lithi.torch_loader(ds, 3, world_size=2)  # the whole dataset is not marked by its shares
    for rank in (-1, world_size, 1.0, True, "0"):
        with pytest.raises(lithi.UsageError):
            lithi.split_by_node(ds, rank, world_size)  # type: ignore[arg-type]


def test_the_partition_plan_is_what_the_stream_loaders_read(folder: Path) -> None:
    bundle = lithi.open_bundle(folder)
    plan = lithi.partition_plan(bundle, 3, 2, batch_size=4)
    assert json.loads(json.dumps(plan)) == plan
    owners = [part["index"] for r in plan["ranks"] for w in r["workers"] for part in w["parts"]]
    assert sorted(owners) == [0, 1, 2, 3, 4]
    ds = _load(folder, streaming=True)
    for rank in plan["ranks"]:
        loader = lithi.torch_loader(ds, 4, rank=rank["rank"], world_size=3, num_workers=2)
        assert len(loader) == rank["steps"]
        assert len(_ids(loader)) == rank["rows"]


def test_shuffled_epochs_differ_and_depend_on_seed_alone(folder: Path) -> None:
    ds = _load(folder)
    loader = lithi.torch_loader(ds, 5, shuffle=True, seed=1)
    first, second = _ids(loader), _ids(loader)
    assert first != second
    assert sorted(first) == sorted(second)
    again = lithi.torch_loader(ds, 7, shuffle=True, seed=1, num_workers=2)
    assert _ids(again) == first
    assert _ids(lithi.torch_loader(ds, 5, shuffle=True, seed=2)) != first


def test_an_epoch_that_is_left_early_goes_on_and_set_epoch_starts_another(folder: Path) -> None:
    loader = lithi.torch_loader(_load(folder), 5)
    assert len(loader) == 8
    for _ in zip(range(3), loader, strict=False):
        pass
    assert len(loader) == 5
    loader.set_epoch(0)
    assert len(loader) == 5
    assert len(list(loader)) == 5
    assert len(loader) == 8
    assert loader.state_dict()["epoch"] == 0
    assert len(list(loader)) == 8
    assert loader.state_dict()["epoch"] == 1
    next(iter(loader))
    loader.set_epoch(7)
    assert (len(loader), loader.epoch) == (8, 7)


def test_the_first_batch_of_a_stream_needs_one_part(folder: Path) -> None:
    with fault_filesystem(folder) as scene:
        loader = lithi.torch_loader(lithi.load(scene.url, streaming=True), 4)
        next(iter(loader))
        assert sum(scene.opens[part.path] for part in lithi.open_bundle(folder).parts) == 1


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_of_a_part_reaches_the_loop_as_itself(
    tmp_path: Path, num_workers: int, make_table: MakeTable
) -> None:
    write_bundle(tmp_path / "b", [make_table(5), make_table(5, 5)])
    ds = lithi.load(tmp_path / "b", streaming=True)
    part = tmp_path / "b" / "parts" / "part-00001.parquet"
    raw = part.read_bytes()
    part.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    with pytest.raises(lithi.FileDigestMismatch) as caught:
        _ids(lithi.torch_loader(ds, 2, num_workers=num_workers))
    assert caught.value.path == str(part)
    assert caught.value.expected


def test_tensors_own_their_memory(folder: Path) -> None:
    ds = _load(folder)
    for shuffle in (False, True):
        first = next(iter(lithi.torch_loader(ds, 37, shuffle=shuffle, seed=1)))
        first["vector"].fill_(7)
        first["score"].fill_(-1)
    again = next(iter(lithi.torch_loader(ds, 37)))
    assert again["vector"].tolist() == [[n, n + 1, n + 2] for n in range(37)]


def test_a_loader_goes_to_spawned_workers(folder: Path) -> None:
    ds = _load(folder)
    loader = lithi.torch_loader(ds, 5, num_workers=1, shuffle=True, seed=1)
    loader.multiprocessing_context = multiprocessing.get_context("spawn")
    assert sorted(_ids(loader)) == [f"item-{n:06d}" for n in range(37)]


def test_pickling_a_loaders_dataset_does_not_pickle_the_rows(tmp_path: Path) -> None:
    write_bundle(tmp_path / "b", result_table(20_000))
    ds = lithi.load(tmp_path / "b", cache_dir=tmp_path / "c")
    loader = lithi.torch_loader(ds, 100, shuffle=True, seed=1)
    next(iter(loader))
    assert len(pickle.dumps(loader.dataset)) < 20_000


def test_wide_rows_are_not_fetched_by_the_thousand(tmp_path: Path) -> None:
    rows = 64
    table = pa.table(
        {
            "item_id": [f"i{n}" for n in range(rows)],
            "lithi_status": ["accepted"] * rows,
            "image": pa.array([bytes(2**20)] * rows, pa.binary()),
        }
    )
    write_bundle(tmp_path / "b", table)
    ds = lithi.load(tmp_path / "b", cache_dir=tmp_path / "c")
    gc.collect()
    before = pa.total_allocated_bytes()
    peak = 0
    for _ in lithi.torch_loader(ds, 2, shuffle=True, seed=1):
        peak = max(peak, pa.total_allocated_bytes() - before)
    assert peak < 2.5 * 64 * 2**20


def test_a_zero_row_batch_has_all_keys_and_dtypes(folder: Path) -> None:
    ds = _rows(folder, 2)
    batches = [next(iter(lithi.torch_loader(ds, 2, rank=r, world_size=3))) for r in range(3)]
    assert [len(batch["item_id"]) for batch in batches] == [1, 1, 0]
    assert list(batches[2]) == list(batches[0])
    assert batches[2]["vector"].shape == (0, 3)
    assert batches[2]["vector"].dtype == torch.uint8


def test_memory_is_flat_over_epochs(folder: Path) -> None:
    loader = lithi.torch_loader(_load(folder), 4, shuffle=True, seed=1)
    _ids(loader)
    gc.collect()
    before = pa.total_allocated_bytes()
    for _ in range(20):
        _ids(loader)
    gc.collect()
    assert pa.total_allocated_bytes() - before < 2**20


def test_the_shuffle_mixes_like_a_full_permutation(tmp_path: Path) -> None:
    """Over 40,000 rows a batch spreads within a factor 1.3 of a batch of a full permutation."""
    rows = 40_000
    table = pa.table(
        {"item_id": [str(n) for n in range(rows)], "lithi_status": ["accepted"] * rows}
    )
    write_bundle(tmp_path / "b", table)
    ds = lithi.load(tmp_path / "b", cache_dir=tmp_path / "c")
    batches = [
        np.array([int(item) for item in batch["item_id"]])
        for batch in lithi.torch_loader(ds, 256, shuffle=True, seed=1)
    ]
    assert sorted(np.concatenate(batches).tolist()) == list(range(rows))
    spread = np.mean([batch.std() for batch in batches[:-1]])
    uniform = rows / 12**0.5
    assert 1 / 1.3 < spread / uniform < 1.3
