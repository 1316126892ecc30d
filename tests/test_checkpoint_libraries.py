"""The snapshot in the checkpoints of each training library: resume on the same rows only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ranks import refused, run_ranks, write_rows

import lithi_datasets as lithi
from lithi_datasets import checkpoint
from lithi_datasets.checkpoint import check_snapshot

Folders = tuple[Path, Path]


@pytest.fixture
def bundles(tmp_path: Path) -> Folders:
    """A bundle, and a newer one that supersedes it."""
    write_rows(tmp_path / "old", (4, 5))
    older = lithi.open_bundle(tmp_path / "old").snapshot
    write_rows(tmp_path / "new", (4, 5, 1), version_id="res_ranks_2", supersedes=older)
    return tmp_path / "old", tmp_path / "new"


def _load(folder: str) -> Any:
    return lithi.load(folder, cache_dir=Path(folder).parent / "cache")


def with_trainer(old: str, new: str, out: str) -> dict[str, Any]:
    from test_trainer import trainer_on

    def run(
        folder: str, resume: str | None = None, plain: bool = False, **options: Any
    ) -> list[str]:
        ds = _load(folder)
        own = [] if plain else [checkpoint.SnapshotCallback(ds)]
        settings = {"save_strategy": "steps", "save_steps": 2, "callbacks": own, **options}
        trainer = trainer_on(ds, Path(out), **settings)
        return refused(lambda: trainer.train(resume_from_checkpoint=resume))

    first = str(Path(out) / "checkpoint-2")
    result: dict[str, Any] = {"train": run(old)}
    result["files"] = sorted(path.parent.name for path in Path(out).glob("*/lithi-snapshot.json"))
    result["record"] = refused(lambda: check_snapshot(first, _load(old)))
    result["resume"] = run(old, first)
    result["restored"] = run(old, first, restore_callback_states_from_checkpoint=True)
    result["other"] = run(new, first)
    result["other, restored"] = run(new, first, restore_callback_states_from_checkpoint=True)
    record = Path(first) / "lithi-snapshot.json"
    written = record.read_bytes()
    record.write_bytes(written[:-9])
    result["broken"] = run(old, first)
    lithi.record_snapshot(first, _load(new))
    result["swapped"] = run(old, first)
    record.unlink()
    result["no file"] = run(old, first)
    record.write_bytes(written)
    run(old, plain=True)
    result["without"] = run(old, first)
    return result


def test_trainer_writes_on_every_save_and_refuses_to_resume_on_another_bundle(
    bundles: Folders, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    (ran,) = run_ranks(with_trainer, tmp_path, 1, old=bundles[0], new=bundles[1], out=out)
    # The state of the Trainer has the record as well, so a lost file is no loss.
    for name in ("train", "record", "resume", "restored", "no file"):
        assert ran[name] == [], name
    assert ran["files"] == ["checkpoint-2", "checkpoint-4", "checkpoint-5"]
    for name in ("other", "other, restored"):
        assert ran[name][0] == "SnapshotMismatch"
        assert "res_ranks_1, which a newer manifest replaces" in ran[name][1]
    assert ran["swapped"][0] == "SnapshotMismatch"
    assert ran["broken"][0] == ran["without"][0] == "StateError"


def with_lightning(old: str, new: str, out: str) -> dict[str, Any]:
    from test_lightning import module, trainer

    path = str(Path(out) / "one.ckpt")

    def fit(folder: str, resume: str | None = None, **options: Any) -> list[str]:
        ds = _load(folder)
        one = trainer(
            Path(out),
            callbacks=[checkpoint.LightningSnapshotCallback(ds)],
            **{"max_epochs": 1, **options},
        )
        error = refused(lambda: one.fit(module(), lithi.torch_loader(ds, 2), ckpt_path=resume))
        if not error and resume is None:
            one.save_checkpoint(path)
        return error

    result = {"fit": fit(old), "resume": fit(old, path, max_epochs=2), "other": fit(new, path)}
    bare = trainer(Path(out), max_epochs=1)
    bare.fit(module(), lithi.torch_loader(_load(old), 2))
    bare.save_checkpoint(path)
    result["without"] = fit(old, path, max_epochs=2)
    return result


def test_lightning_refuses_to_resume_on_another_bundle(bundles: Folders, tmp_path: Path) -> None:
    (ran,) = run_ranks(with_lightning, tmp_path, 1, old=bundles[0], new=bundles[1], out=tmp_path)
    assert (ran["fit"], ran["resume"]) == ([], [])
    assert ran["other"][0] == "SnapshotMismatch"
    assert "res_ranks_1, which a newer manifest replaces" in ran["other"][1]
    assert ran["without"][0] == "StateError"


def with_accelerate(old: str, new: str, out: str) -> dict[str, Any]:
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    accelerator.prepare(torch.nn.Linear(2, 2))
    remove = checkpoint.register_accelerate_hooks(accelerator, _load(old))
    accelerator.save_state(out)
    result: dict[str, Any] = {"file": (Path(out) / "lithi-snapshot.json").is_file()}
    result["same"] = refused(lambda: accelerator.load_state(out))
    remove()
    checkpoint.register_accelerate_hooks(accelerator, _load(new))
    result["other"] = refused(lambda: accelerator.load_state(out))
    return result


def test_accelerate_writes_with_every_state_and_refuses_one_of_another_bundle(
    bundles: Folders, tmp_path: Path
) -> None:
    out = tmp_path / "state"
    (ran,) = run_ranks(with_accelerate, tmp_path, 1, old=bundles[0], new=bundles[1], out=out)
    assert ran["file"] is True
    assert ran["same"] == []
    assert ran["other"][0] == "SnapshotMismatch"
