"""Resume: exact at every step, elastic for map-style, refused where the state does not fit."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeTable, result_table
from hypothesis import given, settings
from hypothesis import strategies as st

import lithi_datasets as lithi
from lithi_datasets.testing import assert_same_after_resume, write_bundle

UNEVEN = (10, 1, 1, 10, 15)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("resume")
    tables = [result_table(n, sum(UNEVEN[:i])) for i, n in enumerate(UNEVEN)]
    write_bundle(root / "b", tables)
    return root / "b"


def _load(folder: Path, **keywords: Any) -> Any:
    return lithi.load(folder, cache_dir=folder.parent / "cache", **keywords)


@pytest.mark.parametrize("drop_last", [False, True], ids=["all", "drop_last"])
@pytest.mark.parametrize("shuffle", [False, True], ids=["in_order", "shuffled"])
@pytest.mark.parametrize("streaming", [False, True], ids=["map", "stream"])
def test_resume_is_exact_at_every_step_and_the_next_epoch_is_whole(
    folder: Path, streaming: bool, shuffle: bool, drop_last: bool
) -> None:
    ds = _load(folder, streaming=streaming)
    for rank, world_size in ((0, 1), (1, 2), (2, 3)):
        restored = assert_same_after_resume(
            lambda rank=rank, world_size=world_size: lithi.torch_loader(  # type: ignore[misc]
                ds,
                3,
                rank=rank,
                world_size=world_size,
                shuffle=shuffle,
                seed=4,
                drop_last=drop_last,
            )
        )
        assert restored > 4


@pytest.mark.parametrize("streaming", [False, True], ids=["map", "stream"])
def test_resume_is_exact_with_workers(folder: Path, streaming: bool) -> None:
    ds = _load(folder, streaming=streaming)
    restored = assert_same_after_resume(
        lambda: lithi.torch_loader(ds, 7, num_workers=2, shuffle=True, seed=4), epochs=1
    )
    assert restored > 5


def test_resume_of_a_filtered_stream_is_exact(folder: Path) -> None:
    for view in (
        _load(folder, streaming=True, statuses=["accepted"]),
        _load(folder, streaming=True).filter(lambda row: row["score"] > 1),
    ):
        assert_same_after_resume(lambda view=view: lithi.torch_loader(view, 3), epochs=1)  # type: ignore[misc]


@settings(max_examples=40, deadline=None)
@given(
    chain=st.lists(
        st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(0, 4)), min_size=1, max_size=5
    ),
    shuffle=st.booleans(),
)
def test_any_chain_of_elastic_resumes_reads_the_rows_left_exactly_once(
    folder: Path, chain: list[tuple[int, int, int]], shuffle: bool
) -> None:
    ds = _load(folder)
    seen: Counter[str] = Counter()
    state: dict[str, Any] | None = None
    for number, (world_size, batch_size, steps) in enumerate(chain):
        last = number == len(chain) - 1
        states = []
        for rank in range(world_size):
            loader = lithi.torch_loader(
                ds, batch_size, rank=rank, world_size=world_size, shuffle=shuffle, seed=2
            )
            if state is not None:
                loader.load_state_dict(state)
                if state["consumed"] == 37:
                    states.append(state)
                    continue
            wanted = len(loader) if last else min(steps, len(loader))
            iterator = iter(loader)
            for _ in range(wanted):
                seen.update(next(iterator)["item_id"])
            states.append(loader.state_dict())
        assert all(one == states[0] for one in states)
        state = json.loads(json.dumps(states[0]))
    assert seen == Counter(f"item-{n:06d}" for n in range(37))


def test_a_state_of_other_rows_is_refused_with_both_values(
    folder: Path, tmp_path: Path, make_table: MakeTable
) -> None:
    ds = _load(folder)
    loader = lithi.torch_loader(ds, 3, shuffle=True, seed=1)
    state = loader.state_dict()
    write_bundle(tmp_path / "other", make_table(37), version_id="res_other")
    other = lithi.load(tmp_path / "other", cache_dir=tmp_path / "c")
    cases = {
        "snapshot": lithi.torch_loader(other, 3, shuffle=True, seed=1),
        "view": lithi.torch_loader(ds.select(range(36)), 3, shuffle=True, seed=1),
        "seed": lithi.torch_loader(ds, 3, shuffle=True, seed=2),
        "shuffle": lithi.torch_loader(ds, 3, seed=1),
        "kind": lithi.torch_loader(_load(folder, streaming=True), 3, shuffle=True, seed=1),
    }
    for name, wrong in cases.items():
        before = wrong.state_dict()
        with pytest.raises(lithi.StateError) as caught:
            wrong.load_state_dict(state)
        assert caught.value.path == name
        assert repr(state[name]) in str(caught.value)
        assert repr(before[name]) in str(caught.value)
        assert wrong.state_dict() == before


@pytest.mark.parametrize("member", ["world_size", "rank", "batch_size", "num_workers", "drop_last"])
def test_a_stream_state_needs_the_same_readers(folder: Path, member: str) -> None:
    ds = _load(folder, streaming=True)
    own: dict[str, Any] = {
        "batch_size": 3,
        "rank": 0,
        "world_size": 2,
        "num_workers": 0,
        "drop_last": False,
    }
    state = lithi.torch_loader(ds, **own).state_dict()
    changed = {"world_size": 3, "rank": 1, "batch_size": 4, "num_workers": 2, "drop_last": True}
    wrong = lithi.torch_loader(ds, **{**own, member: changed[member]})
    with pytest.raises(lithi.StateError) as caught:
        wrong.load_state_dict(state)
    assert caught.value.path in (member, "view")


@pytest.mark.parametrize(
    "broken",
    [
        None,
        [],
        {},
        {"version": 2},
        {"epoch": -1},
        {"epoch": "0"},
        {"epoch": True},
        {"epoch": 1.0},
        {"consumed": 38},
        {"consumed": None},
        {"dropped": 38},
        {"dropped": 1},
        {"done": [0]},
        {"done": ["a"]},
        {"done": [99]},
        {"turn": 5},
        {"finished": 0},
    ],
    ids=repr,
)
@pytest.mark.parametrize("streaming", [False, True], ids=["map", "stream"])
def test_a_broken_state_is_a_state_error(folder: Path, streaming: bool, broken: Any) -> None:
    loader = lithi.torch_loader(_load(folder, streaming=streaming), 3)
    before = loader.state_dict()
    state = {**before, **broken} if broken else broken
    if broken and set(broken) - set(before):
        pytest.skip("not a member of this kind of state")
    if broken == {"done": [0]}:
        state["done"] = [0, 0]
    with pytest.raises(lithi.StateError):
        loader.load_state_dict(state)
    assert loader.state_dict() == before


def test_the_state_is_plain_json_without_paths(folder: Path) -> None:
    for streaming in (False, True):
        loader = lithi.torch_loader(_load(folder, streaming=streaming), 3)
        next(iter(loader))
        text = json.dumps(loader.state_dict())
        assert str(folder.parent) not in text
        assert lithi.open_bundle(folder).snapshot.content_sha256 in text


def test_a_state_with_fewer_rows_left_than_a_step_drops_them(folder: Path) -> None:
    ds = _load(folder)
    loader = lithi.torch_loader(ds, 6, world_size=3, drop_last=True)
    next(iter(loader))
    wider = lithi.torch_loader(ds, 5, world_size=4, drop_last=True)
    wider.load_state_dict(loader.state_dict())
    assert wider.dropped == len(ds) - 18 == 19
