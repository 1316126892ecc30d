"""The main job on the sample: verify, convert, train over two disjoint readers, close the loop.

A small network learns the run's accepted predictions from the pixels, and is measured against the
digits that a person read. Each reader stands for one training process: at every step each gives one
batch of its own.
"""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lithi_datasets import sample
from lithi_datasets.bundle import open_bundle
from lithi_datasets.demo_loop import LoopReport, close_loop
from lithi_datasets.errors import UsageError
from lithi_datasets.loading import load
from lithi_datasets.manifest import STATUSES
from lithi_datasets.reading.split import split_by_node

if TYPE_CHECKING:
    import datasets
    import torch

__all__ = ["EPOCHS", "MAX_READERS", "DemoReport", "ReaderReport", "run_demo"]

EPOCHS = 8
MAX_READERS = 16
BATCH_ROWS = 32
CLASSES = 10
FULL_INK = 16
"""Pixels count ink from 0 to 16."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class ReaderReport:
    """What one reader read.

    Attributes:
        rank: its number, from 0.
        rows: rows that it owns.
        statuses: those rows by status.
        trained_rows: rows that it trains on, the accepted ones.
        losses: mean loss over its rows, one for each epoch.
    """

    rank: int
    rows: int
    statuses: dict[str, int]
    trained_rows: int
    losses: list[float]


@dataclass(frozen=True)
class DemoReport:
    """What the demo did.

    Attributes:
        snapshot: the `{"version_id", "content_sha256"}` to pin.
        files: bound files that were verified.
        rows: rows that were verified, over all splits.
        bytes: bytes that were verified.
        readers: one for each reader of the split `train`.
        losses: mean loss over all readers, one for each epoch.
        test_rows: rows of the split `test`.
        accuracy: share of them that the network reads as the person did, in [0, 1].
        loop: checkpoint, ledger and the bundle of predictions.
    """

    snapshot: dict[str, str]
    files: int
    rows: int
    bytes: int
    readers: list[ReaderReport]
    losses: list[float]
    test_rows: int
    accuracy: float
    loop: LoopReport

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON types."""
        return asdict(self)


@dataclass
class _Reader:
    rank: int
    rows: datasets.Dataset
    statuses: dict[str, int]
    accepted: datasets.Dataset
    losses: list[float]

    def batches(self, epoch: int) -> Iterator[dict[str, Any]]:
        mixed = self.accepted.shuffle(seed=epoch, keep_in_memory=True)
        batches: Iterator[dict[str, Any]] = mixed.iter(batch_size=BATCH_ROWS)
        return batches

    def report(self) -> ReaderReport:
        return ReaderReport(
            self.rank, len(self.rows), self.statuses, len(self.accepted), self.losses
        )


def run_demo(
    *,
    epochs: int = EPOCHS,
    readers: int = 2,
    say: Say | None = None,
    progress: bool = False,
) -> DemoReport:
    """Do the main job on the sample. The same versions give the same numbers on the same machine.

    Args:
        epochs: how often the rows are read, at least 1.
        readers: how many disjoint readers share the rows, 1 to 16.
        say: called with a line at each stage.
        progress: show a progress bar on the error stream.

    Raises:
        UsageError: epochs or readers out of range.
        LithiError: the sample is damaged.
    """
    if epochs < 1 or not 1 <= readers <= MAX_READERS:
        raise UsageError(
            "The demo can't be run like this.",
            expected=f"epochs >= 1, 1 <= readers <= {MAX_READERS}",
            found=f"epochs={epochs}, readers={readers}",
        )
    say = say or _silent
    bundle = open_bundle(sample.path())
    say("verifying every file of the sample")
    verified = bundle.verify(progress=progress)
    with tempfile.TemporaryDirectory(prefix="lithi-demo-") as cache:
        say("converting it, pinned to its snapshot")
        train = _load("train", bundle.snapshot.as_dict(), cache)
        test = _load("test", bundle.snapshot.as_dict(), cache)
        parts = _disjoint(train, readers)
        say(f"training for {epochs} epochs over {readers} disjoint readers")
        model = _network()
        with _one_thread():
            losses = _train(model, parts, epochs)
            accuracy = _accuracy(model, test)
            say("closing the loop: checkpoint, ledger, predictions as a new bundle")
            loop = close_loop(model, train, test, Path(cache), _ink)
        return DemoReport(
            snapshot=bundle.snapshot.as_dict(),
            files=verified.files,
            rows=verified.rows,
            bytes=verified.bytes,
            readers=[part.report() for part in parts],
            losses=losses,
            test_rows=len(test),
            accuracy=accuracy,
            loop=loop,
        )


