"""Ledgers in two real processes on gloo: they catch what pads, and no rank waits in vain."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.utils.data as torch_data
from ranks import run_ranks, torchrun, write_rows
from test_ledger import watched
from test_ledger_batches import FAMILIES, in_bundle
from test_trainer import Tiny

import lithi_datasets as lithi

ROWS = 13
SIZES = (4, 1, 8)
WHOLE: dict[str, Any] = {
    "rows": ROWS,
    "accepted": 10,
    "failed": 3,
    "abstained": 0,
    "dropped": 0,
    "excluded": {},
}

Outcome = dict[str, Any]


def outcome(reconcile: Callable[[], Any]) -> Outcome:
    """What a call gives, or what its error says."""
    try:
        return dict(reconcile().as_dict())
    except lithi.ReconcileError as error:
        return {
            "error": "ReconcileError",
            "missing": list(error.missing),
            "repeated": list(error.repeated),
            "totals": error.totals,
            "text": str(error),
        }
    except lithi.LithiError as error:
        return {"error": type(error).__name__, "text": str(error)}


def gathered(ledger: lithi.Ledger, loader: Any) -> Outcome:
    watched(ledger, loader)
    return outcome(lambda: ledger.gather().reconcile())


def stock(ds: Any, batch_size: int = 3, **options: Any) -> Any:
    names = ds.with_format(None).select_columns(["item_id"])
    return torch_data.DataLoader(names, batch_size=batch_size, **options)


def both_ranks(bundle: str, other: str, colliding: str, cache: str) -> dict[str, Outcome]:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    ds = lithi.load(bundle, cache_dir=cache)
    stream = lithi.load(bundle, streaming=True)
    accepted = lithi.load(bundle, cache_dir=cache, statuses=["accepted"])
    split: dict[str, Any] = {"rank": rank, "world_size": 2}
    result: dict[str, Outcome] = {}
    for name, source, options in (
        ("in order", ds, {}),
        ("shuffled", ds, {"shuffle": True, "seed": 1}),
        ("workers", ds, {"num_workers": 1}),
        ("stream", stream, {}),
        ("statuses", accepted, {}),
        ("drop_last", ds, {"drop_last": True}),
        ("stream, drop_last", stream, {"drop_last": True}),
    ):
        loader = lithi.torch_loader(source, 3, **split, **options)
        result[name] = gathered(lithi.Ledger(source), loader)
    crafted = lithi.load(colliding, cache_dir=cache)
    for name, source in (("map", ds), ("stream", stream), ("colliding", crafted)):
        share = lithi.split_by_node(source, rank, 2)
        result[f"{name} share"] = gathered(lithi.Ledger(share), lithi.torch_loader(share, 3))
        short = [batch["item_id"] for batch in lithi.torch_loader(share, 3)][:-1]
        result[f"{name} share, cut short"] = gathered(
            lithi.Ledger(share), ({"item_id": ids} for ids in short)
        )
        result[f"{name} share, not gathered"] = outcome(
            watched(lithi.Ledger(share), lithi.torch_loader(share, 3)).reconcile
        )
    result |= _padded(ds, rank) | _unlike(ds, rank) | _refused(ds, rank, other, cache)
    return result


def _padded(ds: Any, rank: int) -> dict[str, Outcome]:
    """13 rows on 2 ranks become 14: torch's sampler takes the first row twice."""
    result = {}
    for name, options in (("padded", {}), ("padded, shuffled", {"shuffle": True, "seed": 5})):
        every: dict[str, Any] = {"shuffle": False, **options}
        sampler: Any = torch_data.DistributedSampler(ds, 2, rank, **every)
        for kind in ("map", "share"):
            # A ledger of all rows on each rank, or each of its own.
            own = ds if kind == "map" else ds.select(sorted({*sampler}))
            result[f"{name}, {kind}"] = gathered(lithi.Ledger(own), stock(ds, sampler=sampler))
    cutting: Any = torch_data.DistributedSampler(ds, 2, rank, shuffle=False, drop_last=True)
    result["cut"] = gathered(lithi.Ledger(ds), stock(ds, sampler=cutting))
    return result


