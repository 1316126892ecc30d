"""How well an order mixes, as numbers beside those of a full permutation."""

from __future__ import annotations

from typing import TypedDict

import numpy as np
import numpy.typing as npt

from lithi_datasets.errors import UsageError
from lithi_datasets.reading.order import EpochOrder, whole

__all__ = ["Measure", "Mixing", "mixing_quality"]

BLOCK_ROWS = 32


class Measure(TypedDict):
    """One number of an order, and what it is on average over all permutations."""

    found: float
    uniform: float


class Mixing(TypedDict):
    """What `mixing_quality` measures.

    displacement: how far a row moves on average, as a share of N.
    correlation: between position and row, in [-1, 1].
    adjacent: share of neighbours in the order that are neighbours in the dataset, either way round.
    blocks_per_batch: different blocks of 32 consecutive rows that a batch has rows of.
    crowding: rows of its batch that are of a row's own block, itself included, on average. It
        stands for data where the rows of a block are alike and blocks differ: at 2, a batch of 256
        tells as much as 128 rows of different blocks.
    spread: variance of a batch's mean row number over that of a full permutation. It stands for
        data that are sorted: below 1, a batch is closer to the whole dataset than a random one.
    """

    displacement: Measure
    correlation: Measure
    adjacent: Measure
    blocks_per_batch: Measure
    crowding: Measure
    spread: Measure


def mixing_quality(order: EpochOrder | npt.NDArray[np.int64], *, batch_rows: int = 256) -> Mixing:
    """Measure an order against a full permutation.

    All of it is held in memory: meant for up to some millions of rows.

    Args:
        order: the order, or the row numbers `int64[N]`, each of 0 … N - 1 once.
        batch_rows: rows of a batch; a last batch of fewer is left out. Taken as thousands, `spread`
            tells how well many batches in a row stand for the dataset.

    Raises:
        UsageError: fewer than two batches.
    """
    batch_rows = whole("batch_rows", batch_rows, least=1)
    rows = order.indices(0, order.rows) if isinstance(order, EpochOrder) else np.asarray(order)
    count = len(rows)
    if count < 2 * batch_rows:
        raise UsageError(
            "Mixing is measured between batches.",
            expected=f"at least {2 * batch_rows} rows",
            found=f"{count} rows",
        )
    place = np.arange(count)
    batches = rows[: count // batch_rows * batch_rows].reshape(-1, batch_rows)
    blocks = np.sort(batches // BLOCK_ROWS, axis=1)
    first = np.diff(blocks, axis=1, prepend=-1).ravel() != 0
    shared = np.diff(np.flatnonzero(first), append=blocks.size)
    center = (count - 1) / 2
    means = batches.mean(axis=1) - center
    expected_variance = (count + 1) * (count - batch_rows) / (12 * batch_rows)
    return {
        "displacement": _measure(
            np.abs(rows - place).mean() / count, (count**2 - 1) / (3 * count**2)
        ),
        "correlation": _measure(
            12 * ((rows - center) * (place - center)).mean() / (count**2 - 1), 0.0
        ),
        "adjacent": _measure((np.abs(np.diff(rows)) == 1).mean(), 2 / count),
        "blocks_per_batch": _measure(
            len(shared) / len(batches), _expected_blocks(count, batch_rows)
        ),
        "crowding": _measure(
            (shared**2).sum() / blocks.size, 1 + (batch_rows - 1) * (BLOCK_ROWS - 1) / (count - 1)
        ),
        "spread": _measure((means**2).mean() / expected_variance, 1.0),
    }


def _measure(found: float, uniform: float) -> Measure:
    return {"found": float(found), "uniform": float(uniform)}


def _expected_blocks(count: int, batch_rows: int) -> float:
    """Blocks that `batch_rows` rows hit, drawn without replacement: those not missed by all."""
    total = 0.0
    for first, many in ((0, count // BLOCK_ROWS), (count // BLOCK_ROWS * BLOCK_ROWS, 1)):
        size = min(BLOCK_ROWS, count - first)
        left = count - np.arange(size)
        total += many * (1 - float(np.prod((left - batch_rows) / left)))
    return total
