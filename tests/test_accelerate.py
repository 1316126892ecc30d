"""accelerate in two real processes: what is split already is left as it is, or refused."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data as torch_data
from ranks import refused, run_ranks, write_rows

import lithi_datasets as lithi
from lithi_datasets.reading.split import split_by_node

SIZES = (4, 4, 3, 2)


def _ids(loader: Any) -> list[str]:
    return [item for batch in loader for item in batch["item_id"]]


def both_ranks(bundle: str, cache: str) -> dict[str, Any]:
    from accelerate import Accelerator

    accelerator = Accelerator()
    ds = lithi.load(bundle, cache_dir=cache)
    stream = lithi.load(bundle, streaming=True)
    rank, world_size = accelerator.process_index, accelerator.num_processes
    split = {"rank": rank, "world_size": world_size}
    result: dict[str, Any] = {"world_size": world_size}

    for name, source in (("map", ds), ("stream", stream)):
        loader = lithi.torch_loader(source, 3, **split)
        result[f"{name} kept"] = accelerator.prepare(loader) is loader
        result[f"{name} ids"] = _ids(loader)
        share = split_by_node(source, rank, world_size)
        of_share = lithi.torch_loader(share, 3)
        result[f"{name} share kept"] = accelerator.prepare(of_share) is of_share
        result[f"{name} share ids"] = _ids(of_share)
        unsplit = lithi.torch_loader(source, 3)
        result[f"{name} unsplit"] = refused(partial(accelerator.prepare, unsplit))
        wrong = lithi.torch_loader(source, 3, rank=1 - rank, world_size=2)
        result[f"{name} wrong rank"] = refused(partial(accelerator.prepare, wrong))
        more = lithi.torch_loader(source, 3, rank=rank, world_size=3)
        result[f"{name} three ranks"] = refused(partial(accelerator.prepare, more))
    result.update(_stock(accelerator, ds, stream))
    return result


def _stock(accelerator: Any, ds: Any, stream: Any) -> dict[str, Any]:
    """Shares in a DataLoader of torch."""
    from accelerate import Accelerator, DataLoaderConfiguration

    rank, world_size = accelerator.process_index, accelerator.num_processes
    share = split_by_node(ds, rank, world_size)
    streamed = split_by_node(stream, rank, world_size)
    result: dict[str, Any] = {}

    def through(source: Any, using: Any = accelerator, **options: Any) -> list[str]:
        return refused(lambda: _ids(using.prepare(torch_data.DataLoader(source, 2, **options))))

    result["share"] = through(share)
    result["share, last dropped"] = through(share, drop_last=True)
    result["share, shuffled"] = through(share, shuffle=True)
    result["share, mapped"] = through(share.map(_with_length))
    result["share, with workers"] = through(share, num_workers=1)
    seedable = Accelerator(dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
    result["share, seedable"] = through(share, seedable, shuffle=True)
    result["not seen"] = through(share, seedable, shuffle=True, drop_last=True)
    fetching = Accelerator(dataloader_config=DataLoaderConfiguration(dispatch_batches=False))
    result["stream share"] = through(streamed, fetching)
    result["stream share, mapped"] = through(streamed.map(_with_length), fetching)
    # The way out: the DataLoader of a share is not prepared.
    result["not prepared"] = _ids(torch_data.DataLoader(share, 2))
    result["stream not prepared"] = _ids(torch_data.DataLoader(streamed, 2))
    # The stock path, for comparison: a whole dataset, which accelerate pads.
    result["padded"] = _ids(accelerator.prepare(torch_data.DataLoader(ds, 3)))
    result["dispatched"] = through(streamed)
    return result


def _with_length(row: dict[str, Any]) -> dict[str, Any]:
    return {"length": len(row["item_id"])}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("accelerate")
    write_rows(folder / "b", SIZES)
    lithi.load(folder / "b", cache_dir=folder / "cache")
    ranks = run_ranks(both_ranks, folder, bundle=folder / "b", cache=folder / "cache")
    assert [rank["world_size"] for rank in ranks] == [2, 2]
    return ranks


@pytest.fixture
def ids(tmp_path: Path) -> Counter[str]:
    return Counter(write_rows(tmp_path / "ids", SIZES))


@pytest.mark.parametrize("kind", ["map", "stream", "map share", "stream share"])
def test_a_loader_of_this_rank_is_left_as_it_is(
    ran: list[dict[str, Any]], ids: Counter[str], kind: str
) -> None:
    assert [rank[f"{kind} kept"] for rank in ran] == [True, True]
    assert Counter(ran[0][f"{kind} ids"] + ran[1][f"{kind} ids"]) == ids


@pytest.mark.parametrize("case", ["unsplit", "wrong rank", "three ranks"])
@pytest.mark.parametrize("kind", ["map", "stream"])
def test_a_loader_that_is_not_of_this_rank_is_refused_with_the_way_out(
    ran: list[dict[str, Any]], kind: str, case: str
) -> None:
    for place, rank in enumerate(ran):
        error, text = rank[f"{kind} {case}"]
        assert error == "UsageError"
        assert f"expected: a loader of rank {place} of 2" in text
        assert "rank=accelerator.process_index" in text


@pytest.mark.parametrize(
    "case",
    [
        *("share", "share, last dropped", "share, shuffled", "share, mapped"),
        *("share, with workers", "share, seedable", "stream share", "stream share, mapped"),
    ],
)
def test_a_prepared_dataloader_of_a_share_is_refused_with_the_way_out(
    ran: list[dict[str, Any]], case: str
) -> None:
    for rank in ran:
        error, text = rank[case]
        assert error == "UsageError"
        assert "split a dataset again" in text
        assert "Don't pass this DataLoader to prepare" in text


def test_a_dataloader_of_a_share_that_is_not_prepared_reads_the_share(
    ran: list[dict[str, Any]], ids: Counter[str]
) -> None:
    assert Counter(ran[0]["not prepared"] + ran[1]["not prepared"]) == ids
    assert Counter(ran[0]["stream not prepared"] + ran[1]["stream not prepared"]) == ids


def test_the_stock_path_repeats_rows(ran: list[dict[str, Any]], ids: Counter[str]) -> None:
    read = Counter(ran[0]["padded"] + ran[1]["padded"])
    assert read != ids
    assert set(read) == set(ids)


def test_accelerate_asks_nothing_where_it_drops_the_last_of_a_seedable_shuffle(
    ran: list[dict[str, Any]],
) -> None:
    """The one way that can't be refused; when this fails, accelerate has learned to ask."""
    assert [rank["not seen"] for rank in ran] == [[], []]


