"""torchrun: a collective at every step over two real processes neither hangs nor loses a row."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import torchrun, write_rows
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import lithi_datasets as lithi

SIZES = (10, 1, 1, 10, 15)
STREAM_BATCH = 6


def both_ranks(bundle: str, cache: str) -> dict[str, Any]:
    """Everything at once: what takes time is to start the processes."""
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    ds = lithi.load(bundle, cache_dir=cache)
    stream = lithi.load(bundle, streaming=True)
    split: dict[str, Any] = {"rank": rank, "world_size": world_size}
    result: dict[str, Any] = {}
    for batch_size, drop_last in ((3, False), (4, True)):
        loader = lithi.torch_loader(
            ds, batch_size, **split, shuffle=True, seed=7, drop_last=drop_last
        )
        result[f"map-{batch_size}-{drop_last}"] = [_reduced(loader) for _ in range(2)]
    plan = lithi.partition_plan(lithi.open_bundle(bundle), world_size, batch_size=STREAM_BATCH)
    result["plan"] = plan
    result["stream"] = _ids(lithi.torch_loader(stream, STREAM_BATCH, **split))
    own = lithi.torch_loader(stream, STREAM_BATCH, **split)
    result["stopped"] = _reduced(own, steps=plan["min_steps"])
    result["joined"] = _joined(lithi.torch_loader(stream, STREAM_BATCH, **split))
    return result


def _ids(loader: Any) -> list[list[str]]:
    return [list(batch["item_id"]) for batch in loader]


def _reduced(loader: Any, steps: int | None = None) -> dict[str, Any]:
    """Rows of each step, over all ranks, and the ids of this one."""
    sums, ids = [], []
    for number, batch in enumerate(loader):
        rows = torch.tensor(len(batch["item_id"]))
        dist.all_reduce(rows)
        sums.append(int(rows))
        ids += batch["item_id"]
        if number + 1 == steps:
            break
    return {"sums": sums, "ids": ids, "length": len(loader)}


def _joined(loader: Any) -> list[str]:
    """DistributedDataParallel with uneven inputs: every rank reads all that it has."""
    model = DistributedDataParallel(torch.nn.Linear(4, 3))
    ids = []
    with Join([model]):
        for batch in loader:
            loss = torch.nn.functional.cross_entropy(model(batch["x"]), batch["labels"])
            loss.backward()  # type: ignore[no-untyped-call]
            ids += batch["item_id"]
    return ids


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("torchrun")
    write_rows(folder / "b", SIZES)
    lithi.load(folder / "b", cache_dir=folder / "cache")
    return torchrun(both_ranks, folder, bundle=folder / "b", cache=folder / "cache")


def _all_ids(folder: Path) -> Counter[str]:
    return Counter(write_rows(folder / "ids", SIZES))


@pytest.mark.parametrize("epoch", [0, 1])
def test_map_style_ranks_make_equal_steps_and_read_each_row_once(
    ran: list[dict[str, Any]], epoch: int, tmp_path: Path
) -> None:
    first, second = (rank["map-3-False"][epoch] for rank in ran)
    assert first["sums"] == second["sums"] == [6, 6, 6, 6, 6, 5, 2]
    assert Counter(first["ids"] + second["ids"]) == _all_ids(tmp_path)


def test_with_drop_last_every_batch_is_full_on_every_rank(ran: list[dict[str, Any]]) -> None:
    for first, second in zip(*(rank["map-4-True"] for rank in ran), strict=True):
        assert first["sums"] == second["sums"] == [8, 8, 8, 8]
        assert not set(first["ids"]) & set(second["ids"])


def test_ranks_of_a_stream_that_stop_at_the_minimum_do_not_hang(
    ran: list[dict[str, Any]],
) -> None:
    steps = [len(rank["stream"]) for rank in ran]
    assert steps[0] != steps[1], "the case is of ranks that differ"
    first, second = (rank["stopped"]["sums"] for rank in ran)
    assert first == second
    assert len(first) == min(steps) == ran[0]["plan"]["min_steps"]


def test_the_plan_says_what_a_rank_reads_of_a_stream(ran: list[dict[str, Any]]) -> None:
    planned = [(entry["rows"], entry["steps"]) for entry in ran[0]["plan"]["ranks"]]
    read = [rank["stream"] for rank in ran]
    assert planned == [(sum(map(len, batches)), len(batches)) for batches in read]


def test_with_join_ranks_of_a_stream_read_each_row_once(
    ran: list[dict[str, Any]], tmp_path: Path
) -> None:
    assert Counter(ran[0]["joined"] + ran[1]["joined"]) == _all_ids(tmp_path)
