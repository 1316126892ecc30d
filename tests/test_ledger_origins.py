"""A ledger over this package's own loaders: fast, and still of what the batches hold."""

from __future__ import annotations

import copy
import json
import pickle
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lithi_datasets as lithi
from lithi_datasets import ledger_waiting
from lithi_datasets.ledger_ids import ids_of
from lithi_datasets.testing import write_bundle

ROWS = 40_013  # two windows of the shuffled order, and a run that is not full
PARTS = (17_000, 1, 20_000, 3_012)
STATUSES = ("accepted", "accepted", "failed", "abstained")


def item(number: int) -> str:
    return f"item-{number:06d}" if number % 1000 else f"an item of another length {number}"


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("origins")
    tables, first = [], 0
    for rows in PARTS:
        numbers = range(first, first + rows)
        statuses = [STATUSES[n % 4] for n in numbers]
        tables.append(pa.table({"item_id": [*map(item, numbers)], "lithi_status": statuses}))
        first += rows
    write_bundle(folder / "b", tables)
    return lithi.load(folder / "b", cache_dir=folder / "c")


@pytest.fixture
def by_text(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of ids that had to be joined to a text."""
    counted: list[int] = []
    whole = ledger_waiting.Waiting._add_text

    def add_text(self: Any, text: bytes, count: int) -> bool:
        counted.append(count)
        return whole(self, text, count)

    monkeypatch.setattr(ledger_waiting.Waiting, "_add_text", add_text)
    return counted


def has_index(ledger: lithi.Ledger) -> bool:
    return ledger._account._index is not None


@pytest.mark.parametrize("batch_size", [1000, 256, 7001])
@pytest.mark.parametrize("shuffle", [False, True])
def test_an_epoch_needs_neither_text_nor_an_index(
    ds: Any, by_text: list[int], batch_size: int, shuffle: bool
) -> None:
    loader = lithi.torch_loader(ds, batch_size, shuffle=shuffle, seed=3)
    ledger = lithi.Ledger(ds)
    for _ in range(2):
        for _ in ledger.watch(loader):
            pass
        assert ledger.reconcile().rows == ROWS
        ledger.reset()
    assert by_text == []
    assert not has_index(ledger)


def test_every_rank_of_a_shuffled_epoch_needs_no_index_before_they_join(
    ds: Any, by_text: list[int]
) -> None:
    ledgers = []
    for rank in range(3):
        loader = lithi.torch_loader(ds, 500, rank=rank, world_size=3, shuffle=True, seed=1)
        ledgers.append(lithi.Ledger(ds))
        for _ in ledgers[-1].watch(loader):
            pass
        assert not has_index(ledgers[-1])
    assert by_text == []
    assert ledgers[0].merge(*ledgers[1:]).reconcile().rows == ROWS
    assert not has_index(ledgers[0])


def test_workers_send_text_and_it_is_right(ds: Any, by_text: list[int]) -> None:
    ledger = lithi.Ledger(ds)
    for _ in ledger.watch(lithi.torch_loader(ds, 2000, num_workers=2, shuffle=True, seed=1)):
        pass
    assert ledger.reconcile().rows == ROWS
    assert sum(by_text) == ROWS


def test_a_loader_that_reads_one_batch_ahead_needs_no_text_but_for_the_last(
    ds: Any, by_text: list[int]
) -> None:
    ledger, before = lithi.Ledger(ds), None
    for batch in lithi.torch_loader(ds, 1000, shuffle=True, seed=1):
        if before is not None:
            ledger.observe(before)
        before = batch
    ledger.observe(before)
    assert ledger.reconcile().rows == ROWS
    assert by_text == [13]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(
    ("change", "missing", "repeated", "foreign"),
    [
        (lambda ids: ids.pop(), 1, 0, 0),
        (lambda ids: ids.__delitem__(slice(10, 20)), 10, 0, 0),
        (lambda ids: ids.__setitem__(4, ids[5]), 1, 1, 0),
        (lambda ids: ids.__setitem__(4, "nobody"), 1, 0, 1),
        (lambda ids: ids.append(ids[0]), 0, 1, 0),
        (lambda ids: ids.clear(), 500, 0, 0),
        (lambda ids: random.Random(0).shuffle(ids), 0, 0, 0),
        (lambda ids: ids.sort(reverse=True), 0, 0, 0),
        (lambda ids: ids.__setitem__(3, ids[3] + "\0"), 1, 0, 1),
    ],
)
def test_a_list_that_was_changed_on_the_way_counts_as_it_is(
    ds: Any, change: Any, shuffle: bool, missing: int, repeated: int, foreign: int
) -> None:
    ledger = lithi.Ledger(ds)
    for number, batch in enumerate(lithi.torch_loader(ds, 500, shuffle=shuffle, seed=3)):
        if number == 35:  # not at a window's beginning or end
            change(batch["item_id"])
        ledger.observe(batch)
    tally = ledger._counted().tally()
    found = (tally.missing, tally.repeated, ledger._account.foreign_total)
    assert found == (missing, repeated, foreign)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_batch_that_is_seen_twice_or_not_at_all_is_named(ds: Any, shuffle: bool) -> None:
    ledger = lithi.Ledger(ds)
    lost, again = [], []
    for number, batch in enumerate(lithi.torch_loader(ds, 3, shuffle=shuffle, seed=5)):
        if number == 3000:
            lost = batch["item_id"]
            continue
        ledger.observe(batch)
        if number == 9000:
            again = batch["item_id"]
            ledger.observe(batch)
    with pytest.raises(lithi.ReconcileError) as caught:
        ledger.reconcile()
    assert all(repr(name) in str(caught.value) for name in (*lost, *again))
    assert caught.value.missing == tuple(sorted(lost, key=numbered))
    assert caught.value.repeated == tuple(sorted(again, key=numbered))


def numbered(name: str) -> int:
    return int(name.replace("item-", "").split()[-1])


@pytest.mark.parametrize("shuffle", [False, True])
def test_ids_that_a_mapped_dataset_has_others_of_are_foreign(ds: Any, shuffle: bool) -> None:
    def renamed(rows: dict[str, list[str]]) -> dict[str, list[str]]:
        return {
            "item_id": [f"{name}!" if name.endswith("77") else name for name in rows["item_id"]]
        }

    other = ds.with_format(None).map(renamed, batched=True).with_format("lithi_torch")
    count = sum(item(n).endswith("77") for n in range(ROWS))
    ledger = lithi.Ledger(ds)
    for _ in ledger.watch(lithi.torch_loader(other, 256, shuffle=shuffle, seed=1)):
        pass
    assert ledger._counted().tally().missing == count
    assert ledger._account.foreign_total == count
    assert len(ledger._account.foreign) == 5


def test_a_loader_of_some_rows_and_a_ledger_of_all_agree_on_which(ds: Any) -> None:
    some = ds.select(range(5_000, 38_000))
    ledger = lithi.Ledger(ds)
    for _ in ledger.watch(lithi.torch_loader(some, 256, shuffle=True, seed=1)):
        pass
    tally = ledger._counted().tally()
    assert (sum(tally.seen), tally.repeated, ledger._account.foreign_total) == (33_000, 0, 0)


REMEMBERED = """
import gc, sys
import lithi_datasets as lithi
from lithi_datasets.reading import origins

ds = lithi.load(sys.argv[1], cache_dir=sys.argv[2])

def remembered():
    found = 0
    for batch in lithi.torch_loader(ds, 1000):
        assert origins.take_origin(list(batch["item_id"])) is None
        found += origins.take_origin(batch["item_id"]) is not None
        assert origins.take_origin(batch["item_id"]) is None
    return found

print(remembered())
ledger, other = lithi.Ledger(ds), lithi.Ledger(ds)
print(remembered(), origins._recent)
del other
loop = iter(lithi.torch_loader(ds, 1000, shuffle=True, seed=1))
next(loop)
del loop
gc.collect()
print(remembered(), origins._recent)
del ledger
gc.collect()
print(remembered())
"""


def test_nothing_is_remembered_where_no_ledger_lives_or_after_the_loaders_end(
    tmp_path: Path,
) -> None:
    # In a process of its own: other tests' ledgers may live on for a while.
    rows = pa.table({"item_id": [*map(item, range(4_100))]})
    write_bundle(tmp_path / "b", rows, kind="staged_input")
    command = [sys.executable, "-c", REMEMBERED, str(tmp_path / "b"), str(tmp_path / "c")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["0", "5 [None, None]", "5 [None, None]", "0"]


def test_a_batch_is_a_plain_dict_of_a_plain_list(ds: Any) -> None:
    ledger = lithi.Ledger(ds)
    batch = next(iter(lithi.torch_loader(ds, 10)))
    assert type(batch) is dict
    assert type(batch["item_id"]) is list
    ledger.observe(batch)
    assert pickle.loads(pickle.dumps(batch)) == copy.deepcopy(batch) == batch


ACTIONS = ("observe", "observe", "observe", "twice", "skip", "copy", "late", "drop one", "settle")


@pytest.mark.parametrize("shuffle", [False, True])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_whatever_is_done_to_batches_they_count_as_a_counter_does(
    ds: Any, shuffle: bool, data: st.DataObject
) -> None:
    batch_size = data.draw(st.sampled_from([997, 1024, 4000]))
    at_once = data.draw(st.sampled_from([1, 5000, 2**17]))
    steps = -(-ROWS // batch_size)
    actions = data.draw(st.lists(st.sampled_from(ACTIONS), min_size=steps, max_size=steps))
    ledger, model = lithi.Ledger(ds), Counter[str]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger_waiting, "FLUSH_ROWS", at_once)
        loader = lithi.torch_loader(ds, batch_size, shuffle=shuffle, seed=batch_size)
        for batch in acted(iter(loader), actions):
            if batch is None:
                state = json.loads(json.dumps(ledger.state_dict()))
                ledger = lithi.Ledger(ds)
                ledger.load_state_dict(state)
                continue
            model.update(batch["item_id"])
            ledger.observe(batch)
        tally = ledger._counted().tally()
    assert tally.missing == ROWS - len(model)
    assert tally.repeated == sum(times > 1 for times in model.values())
    assert ledger._account.foreign_total == 0
    if tally.missing == tally.repeated == 0:
        assert ledger.reconcile().rows == ROWS


def acted(batches: Iterator[Any], actions: list[str]) -> Iterator[Any]:
    """The batches, each with what is done to it; None is where the ledger's state is saved."""
    late = []
    for batch, action in zip(batches, actions, strict=True):
        if action == "late":
            late.append(batch)
        elif action != "skip":
            if action == "drop one":
                del batch["item_id"][len(batch["item_id"]) // 2]
            yield copy.deepcopy(batch) if action == "copy" else batch
        if action == "twice":
            yield batch
        if action == "settle":
            yield None
    yield from late


def test_ids_of_says_what_a_ledger_takes_for_ids(ds: Any) -> None:
    batch = next(iter(lithi.torch_loader(ds, 3)))
    assert ids_of(batch, "item_id") == ("\n".join(map(item, range(3))).encode(), 3, ())