def _unlike(ds: Any, rank: int) -> dict[str, Outcome]:
    """Ranks that count in different ways, or of which one did nothing."""
    result = {}
    ledger = lithi.Ledger(ds)
    if rank:
        ledger.state_dict()  # from here on it counts by id
    result["by row and by id"] = gathered(
        ledger, lithi.torch_loader(ds, 3, rank=rank, world_size=2)
    )
    order = ds.shuffle(seed=3) if rank else ds
    loader = lithi.torch_loader(ds, 3, rank=rank, world_size=2)
    result["another order"] = gathered(lithi.Ledger(order), loader)
    whole = lithi.torch_loader(ds, 3)
    result["one reads all"] = gathered(lithi.Ledger(ds), whole if rank else [])
    result["nobody reads"] = gathered(lithi.Ledger(ds), [])
    result["both read all"] = gathered(lithi.Ledger(ds), lithi.torch_loader(ds, 3))
    group = dist.new_group([0, 1])
    ledger = watched(lithi.Ledger(ds), lithi.torch_loader(ds, 3, rank=rank, world_size=2))
    result["group"] = outcome(lambda: ledger.gather(group).reconcile())
    result["twice"] = outcome(lambda: ledger.gather().reconcile())
    ledger.reset()
    result["reset"] = gathered(ledger, lithi.torch_loader(ds, 3, rank=rank, world_size=2))
    return result


def _refused(ds: Any, rank: int, other: str, cache: str) -> dict[str, Outcome]:
    result = {}
    ledger = lithi.Ledger(ds)
    if rank:
        ledger.observe({"item_id": ["item-0000\nitem-0001"]})
    result["one fails"] = outcome(lambda: ledger.gather().reconcile())
    stream = lithi.load(f"{other}-{rank}", streaming=True)
    ledger = watched(lithi.Ledger(stream), stream.with_format(None))
    if rank:  # the expected ids are read when the ledger is asked for the first time
        part = Path(f"{other}-{rank}") / "parts" / "part-00001.parquet"
        part.write_bytes(part.read_bytes() + b"!")
    result["one can't read"] = outcome(lambda: ledger.gather().reconcile())
    source = lithi.load(other, cache_dir=cache) if rank else ds
    result["other bundle"] = outcome(lambda: lithi.Ledger(source).gather().reconcile())
    result["in step"] = gathered(
        lithi.Ledger(ds), lithi.torch_loader(ds, 3, rank=rank, world_size=2)
    )
    return result


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Outcome]]:
    folder = tmp_path_factory.mktemp("gathered")
    write_rows(folder / "b", SIZES)
    for name in ("other", "other-0", "other-1"):
        write_rows(folder / name, SIZES, version_id="res_other")
    in_bundle(folder / "colliding", FAMILIES["colliding"])
    for name in ("b", "other", "colliding"):
        lithi.load(folder / name, cache_dir=folder / "cache")
    lithi.load(folder / "b", cache_dir=folder / "cache", statuses=["accepted"])
    places: dict[str, Any] = {name: folder / name for name in ("other", "colliding", "cache")}
    return torchrun(both_ranks, folder, bundle=folder / "b", **places)


def same(ran: list[dict[str, Outcome]], case: str) -> Outcome:
    """What a case came to, the same on both ranks."""
    first, second = (rank[case] for rank in ran)
    assert first == second
    return first


@pytest.mark.parametrize(
    "case",
    [
        *("in order", "shuffled", "workers", "stream", "map share", "stream share"),
        *("by row and by id", "another order", "one reads all", "group", "reset", "in step"),
    ],
)
def test_ranks_that_read_each_row_once_gather_to_the_whole(
    ran: list[dict[str, Outcome]], case: str
) -> None:
    assert same(ran, case) == WHOLE


def test_what_was_excluded_and_dropped_is_counted_once_over_all_ranks(
    ran: list[dict[str, Outcome]],
) -> None:
    left_out = {"failed": 3, "abstained": 0}
    assert same(ran, "statuses") == {**WHOLE, "rows": 10, "failed": 0, "excluded": left_out}
    dropped = same(ran, "drop_last")
    assert (dropped["rows"], dropped["dropped"]) == (12, 1)
    cut = same(ran, "cut")
    assert (cut["rows"], cut["dropped"]) == (12, 1)
    stream = same(ran, "stream, drop_last")
    assert stream["dropped"] > 1
    assert stream["rows"] + stream["dropped"] == ROWS


@pytest.mark.parametrize("kind", ["map", "share"])
def test_the_padding_of_the_stock_sampler_is_caught_and_named(
    ran: list[dict[str, Outcome]], kind: str
) -> None:
    in_order = same(ran, f"padded, {kind}")
    assert in_order["error"] == "ReconcileError"
    assert in_order["repeated"] == ["item-0000"]
    assert in_order["totals"] == {"repeated": 1}
    assert "repeated 'item-0000' 2 times" in in_order["text"]
    shuffled = same(ran, f"padded, shuffled, {kind}")
    assert len(shuffled["repeated"]) == 1
    assert shuffled["totals"] == {"repeated": 1}