def _silent(line: str) -> None:
    """Say nothing."""


@contextmanager
def _one_thread() -> Iterator[None]:
    import torch

    # Too little work to share out: threads that wait for each other take several times as long.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _load(split: str, snapshot: dict[str, str], cache: str) -> datasets.Dataset:
    columns = ["pixels", "label", "prediction"]
    rows: datasets.Dataset = load(
        sample.path(), split, snapshot=snapshot, columns=columns, cache_dir=cache
    )
    return rows


def _disjoint(train: datasets.Dataset, count: int) -> list[_Reader]:
    readers = []
    for rank in range(count):
        rows = split_by_node(train, rank, count)
        statuses = rows.with_format(None)["lithi_status"]
        found = Counter(statuses)
        accepted = [index for index, status in enumerate(statuses) if status == "accepted"]
        readers.append(
            _Reader(
                rank=rank,
                rows=rows,
                statuses={status: found[status] for status in STATUSES},
                accepted=rows.select(accepted, keep_in_memory=True),
                losses=[],
            )
        )
    _check_every_row_once(train, readers)
    return readers


def _check_every_row_once(train: datasets.Dataset, readers: Sequence[_Reader]) -> None:
    ids = [item for reader in readers for item in reader.rows.with_format(None)["item_id"]]
    assert sorted(ids) == sorted(train.with_format(None)["item_id"]), (
        "a row was read twice or never"
    )


def _network() -> torch.nn.Module:
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return torch.nn.Sequential(
            torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, CLASSES)
        )


def _ink(batch: dict[str, Any]) -> torch.Tensor:
    pixels: torch.Tensor = batch["pixels"]
    return pixels.float() / FULL_INK


def _train(model: torch.nn.Module, readers: Sequence[_Reader], epochs: int) -> list[float]:
    import torch

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    rows = sum(len(reader.accepted) for reader in readers)
    for epoch in range(epochs):
        sums = _epoch(model, optimizer, [reader.batches(epoch) for reader in readers])
        for reader, total in zip(readers, sums, strict=True):
            reader.losses.append(total / len(reader.accepted) if len(reader.accepted) else math.nan)
        losses.append(math.fsum(sums) / rows)
    return losses


def _epoch(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    streams: Sequence[Iterator[dict[str, Any]]],
) -> list[float]:
    """One step for each batch of the longest reader; returns each reader's summed loss."""
    import torch

    sums = [0.0] * len(streams)
    while True:
        batches = [next(stream, None) for stream in streams]
        if all(batch is None for batch in batches):
            return sums
        optimizer.zero_grad()
        step_rows = sum(len(batch["prediction"]) for batch in batches if batch is not None)
        for rank, batch in enumerate(batches):
            if batch is None:
                continue
            target = batch["prediction"].long()
            loss = torch.nn.functional.cross_entropy(model(_ink(batch)), target, reduction="sum")
            # Gradients add up over the readers, as an all-reduce over processes would add them.
            (loss / step_rows).backward()  # type: ignore[no-untyped-call]
            sums[rank] += float(loss.detach())
        optimizer.step()


def _accuracy(model: torch.nn.Module, test: datasets.Dataset) -> float:
    import torch

    right = 0
    with torch.no_grad():
        for batch in test.select_columns(["pixels", "label"]).iter(batch_size=256):
            right += int((model(_ink(batch)).argmax(dim=1) == batch["label"]).sum())
    return right / len(test)
