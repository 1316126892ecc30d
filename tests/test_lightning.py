"""Lightning on `torch_loader`: one process, and two with DDP; it replaces no sampler of ours."""

from __future__ import annotations

import os
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ranks import refused, run_ranks, write_rows

import lithi_datasets as lithi

SIZES = (4, 4, 3, 2)


def module() -> Any:
    """A small module that keeps the ids of its batches."""
    import torch
    from lightning import LightningModule

    class Small(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 3)
            self.ids: list[str] = []

        def training_step(self, batch: dict[str, Any], index: int) -> Any:
            self.ids += batch["item_id"]
            return torch.nn.functional.cross_entropy(self.layer(batch["x"]), batch["labels"])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Small()


def trainer(folder: Path, **options: Any) -> Any:
    from lightning import Trainer

    quiet = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    settings = {**quiet, "accelerator": "cpu", "devices": 1, "max_epochs": 2, **options}
    return Trainer(default_root_dir=folder, **settings)


def one_process(bundle: str, cache: str, out: str) -> dict[str, Any]:
    ds = lithi.load(bundle, cache_dir=cache)
    loader = lithi.torch_loader(ds, 3, shuffle=True, seed=1)
    model = module()
    trainer(Path(out)).fit(model, loader)
    return {
        "ids": model.ids,
        "epoch": loader.epoch,
        "expected": [
            item
            for epoch in range(2)
            for batch in _at(lithi.torch_loader(ds, 3, shuffle=True, seed=1), epoch)
            for item in batch["item_id"]
        ],
    }


def _at(loader: Any, epoch: int) -> Any:
    loader.set_epoch(epoch)
    return loader


def both_ranks(bundle: str, cache: str, out: str) -> dict[str, Any]:
    ds = lithi.load(bundle, cache_dir=cache)
    rank = int(os.environ["RANK"])
    result: dict[str, Any] = {}
    for name, use in (("ours", False), ("default", True)):
        loader = lithi.torch_loader(ds, 3, rank=rank, world_size=2)
        model = module()
        one = trainer(
            Path(out),
            devices=2,
            strategy="ddp",
            max_epochs=1,
            use_distributed_sampler=use,
            max_time="00:00:03:00",
        )
        result[f"{name} refused"] = refused(partial(one.fit, model, loader))
        result[name] = model.ids
    return result


def test_fit_reads_two_shuffled_epochs_exactly(tmp_path: Path) -> None:
    ids = write_rows(tmp_path / "b", SIZES)
    (ran,) = run_ranks(
        one_process,
        tmp_path,
        world_size=1,
        bundle=tmp_path / "b",
        cache=tmp_path / "cache",
        out=tmp_path / "out",
    )
    assert ran["ids"] == ran["expected"]
    assert Counter(ran["ids"]) == Counter(ids * 2)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("lightning")
    write_rows(folder / "b", SIZES)
    lithi.load(folder / "b", cache_dir=folder / "cache")
    return run_ranks(
        both_ranks, folder, bundle=folder / "b", cache=folder / "cache", out=folder / "out"
    )


@pytest.mark.parametrize("sampler", ["ours", "default"])
def test_two_ranks_read_each_row_once_whatever_use_distributed_sampler_says(
    ran: list[dict[str, Any]], tmp_path: Path, sampler: str
) -> None:
    assert [rank[f"{sampler} refused"] for rank in ran] == [[], []]
    assert Counter(ran[0][sampler] + ran[1][sampler]) == Counter(write_rows(tmp_path / "b", SIZES))
