"""Ledgers over a resume and over ranks: states at every step, joined, or refused by name."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import result_table
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_ledger import ROWS, UNEVEN, WHOLE, item, load, watched

import lithi_datasets as lithi
from lithi_datasets.testing import write_bundle


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("state")
    write_bundle(folder / "b", [result_table(n, sum(UNEVEN[:i])) for i, n in enumerate(UNEVEN)])
    write_bundle(folder / "other", result_table(ROWS), version_id="res_other")
    return folder / "b"


def kept(state: Any) -> Any:
    """What a file gives back of a state."""
    return json.loads(json.dumps(state))


@pytest.mark.parametrize("drop_last", [False, True], ids=["all", "drop_last"])
@pytest.mark.parametrize("shuffle", [False, True], ids=["in_order", "shuffled"])
@pytest.mark.parametrize("streaming", [False, True], ids=["map", "stream"])
def test_with_the_loaders_state_it_goes_on_at_every_step(
    bundle: Path, streaming: bool, shuffle: bool, drop_last: bool
) -> None:
    ds = load(bundle, streaming=streaming)

    def loader() -> Any:
        return lithi.torch_loader(ds, 4, shuffle=shuffle, seed=2, drop_last=drop_last)

    whole = watched(lithi.Ledger(ds), loader()).reconcile()
    assert whole.dropped == drop_last * 1
    first, ledger = loader(), lithi.Ledger(ds)

    def save() -> Any:
        return kept([first.state_dict(), ledger.state_dict()])

    saved = [save(), *(save() for _ in ledger.watch(first))]
    assert len(saved) == (ROWS // 4 if drop_last else -(-ROWS // 4)) + 1
    for of_loader, of_ledger in saved[:-1]:
        resumed, again = loader(), lithi.Ledger(ds)
        resumed.load_state_dict(of_loader)
        again.load_state_dict(of_ledger)
        assert watched(again, resumed).reconcile() == whole
    again = lithi.Ledger(ds)
    again.load_state_dict(saved[-1][1])  # of the last step: nothing is left to read
    assert again.reconcile() == whole


@settings(max_examples=25, deadline=None)
@given(
    chain=st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(0, 4)), min_size=1, max_size=4
    ),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    counted=st.booleans(),
)
def test_any_chain_of_elastic_resumes_adds_up(
    bundle: Path, chain: list[tuple[int, int, int]], shuffle: bool, drop_last: bool, counted: bool
) -> None:
    """Each link is a world size, a batch size and the steps until all ranks save and stop."""
    ds = load(bundle)
    saved: list[Any] = []
    position: Any = None
    chain = [*chain, (2, 4, 10**6)]
    for world_size, batch_size, steps in chain:
        loaders: list[Any] = [
            lithi.torch_loader(
                *(ds, batch_size),
                rank=rank,
                world_size=world_size,
                shuffle=shuffle,
                seed=6,
                drop_last=drop_last,
            )
            for rank in range(world_size)
        ]
        ledgers = [lithi.Ledger(ds) for _ in loaders]
        if saved:
            ledgers[0].load_state_dict(saved[0])
            ledgers[0].merge_states(*saved[1:])
        for loader, ledger in zip(loaders, ledgers, strict=True):
            if position is not None:
                loader.load_state_dict(position)
            if position is None or position["consumed"] < ROWS:
                assume(not loader._at_end)  # fewer rows are left than its ranks take in a step
                for _ in itertools.islice(ledger.watch(loader), steps):
                    pass
            if counted:
                ledger._counted()
        if steps:
            position = kept(loaders[0].state_dict())
        saved = [kept(ledger.state_dict()) for ledger in ledgers]
    ledgers[0].merge(*ledgers[1:])
    found = ledgers[0].reconcile()
    assert found.rows + found.dropped == ROWS
    assert drop_last or found.dropped == 0


@pytest.mark.parametrize("streaming", [False, True], ids=["map", "stream"])
@pytest.mark.parametrize("world_size", [2, 3])
def test_ledgers_of_shares_join_to_the_whole(
    bundle: Path, world_size: int, streaming: bool
) -> None:
    ds = load(bundle, streaming=streaming)
    shares = [lithi.split_by_node(ds, rank, world_size) for rank in range(world_size)]
    ledgers = [watched(lithi.Ledger(share), lithi.torch_loader(share, 4)) for share in shares]
    if world_size == 2:
        with pytest.raises(lithi.ReconcileError) as caught:
            copy.deepcopy(ledgers[0]).reconcile()
        assert set(caught.value.totals) == {"outside"}
    first, *others = ledgers
    assert first.merge(*others) is first
    assert first.reconcile().as_dict() == WHOLE


def test_what_two_ranks_both_read_is_named(bundle: Path) -> None:
    ds = load(bundle)
    shares = [ds.select(range(20)), ds.select(range(18, 37))]
    first, second = (watched(lithi.Ledger(share), share.with_format(None)) for share in shares)
    with pytest.raises(lithi.ReconcileError) as caught:
        first.merge(second).reconcile()
    assert caught.value.repeated == (item(18), item(19))
    assert caught.value.totals == {"repeated": 2}


def test_drops_of_all_ranks_are_counted_once(bundle: Path) -> None:
    """Every rank of a map-style loader says what all ranks together left out."""
    ds = load(bundle)
    ledgers = []
    for rank in range(3):
        loader = lithi.torch_loader(ds, 3, rank=rank, world_size=3, drop_last=True)
        ledgers.append(watched(lithi.Ledger(ds), loader))
    found = ledgers[0].merge(*ledgers[1:]).reconcile()
    assert (found.rows, found.dropped) == (36, 1)


OTHERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "another bundle": ("snapshot", lambda folder: lithi.Ledger(load(folder.parent / "other"))),
    "a slice": ("split", lambda folder: lithi.Ledger(load(folder, "train[:10]"))),
    "statuses": ("statuses", lambda folder: lithi.Ledger(load(folder, statuses=["accepted"]))),
    "narrowed": ("subset", lambda folder: lithi.Ledger(load(folder), subset=True)),
}


@pytest.mark.parametrize("case", OTHERS)
def test_a_ledger_of_something_else_is_refused_with_both_values(bundle: Path, case: str) -> None:
    name, make = OTHERS[case]
    other, ledger = make(bundle), lithi.Ledger(load(bundle))
    for join in (
        lambda: ledger.merge(other),
        lambda: ledger.load_state_dict(other.state_dict()),
        lambda: ledger.merge_states(other.state_dict()),
    ):
        with pytest.raises(lithi.StateError) as caught:
            join()
        assert caught.value.path == name
        assert caught.value.expected == repr(ledger._scope[name])
        assert caught.value.found == repr(other._scope[name])


def test_a_state_of_other_rows_is_refused(bundle: Path) -> None:
    ds = load(bundle)
    ledger, fewer = lithi.Ledger(ds), lithi.Ledger(ds.select(range(36)))
    for join in (ledger.load_state_dict, ledger.merge_states):
        with pytest.raises(lithi.StateError, match="its index differs"):
            join(fewer.state_dict())


def test_a_state_goes_on_where_the_rows_have_another_order(bundle: Path) -> None:
    ds = load(bundle)
    ledger = lithi.Ledger(ds)
    ledger.observe({"item_id": [item(n) for n in range(20)]})
    again = lithi.Ledger(ds.shuffle(seed=1))
    again.load_state_dict(kept(ledger.state_dict()))
    again.observe({"item_id": [item(n) for n in range(20, ROWS)]})
    assert again.reconcile().as_dict() == WHOLE


def test_a_state_replaces_what_was_counted(bundle: Path) -> None:
    ds = load(bundle)
    empty = lithi.Ledger(ds).state_dict()
    ledger = lithi.Ledger(ds)
    ledger.observe({"item_id": [item(0), "stranger"]})
    ledger.account_dropped(lithi.torch_loader(ds, 4, drop_last=True))
    ledger.load_state_dict(empty)
    assert watched(ledger, lithi.torch_loader(ds, 4)).reconcile().as_dict() == WHOLE


def test_strangers_and_drops_stay_in_a_state(bundle: Path) -> None:
    ds = load(bundle)
    ledger = watched(lithi.Ledger(ds), lithi.torch_loader(ds, 4, drop_last=True))
    ledger.observe({"item_id": ["stranger 1", "stranger 2", "stranger 1"]})
    again = lithi.Ledger(ds)
    again.load_state_dict(kept(ledger.state_dict()))
    with pytest.raises(lithi.ReconcileError) as caught:
        again.reconcile()
    assert caught.value.foreign == ("stranger 1", "stranger 2")
    assert caught.value.totals == {"foreign": 3}


def test_a_ledger_is_never_counted_twice(bundle: Path) -> None:
    ds = load(bundle)
    ledger, other = lithi.Ledger(ds), lithi.Ledger(ds)
    state = other.state_dict()
    loaded = lithi.Ledger(ds)
    loaded.load_state_dict(state)
    joins: list[Callable[[], Any]] = [
        lambda: ledger.merge(ledger),
        lambda: ledger.merge(other, other),
        lambda: ledger.merge(other, loaded),
        lambda: ledger.merge_states(ledger.state_dict()),
        lambda: ledger.merge_states(state, state),
    ]
    for join in joins:
        with pytest.raises(lithi.UsageError, match="counted twice"):
            join()
    with pytest.raises(lithi.UsageError, match="Only ledgers"):
        ledger.merge(state)  # type: ignore[arg-type]
    assert watched(ledger, lithi.torch_loader(ds, 4)).reconcile().as_dict() == WHOLE


def test_a_refused_join_changes_nothing(bundle: Path) -> None:
    ds = load(bundle)
    ledger = watched(lithi.Ledger(ds), lithi.torch_loader(ds, 4))
    full = watched(lithi.Ledger(ds), lithi.torch_loader(ds, 4))
    foreign = lithi.Ledger(load(bundle, statuses=["failed"]))
    with pytest.raises(lithi.StateError):
        ledger.merge(full, foreign)
    with pytest.raises(lithi.StateError):
        ledger.merge_states(full.state_dict(), foreign.state_dict())
    assert ledger.reconcile().as_dict() == WHOLE


def test_without_a_group_of_ranks_nothing_is_gathered(bundle: Path) -> None:
    with pytest.raises(lithi.UsageError, match="no group of ranks"):
        lithi.Ledger(load(bundle)).gather()


def test_a_state_is_plain_and_small(bundle: Path) -> None:
    ds = load(bundle)
    ledger = watched(lithi.Ledger(ds), lithi.torch_loader(ds, 4))
    state = ledger.state_dict()
    assert kept(state) == state
    assert state["snapshot"] == lithi.snapshot_of(ds).as_dict()
    assert item(3) not in json.dumps(state)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 40) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)
MEMBERS = (
    *("version", "kind", "snapshot", "split", "statuses", "subset", "attempt", "rows", "index"),
    *("counts", "foreign", "dropped", "node", "source", "token"),
)


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from(MEMBERS), value=JSON, inner=st.booleans())
def test_a_broken_state_is_refused_or_changes_nothing(
    bundle: Path, name: str, value: Any, inner: bool
) -> None:
    ds = load(bundle)
    ledger = lithi.Ledger(ds)
    state = ledger.state_dict()
    assert set(state) == set(MEMBERS)
    broken = {**state, name: value}
    if inner and isinstance(state[name], dict):
        broken[name] = {**state[name], **(value if isinstance(value, dict) else {"ids": value})}
    harmless = name in ("node", "source", "token", "foreign", "dropped", "attempt")
    if harmless or broken == state:
        with contextlib.suppress(lithi.StateError):
            ledger.load_state_dict(broken)
        return
    with pytest.raises(lithi.StateError) as caught:
        ledger.load_state_dict(broken)
    assert caught.value.path is not None
    assert (ledger.state_dict() | {"token": ""}) == (state | {"token": ""})


@pytest.mark.parametrize("state", [None, [], "x", {}, {"version": 1, "kind": "map"}, 3])
def test_what_is_no_state_of_a_ledger_is_refused(bundle: Path, state: Any) -> None:
    with pytest.raises(lithi.StateError, match="not the state of a ledger"):
        lithi.Ledger(load(bundle)).load_state_dict(state)