def test_ids_that_collide_on_one_rank_only_are_told_apart_on_all(
    ran: list[dict[str, Outcome]],
) -> None:
    found = same(ran, "colliding share")
    assert found["rows"] == len(FAMILIES["colliding"])


@pytest.mark.parametrize("kind", ["map", "stream"])
def test_rows_that_are_missing_from_several_shares_are_named_on_all_ranks(
    ran: list[dict[str, Outcome]], kind: str
) -> None:
    """13 rows are shares of 7 and 6, or of 8 and 5: one is a row short, the other three or two."""
    found = same(ran, f"{kind} share, cut short")
    assert found["totals"] == {"missing": 4}
    ends = [6, 10, 11, 12] if kind == "map" else [11, 12, 3, 4]
    assert sorted(found["missing"]) == sorted(f"item-{n:04d}" for n in ends)


@pytest.mark.parametrize("kind", ["map", "stream"])
def test_the_share_of_one_rank_is_not_taken_for_all(
    ran: list[dict[str, Outcome]], kind: str
) -> None:
    for rank in ran:
        assert set(rank[f"{kind} share, not gathered"]["totals"]) == {"outside"}


def test_rows_that_no_rank_or_every_rank_read_are_named(ran: list[dict[str, Outcome]]) -> None:
    nobody = same(ran, "nobody reads")
    assert nobody["missing"] == [f"item-{n:04d}" for n in range(5)]
    assert nobody["totals"] == {"missing": ROWS}
    both = same(ran, "both read all")
    assert both["repeated"] == [f"item-{n:04d}" for n in range(5)]
    assert both["totals"] == {"repeated": ROWS}


def test_a_rank_that_fails_tells_the_others(ran: list[dict[str, Outcome]]) -> None:
    waiting, failing = (rank["one fails"] for rank in ran)
    assert failing["error"] == "UsageError"
    assert "line feed" in failing["text"]
    assert waiting["error"] == "StateError"
    assert "The ledger of rank 1 can't be joined: UsageError: A batch holds" in waiting["text"]


def test_a_rank_that_cannot_read_its_parts_tells_the_others(
    ran: list[dict[str, Outcome]],
) -> None:
    waiting, failing = (rank["one can't read"] for rank in ran)
    assert failing["error"] == "FileSizeMismatch"
    assert waiting["error"] == "StateError"
    assert "The ledger of rank 1 can't be joined: FileSizeMismatch" in waiting["text"]


def test_a_rank_with_another_bundle_is_refused_on_all(ran: list[dict[str, Outcome]]) -> None:
    refused = same(ran, "other bundle")
    assert refused["error"] == "StateError"
    assert "rank 1 is not of the rows of this ledger: its snapshot differs" in refused["text"]
    assert "res_other" in refused["text"]
    assert "res_ranks_1" in refused["text"]


def test_a_ledger_is_gathered_once_an_epoch(ran: list[dict[str, Outcome]]) -> None:
    refused = same(ran, "twice")
    assert refused["error"] == "UsageError"
    assert "joined already" in refused["text"]


def with_accelerate(bundle: str, cache: str, out: str) -> dict[str, Outcome]:
    from accelerate import Accelerator, DataLoaderConfiguration

    result = {}
    ds = lithi.load(bundle, cache_dir=cache)
    for name, options, batches in (
        ("even_batches", {}, {}),
        ("even_batches, shuffled", {}, {"shuffle": True}),
        ("uneven", {"even_batches": False}, {}),
        ("drop_last", {}, {"drop_last": True}),
        ("split_batches", {"split_batches": True}, {"batch_size": 4}),
    ):
        accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(**options))
        loader = accelerator.prepare(stock(ds, **batches))
        result[name] = gathered(lithi.Ledger(ds), loader)
    accelerator = Accelerator(dataloader_config=DataLoaderConfiguration())
    place = {"rank": accelerator.process_index, "world_size": accelerator.num_processes}
    result["ours"] = gathered(
        lithi.Ledger(ds), accelerator.prepare(lithi.torch_loader(ds, 3, **place))
    )
    resumed = accelerator.skip_first_batches(accelerator.prepare(stock(ds, drop_last=True)), 1)
    ledger = lithi.Ledger(ds)
    if accelerator.process_index == 0:
        ledger.observe({"item_id": [f"item-{n:04d}" for n in range(6)]})  # the first step, of both
    result["skipped"] = gathered(ledger, resumed)
    result["trainer"] = _trained(ds, out)
    return result


