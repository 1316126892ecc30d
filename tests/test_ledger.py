"""The ledger counts each row of an epoch, over any loader, and says by name what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import torch.utils.data as torch_data
from conftest import STATUS_CYCLE, MakeTable, result_table

import lithi_datasets as lithi
from lithi_datasets.testing import PartSpec, write_bundle

UNEVEN = (10, 1, 0, 1, 10, 15)
ROWS = sum(UNEVEN)
WHOLE: dict[str, Any] = {
    "rows": ROWS,
    **{
        status: sum(STATUS_CYCLE[n % 5] == status for n in range(ROWS))
        for status in ("accepted", "failed", "abstained")
    },
    "dropped": 0,
    "excluded": {},
}


def item(number: int) -> str:
    return f"item-{number:06d}"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ledger")
    write_bundle(folder / "b", [result_table(n, sum(UNEVEN[:i])) for i, n in enumerate(UNEVEN)])
    return folder / "b"


def load(bundle: Path, split: str = "train", **keywords: Any) -> Any:
    return lithi.load(bundle, split, cache_dir=bundle.parent / "cache", **keywords)


def watched(ledger: lithi.Ledger, loader: Any) -> lithi.Ledger:
    for _ in ledger.watch(loader):
        pass
    return ledger


def stock(ds: Any, batch_size: int = 4, **options: Any) -> Any:
    """A DataLoader of torch whose batches are dicts with a list of ids."""
    names = ds.with_format(None).select_columns(["item_id"])
    return torch_data.DataLoader(names, batch_size=batch_size, **options)


def plain(ds: Any) -> Any:
    return ds.with_format(None)


LOADERS: dict[str, Callable[[Any], Any]] = {
    "in order": lambda ds: lithi.torch_loader(ds, 4),
    "shuffled": lambda ds: lithi.torch_loader(ds, 4, shuffle=True, seed=3),
    "workers": lambda ds: lithi.torch_loader(ds, 4, num_workers=2),
    "stock": stock,
    "stock, shuffled": lambda ds: stock(ds, shuffle=True),
    "stock, workers": lambda ds: stock(ds, num_workers=2),
    "lists of rows": lambda ds: torch_data.DataLoader(plain(ds), 4, collate_fn=list),
    "tuples of rows": lambda ds: torch_data.DataLoader(plain(ds), 4, collate_fn=tuple),
    "rows": plain,
    "batches": lambda ds: plain(ds).iter(5),
    "arrow": lambda ds: ds.with_format("arrow").iter(5),
    "numpy": lambda ds: ds.with_format("numpy").iter(5),
    "mapped": lambda ds: lithi.torch_loader(ds.map(lambda row: {"score": row["score"] + 1}), 4),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_an_epoch_of_any_loader_adds_up(bundle: Path, kind: str) -> None:
    ds = load(bundle)
    found = watched(lithi.Ledger(ds), LOADERS[kind](ds)).reconcile()
    assert found.as_dict() == WHOLE
    assert found.outside == 0


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_of_a_stream_adds_up(bundle: Path, shuffle: bool, workers: int) -> None:
    ds = load(bundle, streaming=True)
    loader = lithi.torch_loader(ds, 4, num_workers=workers, shuffle=shuffle, seed=1)
    assert watched(lithi.Ledger(ds), loader).reconcile().as_dict() == WHOLE
    of_rows = watched(lithi.Ledger(ds), plain(load(bundle, streaming=True)))
    assert of_rows.reconcile().as_dict() == WHOLE


def test_a_watched_loader_is_what_it_watches(bundle: Path) -> None:
    ds = load(bundle)
    loader = lithi.torch_loader(ds, 4)
    watch = lithi.Ledger(ds).watch(loader)
    assert len(watch) == len(loader) == 10
    assert watch.state_dict() == loader.state_dict()
    assert watch.options is loader.options
    assert [len(batch["item_id"]) for batch in watch] == [4] * 9 + [1]
    with pytest.raises(AttributeError):
        _ = watch.nothing_of_this_name


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    "statuses", [["accepted"], ["failed"], ["accepted", "abstained"], ["failed", "abstained"]]
)
def test_what_a_filter_of_statuses_left_out_is_excluded_and_not_lost(
    bundle: Path, statuses: list[str], streaming: bool
) -> None:
    ds = load(bundle, statuses=statuses, streaming=streaming)
    found = watched(lithi.Ledger(ds), lithi.torch_loader(ds, 4)).reconcile().as_dict()
    kept = {name: WHOLE[name] if name in statuses else 0 for name in STATUS_CYCLE}
    out = {name: WHOLE[name] for name in STATUS_CYCLE if name not in statuses}
    assert found == {"rows": sum(kept.values()), **kept, "dropped": 0, "excluded": out}


def ranks_of(loaders: list[Any], ds: Any) -> lithi.Ledger:
    first, *others = [watched(lithi.Ledger(ds), loader) for loader in loaders]
    return first.merge(*others)


def distributed(ds: Any, batch_size: int, **options: Any) -> list[Any]:
    samplers: list[Any] = [
        torch_data.DistributedSampler(ds, 2, rank, shuffle=False, **options) for rank in (0, 1)
    ]
    return [stock(ds, batch_size, sampler=sampler) for sampler in samplers]


DROPPING: dict[str, tuple[int, Callable[[Any], list[Any]]]] = {
    "torch_loader": (1, lambda ds: [lithi.torch_loader(ds, 4, drop_last=True)]),
    "shuffled": (
        *(1,),
        lambda ds: [lithi.torch_loader(ds, 4, shuffle=True, seed=1, drop_last=True)],
    ),
    "workers": (1, lambda ds: [lithi.torch_loader(ds, 4, num_workers=2, drop_last=True)]),
    "two ranks": (
        *(5,),
        lambda ds: [
            lithi.torch_loader(ds, 4, rank=rank, world_size=2, drop_last=True) for rank in (0, 1)
        ],
    ),
    "stock": (1, lambda ds: [stock(ds, 4, drop_last=True)]),
    "a sampler that cuts": (1, lambda ds: distributed(ds, 4, drop_last=True)),
    "larger than all": (ROWS, lambda ds: [lithi.torch_loader(ds, 100, drop_last=True)]),
}


@pytest.mark.parametrize("kind", DROPPING)
def test_rows_that_drop_last_left_out_are_dropped(bundle: Path, kind: str) -> None:
    dropped, loaders = DROPPING[kind]
    ds = load(bundle)
    found = ranks_of(loaders(ds), ds).reconcile()
    assert (found.rows, found.dropped) == (ROWS - dropped, dropped)
    assert found.accepted + found.failed + found.abstained == found.rows


def test_a_batch_and_a_sampler_that_both_cut_add_up(bundle: Path) -> None:
    """A rank gets 18 of the 37 rows, and cuts the last 2, which fill no batch of 4."""
    ds = load(bundle)
    loaders = [
        stock(
            ds,
            4,
            sampler=torch_data.DistributedSampler(ds, 2, rank, shuffle=False, drop_last=True),
            drop_last=True,
        )
        for rank in (0, 1)
    ]
    found = ranks_of(loaders, ds).reconcile()
    assert (found.rows, found.dropped) == (32, 5)


@pytest.mark.parametrize(("world_size", "dropped"), [(1, 1), (2, 4)])
def test_rows_that_drop_last_left_out_of_a_stream_are_dropped(
    bundle: Path, world_size: int, dropped: int
) -> None:
    """Each of two ranks drops 2 rows of its own."""
    ds = load(bundle, streaming=True)
    loaders = [
        lithi.torch_loader(ds, 3, rank=rank, world_size=world_size, drop_last=True)
        for rank in range(world_size)
    ]
    found = ranks_of(loaders, ds).reconcile()
    assert (found.rows, found.dropped) == (ROWS - dropped, dropped)


def test_a_loop_that_counts_its_steps_accounts_for_what_was_dropped(bundle: Path) -> None:
    """It never asks for the end of the loader."""
    ds = load(bundle)
    ledger = lithi.Ledger(ds)
    batches = iter(ledger.watch(lithi.torch_loader(ds, 4, drop_last=True)))
    for _ in range(9):
        next(batches)
    assert ledger.reconcile().dropped == 1


def test_dropped_rows_of_a_loop_of_ones_own_are_accounted_on_demand(bundle: Path) -> None:
    ds = load(bundle)
    ledger, loader = lithi.Ledger(ds), stock(ds, 4, drop_last=True)
    for batch in loader:
        ledger.observe(batch)
    with pytest.raises(lithi.ReconcileError, match="1 row not read"):
        ledger.reconcile()
    ledger.account_dropped(loader)
    assert ledger.reconcile().dropped == 1


def test_a_row_that_drop_last_left_out_and_was_read_all_the_same_is_reported(
    bundle: Path,
) -> None:
    ds = load(bundle)
    ledger = watched(lithi.Ledger(ds), lithi.torch_loader(ds, 4, drop_last=True))
    ledger.observe({"item_id": [item(36)]})
    with pytest.raises(lithi.ReconcileError, match="1 row read that drop_last") as caught:
        ledger.reconcile()
    assert caught.value.totals == {"not dropped": 1}


def test_missing_repeated_and_foreign_ids_are_named_five_of_each(bundle: Path) -> None:
    ds = load(bundle)
    ledger = lithi.Ledger(ds)
    ledger.observe({"item_id": [item(n) for n in range(37) if n % 4]})  # 0, 4, …: 10 are missing
    ledger.observe({"item_id": [item(n) for n in range(37) if n % 4 == 2]})  # 9 come again
    ledger.observe({"item_id": [item(2), item(2)]})
    ledger.observe({"item_id": [f"stranger {n}" for n in (3, 1, 3, 2, 9, 8, 7)]})
    with pytest.raises(lithi.ReconcileError) as caught:
        ledger.reconcile()
    error = caught.value
    assert error.missing == tuple(map(item, (0, 4, 8, 12, 16)))
    assert error.repeated == tuple(map(item, (2, 6, 10, 14, 18)))
    assert error.foreign == tuple(f"stranger {n}" for n in (3, 1, 2, 9, 8))
    assert error.totals == {"missing": 10, "repeated": 9, "foreign": 7}
    text = str(error)
    assert "missing 'item-000000', 'item-000004', 'item-000008', 'item-000012'," in text
    assert "'item-000016' and 5 more" in text
    assert "repeated 'item-000002' 4 times, 'item-000006' 2 times" in text
    assert "foreign 'stranger 3', 'stranger 1', 'stranger 2'" in text
    counts = f"{WHOLE['accepted']} accepted, {WHOLE['failed']} failed"
    assert f"expected: 37 rows once each: {counts}" in text


def test_an_id_that_came_more_often_than_is_counted_is_said_so(bundle: Path) -> None:
    ds = load(bundle)
    ledger = watched(lithi.Ledger(ds), stock(ds))
    for _ in range(3):
        ledger.observe({"item_id": [item(5)] * 200})
    with pytest.raises(lithi.ReconcileError, match="'item-000005' 255 or more times"):
        ledger.reconcile()


def test_a_second_epoch_without_reset_is_reported(bundle: Path) -> None:
    ds = load(bundle)
    loader = lithi.torch_loader(ds, 4)
    ledger = watched(watched(lithi.Ledger(ds), loader), loader)
    with pytest.raises(lithi.ReconcileError, match="37 rows read more than once"):
        ledger.reconcile()
    ledger.reset()
    assert watched(ledger, loader).reconcile().as_dict() == WHOLE


def test_an_epoch_that_was_left_early_is_reported(bundle: Path) -> None:
    ds = load(bundle)
    ledger = lithi.Ledger(ds)
    for number, _ in enumerate(ledger.watch(lithi.torch_loader(ds, 4, drop_last=True))):
        if number == 1:
            break
    with pytest.raises(lithi.ReconcileError) as caught:
        ledger.reconcile()
    assert caught.value.missing[0] == item(8)
    assert caught.value.totals == {"missing": 29}


@pytest.mark.parametrize("streaming", [False, True])
def test_a_filtered_dataset_is_reported_missing(bundle: Path, streaming: bool) -> None:
    ds = load(bundle, streaming=streaming)
    few = ds.with_format(None).filter(lambda row: row["score"] > 1)
    ledger = watched(lithi.Ledger(few), few)
    with pytest.raises(lithi.ReconcileError) as caught:
        ledger.reconcile()
    assert sum(caught.value.totals.values()) == 8
    assert set(caught.value.totals) == {"missing" if streaming else "outside"}
    narrowed = watched(lithi.Ledger(few, subset=True), few).reconcile()
    assert narrowed.rows == ROWS - 8
    assert narrowed.outside == 8
    assert list(narrowed.as_dict()) == list(WHOLE)
    with pytest.raises(lithi.ReconcileError, match="8 rows not read"):
        watched(lithi.Ledger(ds), few).reconcile()


def test_a_narrowed_ledger_takes_the_rows_that_were_left_out_for_foreign(bundle: Path) -> None:
    ds = load(bundle)
    few = ds.select(range(30))
    with pytest.raises(lithi.ReconcileError) as caught:
        watched(lithi.Ledger(few, subset=True), stock(ds)).reconcile()
    assert caught.value.totals == {"foreign": 7}
    assert caught.value.foreign[0] == item(30)


def test_a_slice_of_a_split_is_its_own_measure(bundle: Path) -> None:
    ds = load(bundle, "train[10:20]")
    found = watched(lithi.Ledger(ds), lithi.torch_loader(ds, 4)).reconcile()
    assert found.rows == 10
    with pytest.raises(lithi.ReconcileError, match="27 rows that the ledger does not expect"):
        watched(lithi.Ledger(ds), stock(load(bundle))).reconcile()


def test_ids_are_counted_as_they_were_when_the_batch_came(bundle: Path) -> None:
    ds = load(bundle)
    ledger = lithi.Ledger(ds)
    for batch in ledger.watch(stock(ds)):
        batch["item_id"].clear()
    table = np.array([item(n) for n in range(ROWS)], dtype=object)
    ledger.reset()
    for start in range(0, ROWS, 4):
        ids = table[start : start + 4]
        ledger.observe({"item_id": ids})
        ids[:] = "gone"
    assert ledger.reconcile().rows == ROWS


def test_no_row_is_read_in_a_dataset_without_rows(tmp_path: Path, make_table: MakeTable) -> None:
    write_bundle(tmp_path / "b", [make_table(0)])
    for streaming in (False, True):
        ds = load(tmp_path / "b", streaming=streaming)
        ledger = watched(lithi.Ledger(ds), lithi.torch_loader(ds, 4))
        assert ledger.reconcile().as_dict() == dict.fromkeys(WHOLE, 0) | {"excluded": {}}
        ledger.observe({"item_id": ["a"]})
        with pytest.raises(lithi.ReconcileError, match="1 row that the ledger does not expect"):
            ledger.reconcile()


def test_without_statuses_each_row_is_an_accepted_one(tmp_path: Path) -> None:
    table = pa.table({"item_id": ["a", "b", "c"], "x": [1, 2, 3]})
    write_bundle(tmp_path / "b", table, kind="staged_input")
    ds = load(tmp_path / "b")
    found = watched(lithi.Ledger(ds), lithi.torch_loader(ds, 2)).reconcile()
    assert (found.rows, found.accepted) == (3, 3)


def test_a_status_that_was_changed_is_reported(bundle: Path) -> None:
    ds = load(bundle).with_format(None)
    changed = ds.map(lambda row: {"lithi_status": "accepted"} if row["item_id"] == item(2) else {})
    with pytest.raises(lithi.ReconcileError) as caught:
        watched(lithi.Ledger(changed), ds).reconcile()
    assert caught.value.totals == {"of another status": 1}
    assert "expected: 37 rows once each: 23 accepted, 7 failed" in str(caught.value)
    assert "found: 37 rows: 24 accepted, 6 failed" in str(caught.value)


@pytest.fixture(scope="module")
def splits(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """Two splits, whose parts say how many rows are of which status, or not."""
    folder = tmp_path_factory.mktemp("splits")
    found = {}
    for stated in (True, False):
        parts = [
            PartSpec(result_table(10), split="train", status_counts=stated),
            PartSpec(result_table(5, 10), split="test", status_counts=stated),
        ]
        found[stated] = folder / str(stated)
        write_bundle(found[stated], parts)
    return found


@pytest.mark.parametrize("streaming", [False, True])
def test_of_a_split_whose_statuses_are_not_stated_the_rows_are_compared(
    splits: dict[bool, Path], streaming: bool
) -> None:
    for stated, excluded in (
        (True, {"failed": 1, "abstained": 1}),
        (False, {"abstained+failed": 2}),
    ):
        ds = load(splits[stated], "test", statuses=["accepted"], streaming=streaming)
        found = watched(lithi.Ledger(ds), plain(ds)).reconcile().as_dict()
        assert found["excluded"] == excluded
        assert (found["rows"], found["accepted"]) == (3, 3)


@pytest.mark.parametrize("stated", [True, False])
def test_rows_that_were_filtered_are_missed_though_statuses_are_not_stated(
    splits: dict[bool, Path], stated: bool
) -> None:
    for statuses in (None, ["accepted"]):
        ds = load(splits[stated], "test", statuses=statuses)
        few = ds.select(range(2))
        with pytest.raises(lithi.ReconcileError) as caught:
            watched(lithi.Ledger(few), plain(few)).reconcile()
        assert caught.value.totals == {"outside": len(ds) - 2}


@pytest.mark.parametrize("stated", [True, False])
def test_splits_that_were_joined_are_measured_by_the_whole_bundle(
    splits: dict[bool, Path], stated: bool
) -> None:
    ds = load(splits[stated], "train+test", statuses=["accepted", "failed"])
    found = watched(lithi.Ledger(ds), plain(ds)).reconcile().as_dict()
    assert (found["accepted"], found["failed"], found["excluded"]) == (9, 3, {"abstained": 3})


def test_the_statuses_of_a_split_follow_from_those_of_all_others(tmp_path: Path) -> None:
    parts = [
        PartSpec(result_table(10), split="train", status_counts=True),
        PartSpec(result_table(5, 10), split="test", status_counts=False),
    ]
    write_bundle(tmp_path / "b", parts)
    ds = load(tmp_path / "b", "test", statuses=["accepted"])
    found = watched(lithi.Ledger(ds), plain(ds)).reconcile()
    assert found.excluded == {"failed": 1, "abstained": 1}


def test_ids_that_are_no_strings_are_refused(bundle: Path) -> None:
    ledger = lithi.Ledger(load(bundle))
    for wrong, found in (
        (torch.tensor([1, 2]), "int 1"),
        ([1, 2], "int 1"),
        ([item(0), None], "NoneType None"),
        (b"item-000000", "bytes b'item-000000'"),
        (pa.array([b"x"]), "bytes b'x'"),
        (None, "NoneType None"),
        (7, "int 7"),
    ):
        with pytest.raises(lithi.UsageError, match="Item ids are strings") as caught:
            ledger.observe({"item_id": wrong})
        assert caught.value.found == found
    assert len(ledger._waiting._sizes) == 0