def test_a_dispatched_stream_fails_on_its_strings(ran: list[dict[str, Any]]) -> None:
    """What accelerate does with streams by default asks a dataset nothing, so it isn't refused."""
    assert ran[0]["dispatched"][0] == "TypeError"


def test_one_process_takes_what_is_whole_and_refuses_a_part(tmp_path: Path) -> None:
    from accelerate import Accelerator

    ids = write_rows(tmp_path / "b")
    ds = lithi.load(tmp_path / "b", cache_dir=tmp_path / "cache")
    accelerator = Accelerator(cpu=True)
    loader = lithi.torch_loader(ds, 4)
    assert accelerator.prepare(loader) is loader
    assert _ids(loader) == ids
    with pytest.raises(lithi.UsageError, match="a loader of rank 1 of 2"):
        accelerator.prepare(lithi.torch_loader(ds, 4, rank=1, world_size=2))
    share = split_by_node(ds, 1, 2)
    assert _ids(accelerator.prepare(torch_data.DataLoader(share, 2))) == ids[7:]


def test_shares_pickle_and_stay_shares_through_transforms(tmp_path: Path) -> None:
    import pickle

    write_rows(tmp_path / "b", SIZES)
    share = split_by_node(lithi.load(tmp_path / "b", cache_dir=tmp_path / "cache"), 0, 2)
    for made in (share.select(range(3)), share.with_format(None), share.shuffle(seed=1)):
        assert type(made) is type(share)
    again = pickle.loads(pickle.dumps(share))
    assert (type(again), again[0]["item_id"]) == (type(share), "item-0000")
    stream = split_by_node(lithi.load(tmp_path / "b", streaming=True), 0, 2)
    assert type(stream.with_format(None)) is type(stream)
    assert stream.n_shards == stream.num_shards
    assert len([*torch_data.DataLoader(stream, batch_size=None)]) == len([*stream])
    assert isinstance(stream, torch_data.IterableDataset)
    assert torch.equal(next(iter(stream))["x"], share[0]["x"])