def _settings(out: str, **options: Any) -> Any:
    from transformers import TrainingArguments

    return TrainingArguments(
        output_dir=out,
        per_device_train_batch_size=2,
        num_train_epochs=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
        logging_strategy="no",
        remove_unused_columns=False,
        **options,
    )


def _trained(ds: Any, out: str, **options: Any) -> Outcome:
    """`Trainer` with a ledger in its collate function: rows that the model gets are counted."""
    from transformers import Trainer, default_data_collator

    ledger = lithi.Ledger(ds)

    def collate(rows: list[Any]) -> dict[str, Any]:
        ledger.observe(rows)
        return dict(default_data_collator(rows))

    settings = _settings(out, **options)
    Trainer(model=Tiny(), args=settings, train_dataset=ds, data_collator=collate).train()
    if dist.is_initialized():
        ledger.gather()
    return outcome(ledger.reconcile)


@pytest.fixture(scope="module")
def accelerated(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Outcome]]:
    folder = tmp_path_factory.mktemp("accelerated")
    write_rows(folder / "b", SIZES)
    lithi.load(folder / "b", cache_dir=folder / "cache")
    places: dict[str, Any] = {name: folder / name for name in ("cache", "out")}
    return run_ranks(with_accelerate, folder, bundle=folder / "b", **places)


def test_the_padding_of_accelerate_is_caught_and_named(
    accelerated: list[dict[str, Outcome]],
) -> None:
    """13 rows on 2 processes in batches of 3 become 18: the first five come again."""
    found = same(accelerated, "even_batches")
    assert found["error"] == "ReconcileError"
    assert found["repeated"] == [f"item-{n:04d}" for n in range(5)]
    assert found["totals"] == {"repeated": 5}
    shuffled = same(accelerated, "even_batches, shuffled")
    assert len(set(shuffled["repeated"])) == 5
    split = same(accelerated, "split_batches")
    assert split["totals"] == {"repeated": 3}


@pytest.mark.parametrize("case", ["uneven", "ours"])
def test_what_accelerate_does_not_pad_adds_up(
    accelerated: list[dict[str, Outcome]], case: str
) -> None:
    assert same(accelerated, case) == WHOLE


@pytest.mark.parametrize("case", ["drop_last", "skipped"])
def test_rows_that_accelerate_drops_are_dropped(
    accelerated: list[dict[str, Outcome]], case: str
) -> None:
    found = same(accelerated, case)
    assert (found["rows"], found["dropped"]) == (12, 1)


def test_the_padding_of_trainer_is_caught_and_named(accelerated: list[dict[str, Outcome]]) -> None:
    """13 rows on 2 processes in batches of 2 become 16."""
    found = same(accelerated, "trainer")
    assert found["error"] == "ReconcileError"
    assert found["totals"] == {"repeated": 3}
    assert len(found["repeated"]) == 3


def one_process(bundle: str, cache: str, out: str) -> dict[str, Outcome]:
    ds = lithi.load(bundle, cache_dir=cache)
    return {
        "collated": _trained(ds, out),
        "watched": _watched_by_trainer(ds, out),
    }


def _watched_by_trainer(ds: Any, out: str) -> Outcome:
    """A Trainer whose loader is watched; it drops the last row."""
    from transformers import Trainer

    ledger = lithi.Ledger(ds)

    class Watching(Trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            return ledger.watch(super().get_train_dataloader())

        def compute_loss(self, model: Any, inputs: Any, *more: Any, **named: Any) -> Any:
            inputs.pop("item_id")
            return super().compute_loss(model, inputs, *more, **named)

    def collate(rows: list[Any]) -> dict[str, Any]:
        tensors = {name: torch.stack([row[name] for row in rows]) for name in ("x", "labels")}
        return {**tensors, "item_id": [row["item_id"] for row in rows]}

    settings = _settings(out, dataloader_drop_last=True)
    Watching(model=Tiny(), args=settings, train_dataset=ds, data_collator=collate).train()
    return outcome(ledger.reconcile)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    folder = tmp_path_factory.mktemp("alone")
    write_rows(folder / "b", SIZES)
    places: dict[str, Any] = {name: folder / name for name in ("cache", "out")}
    (found,) = run_ranks(one_process, folder, world_size=1, bundle=folder / "b", **places)
    return dict(found)


def test_an_epoch_of_trainer_adds_up(alone: dict[str, Outcome]) -> None:
    assert alone["collated"] == WHOLE
    assert (alone["watched"]["rows"], alone["watched"]["dropped"]) == (12, 1)
