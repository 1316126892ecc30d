"""`transformers.Trainer` on the dataset of `load`, map-style, in one and in two real processes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import refused, run_ranks, write_rows

import lithi_datasets as lithi
from lithi_datasets.reading.split import split_by_node

ROWS = 13


class Tiny(torch.nn.Module):
    """Takes the columns of the bundle by their names, as Trainer passes them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 3)
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen += [round(value * 100) for value in x[:, 0].tolist()]
        logits = self.layer(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": x[:, :1]}


def trainer_on(ds: Any, folder: Path, **options: Any) -> Any:
    from transformers import Trainer, TrainingArguments

    callbacks = options.pop("callbacks", None)
    settings = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 2,
        "num_train_epochs": 1,
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_strategy": "no",
        **options,
    }
    return Trainer(
        model=Tiny(),
        args=TrainingArguments(**settings),
        train_dataset=ds,
        eval_dataset=ds,
        callbacks=callbacks,
    )


def both_ranks(bundle: str, cache: str, out: str) -> dict[str, Any]:
    ds = lithi.load(bundle, cache_dir=cache)
    trainer = trainer_on(ds, Path(out))
    result: dict[str, Any] = {"world_size": trainer.args.world_size}
    trainer.train()
    result["trained"] = trainer.model.seen
    trainer.model.seen = []
    predicted = trainer.predict(ds)
    result["predicted"] = [round(float(row) * 100) for row in predicted.predictions[:, 0]]
    result["labels"] = predicted.label_ids.tolist()
    result["forward"] = trainer.model.seen
    share = split_by_node(ds, trainer.args.process_index, 2)
    result["share"] = refused(trainer_on(share, Path(out)).train)
    return result


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("trainer")
    write_rows(folder / "b", (ROWS,))
    lithi.load(folder / "b", cache_dir=folder / "cache")
    ranks = run_ranks(
        both_ranks, folder, bundle=folder / "b", cache=folder / "cache", out=folder / "out"
    )
    assert [rank["world_size"] for rank in ranks] == [2, 2]
    return ranks


def test_prediction_gives_each_row_once_and_in_order_on_both_ranks(
    ran: list[dict[str, Any]],
) -> None:
    for rank in ran:
        assert rank["predicted"] == list(range(ROWS))
        assert rank["labels"] == [row % 3 for row in range(ROWS)]


@pytest.mark.parametrize("what", ["trained", "forward"])
def test_the_padding_of_trainer_is_seen_in_what_the_model_gets(
    ran: list[dict[str, Any]], what: str
) -> None:
    """13 rows on 2 ranks in batches of 2 become 16: Trainer repeats rows of the beginning."""
    read = Counter(ran[0][what] + ran[1][what])
    assert set(read) == set(range(ROWS))
    assert sum(read.values()) == 16
    assert not set(ran[0][what][:6]) & set(ran[1][what][:6])


def test_a_share_is_refused_as_its_training_begins(ran: list[dict[str, Any]]) -> None:
    for rank in ran:
        assert rank["share"][0] == "UsageError"
        assert "split a dataset again" in rank["share"][1]


def one_process(bundle: str, cache: str, out: str) -> dict[str, Any]:
    """Train whole; train to the middle, and resume from there."""
    ds = lithi.load(bundle, cache_dir=cache)
    whole = trainer_on(ds, Path(out) / "whole", seed=3)
    whole.train()
    half = trainer_on(
        ds, Path(out) / "half", seed=3, save_strategy="steps", save_steps=4, save_total_limit=3
    )
    half.train()
    resumed = trainer_on(ds, Path(out) / "half", seed=3)
    resumed.train(resume_from_checkpoint=str(Path(out) / "half" / "checkpoint-4"))
    return {
        "whole": whole.model.seen,
        "resumed": resumed.model.seen,
        "weights": bool(torch.equal(whole.model.layer.weight, resumed.model.layer.weight)),
    }


def test_a_resumed_training_reads_the_rows_that_were_left(tmp_path: Path) -> None:
    write_rows(tmp_path / "b", (ROWS,))
    (ran,) = run_ranks(
        one_process,
        tmp_path,
        world_size=1,
        bundle=tmp_path / "b",
        cache=tmp_path / "cache",
        out=tmp_path / "out",
    )
    assert sorted(ran["whole"]) == list(range(ROWS))
    assert ran["resumed"] == ran["whole"][8:]
    assert ran["weights"]
