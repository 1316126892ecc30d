"""torchdata's StatefulDataLoader over our datasets: a resume in mid-epoch is exact."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ranks import write_rows
from torchdata.stateful_dataloader import StatefulDataLoader

import lithi_datasets as lithi

# torch's own, at every loader that torchdata makes.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")

SIZES = (4, 1, 5, 3)


@pytest.fixture
def bundle(tmp_path: Path) -> tuple[Path, list[str]]:
    return tmp_path / "b", write_rows(tmp_path / "b", SIZES)


def _load(folder: Path, **more: Any) -> Any:
    return lithi.load(folder, cache_dir=folder.parent / "cache", **more)


def _ids(loader: Any) -> list[list[str]]:
    return [list(batch["item_id"]) for batch in loader]


def _after(make: Any, step: int) -> list[list[str]]:
    """What is left after `step` batches, in a new loader that got the state."""
    first = make()
    running = iter(first)
    for _ in range(step):
        next(running)
    state = first.state_dict()
    del running
    again = make()
    again.load_state_dict(state)
    return _ids(again)


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("streaming", [False, True], ids=["map", "stream"])
def test_a_stateful_loader_goes_on_where_it_was(
    bundle: tuple[Path, list[str]], streaming: bool, num_workers: int
) -> None:
    folder, ids = bundle

    def make() -> Any:
        ds = _load(folder, streaming=streaming)
        return StatefulDataLoader(ds, batch_size=3, num_workers=num_workers)

    whole = _ids(make())
    assert [item for batch in whole for item in batch] == ids
    for step in (1, 3) if num_workers else range(1, len(whole)):
        assert _after(make, step) == whole[step:]


def test_a_resumed_stream_begins_its_next_epoch_in_the_middle_but_in_our_loader(
    bundle: tuple[Path, list[str]],
) -> None:
    """`datasets` keeps where a stream was resumed for every later epoch; `torch_loader` doesn't."""
    folder, _ = bundle

    def theirs() -> Any:
        return StatefulDataLoader(_load(folder, streaming=True), batch_size=3)

    def ours() -> Any:
        return lithi.torch_loader(_load(folder, streaming=True), 3)

    for make, next_epoch in ((theirs, 3), (ours, 5)):
        first, again = make(), make()
        running = iter(first)
        for _ in range(2):
            next(running)
        again.load_state_dict(first.state_dict())
        assert [len(_ids(again)) for _ in range(2)] == [3, next_epoch]


@pytest.mark.parametrize("shuffle", [False, True], ids=["in_order", "shuffled"])
def test_the_batches_of_our_loader_go_through_a_stateful_one(
    bundle: tuple[Path, list[str]], shuffle: bool
) -> None:
    """Its sampler names whole batches, so `batch_size=None`; torchdata counts them."""
    ds = _load(bundle[0])

    def make() -> Any:
        ours = lithi.torch_loader(ds, 3, shuffle=shuffle, seed=4)
        return StatefulDataLoader(
            ours.dataset, batch_size=None, sampler=ours.sampler, collate_fn=ours.collate_fn
        )

    whole = _ids(lithi.torch_loader(ds, 3, shuffle=shuffle, seed=4))
    for step in range(1, len(whole)):
        assert _after(make, step) == whole[step:]


def test_our_state_goes_on_with_other_workers_and_theirs_does_not(
    bundle: tuple[Path, list[str]],
) -> None:
    ds = _load(bundle[0])
    ours = lithi.torch_loader(ds, 3)
    whole = _ids(lithi.torch_loader(ds, 3))
    next(iter(ours))
    again = lithi.torch_loader(ds, 3, num_workers=2)
    again.load_state_dict(json.loads(json.dumps(ours.state_dict())))
    assert _ids(again) == whole[1:]
    theirs = StatefulDataLoader(ds, batch_size=3, num_workers=1)
    next(iter(theirs))
    other = StatefulDataLoader(ds, batch_size=3, num_workers=0)
    other.load_state_dict(theirs.state_dict())
    with pytest.raises(AssertionError, match="_num_yielded"):
        _ids(other)
