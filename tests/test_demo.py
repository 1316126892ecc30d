"""The demo does the main job, and what it reports holds."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
import torch

import lithi_datasets as lithi
from lithi_datasets import sample
from lithi_datasets.demo import DemoReport, run_demo


@pytest.fixture(scope="module")
def report() -> DemoReport:
    return run_demo(epochs=4)


def test_every_training_row_has_one_reader(report: DemoReport) -> None:
    assert [reader.rows for reader in report.readers] == [719, 718]
    for status, rows in (("accepted", 1327), ("failed", 24), ("abstained", 86)):
        assert sum(reader.statuses[status] for reader in report.readers) == rows
    assert [reader.trained_rows for reader in report.readers] == [
        reader.statuses["accepted"] for reader in report.readers
    ]


def test_the_loss_falls_for_every_reader_and_over_all(report: DemoReport) -> None:
    for losses in (report.losses, *(reader.losses for reader in report.readers)):
        assert len(losses) == 4
        assert losses[-1] < losses[0] / 5
    weighted = [
        sum(reader.losses[epoch] * reader.trained_rows for reader in report.readers) / 1327
        for epoch in range(4)
    ]
    assert report.losses == pytest.approx(weighted)


def test_the_network_reads_digits_far_better_than_chance(report: DemoReport) -> None:
    assert report.test_rows == 360
    assert 0.8 < report.accuracy < 1


def test_the_snapshot_to_pin_is_that_of_the_sample(report: DemoReport) -> None:
    assert report.snapshot == lithi.open_bundle(sample.path()).snapshot.as_dict()


def test_it_gives_the_same_numbers_again_and_leaves_the_process_as_it_was(
    report: DemoReport,
) -> None:
    torch.manual_seed(1)
    random.seed(1)
    before = torch.get_rng_state(), random.getstate(), torch.get_num_threads()
    again = run_demo(epochs=4)
    assert again == report
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), torch.get_num_threads()) == before[1:]


def test_one_reader_or_more_readers_than_processes_work() -> None:
    for readers in (1, 5):
        report = run_demo(epochs=1, readers=readers)
        assert sum(reader.rows for reader in report.readers) == 1437
        assert math.isfinite(report.losses[0])


def test_it_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run_demo(epochs=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("epochs", "readers"), [(0, 2), (1, 0), (1, 17)])
def test_a_demo_of_nothing_is_refused(epochs: int, readers: int) -> None:
    with pytest.raises(lithi.UsageError, match="readers <= 16"):
        run_demo(epochs=epochs, readers=readers)


def test_the_loop_is_closed_and_its_digests_are_a_chain(report: DemoReport) -> None:
    loop = report.loop
    assert loop.reconciled["rows"] == 1437
    assert (loop.reconciled["accepted"], loop.reconciled["failed"]) == (1327, 24)
    assert loop.checkpoint == report.snapshot
    assert loop.derived_from == report.snapshot
    assert loop.staged["content_sha256"] != report.snapshot["content_sha256"]
    assert loop.staged_rows == report.test_rows
