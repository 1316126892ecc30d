"""Batches that wait to be counted together: the more, the less it costs.

A batch of a loader of this package waits as the Arrow column that its ids were made of, once its
list is found to be as it was made (`reading.origins`). The ids of any other are copied into a text
(`ledger_lines`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lithi_datasets.ledger_ids import ids_of
from lithi_datasets.ledger_index import id_keys
from lithi_datasets.ledger_lines import Lines
from lithi_datasets.ledger_runs import same_ids
from lithi_datasets.ledger_watch import refuse_worker
from lithi_datasets.reading.origins import take_origin
from lithi_datasets.reading.rows import Lot, Window

__all__ = ["COLUMN_BYTES", "FLUSH_BYTES", "FLUSH_ROWS", "Columns", "Run", "Waiting"]

FLUSH_BYTES = 2**21
"""So much text of ids is counted together."""

FLUSH_ROWS = 2**17
"""So many ids are, where they wait as columns."""

COLUMN_BYTES = 2**23
"""So many bytes of shuffled columns are: those of no file, which wait in memory."""

LONG_RUN = 1024
"""From here on batches that follow each other in a column are looked at by themselves."""

_LOOK_AROUND = 16

Positions = npt.NDArray[np.int64]


@dataclass
class Run:
    """Batches that follow each other in one column.

    Attributes:
        column: `string` or `large_string` without nulls.
        first: the first row.
        stop: the row behind the last.
        window: which rows of the dataset the column is; None for rows in order.
    """

    column: pa.Array
    first: int
    stop: int
    window: Window | None

    def __len__(self) -> int:
        return self.stop - self.first


class Columns:
    """Ids, in the order in which they came; the same as `Lines`.

    Args:
        runs: at least one.

    Attributes:
        sizes: how many ids each run has.
        count: how many there are.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs
        self.sizes = [len(run) for run in runs]
        self.count = sum(self.sizes)

    @cached_property
    def _ids(self) -> pa.Array:
        columns = [
            run.column.slice(run.first, size)
            for run, size in zip(self._runs, self.sizes, strict=True)
        ]
        if len(columns) == 1:
            return columns[0]
        if len({column.type for column in columns}) > 1:
            columns = [column.cast(pa.large_string()) for column in columns]
        return pa.concat_arrays(columns)

    def array(self) -> pa.Array:
        """The ids: `string[count]` or `large_string[count]`."""
        return self._ids

    def same(self, expected: Iterable[pa.Array]) -> bool:
        """Whether these are the ids that are expected."""
        return same_ids(self._ids, expected) == self.count

    def keys(self, content_sha256: str, attempt: int) -> npt.NDArray[np.uint64]:
        """The ids as numbers, see `id_keys`."""
        return id_keys(self._ids, content_sha256, attempt)

    @property
    def placed(self) -> bool:
        """Whether their loader said which rows of the dataset they are."""
        return all(run.window is not None for run in self._runs)

    @property
    def blocks(self) -> Positions | None:
        """Where they are all rows of some runs of the dataset, the numbers of these runs."""
        run = self._runs[0]
        whole = len(self._runs) == 1 and len(run) == len(run.column)
        return run.window.blocks if whole and run.window is not None else None

    @property
    def positions(self) -> Positions:
        """Where in the dataset the loader of `placed` ids had them from: `int64[count]`."""
        windows = [(run.window, run) for run in self._runs]
        found = [window.numbers[run.first : run.stop] for window, run in windows if window]
        return found[0] if len(found) == 1 else np.concatenate(found)


class Waiting:
    """The ids of batches, until they are taken.

    Args:
        field: the id column.

    Attributes:
        lone: ids that have no UTF-8; they don't wait, and are to be taken away.
    """

    def __init__(self, field: str) -> None:
        self._field = field
        self.clear()

    def clear(self) -> None:
        """Forget all."""
        self.lone: Sequence[str] = ()
        self._full, self._rows = False, 0
        self._run: Run | None = None
        self._runs: list[Run] = []
        self._texts: list[bytes] = []
        self._sizes: list[int] = []
        self._bytes = 0

    def add(self, batch: Any) -> bool:
        """Let the ids of a batch wait, as they are now.

        Returns:
            Whether it is time to count what waits, or there is something in `lone`.

        Raises:
            UsageError: the batch has no ids, they are no strings, or this is a worker.
        """
        origin = None
        try:
            ids = batch[self._field]
            if type(ids) is not list:
                raise TypeError
            # Behind a text no column waits: batches are counted in the order in which they came.
            origin = None if self._texts else take_origin(ids)
            if origin is None:
                text, count = "\n".join(ids).encode(), len(ids)
        except (LookupError, TypeError, ValueError):
            text, count, self.lone = ids_of(batch, self._field)
        if origin is None:
            return self._add_text(text, count) or bool(self.lone)
        for column, lot in origin[2]:  # for nearly every batch it is one, which goes on in a run
            run = self._run
            if run is not None and run.column is column and run.stop == lot.first:
                run.stop += lot.length
            else:
                self._begin(column, lot)
        return self._full

    def _begin(self, column: pa.Array, lot: Lot) -> None:
        if self._run is None:
            refuse_worker()
        else:
            self._rows += len(self._run)
            self._full = self._rows >= FLUSH_ROWS or self._bytes >= COLUMN_BYTES
        if lot.window is not None:
            self._bytes += column.nbytes  # others lie in the dataset's files
        self._run = Run(column, lot.first, lot.first + lot.length, lot.window)
        self._runs.append(self._run)

    def _add_text(self, text: bytes, count: int) -> bool:
        if not len(self._texts) % _LOOK_AROUND:
            refuse_worker()
        if count:
            self._texts.append(text)
            self._sizes.append(count)
            self._bytes += len(text)
        return self._bytes >= FLUSH_BYTES

    def taken(self, *, last: bool = True) -> Iterator[Columns | Lines]:
        """What waited, in order; it does not wait any more.

        Args:
            last: also the last column, of which more may come.
        """
        runs, texts, sizes, run = self._runs, self._texts, self._sizes, self._run
        self.clear()
        if run is not None and not last and not texts:
            self._runs, self._run = [runs.pop()], run
        short: list[Run] = []
        for run in itertools.chain.from_iterable(map(_pieces, runs)):
            if len(run) < LONG_RUN:
                short.append(run)
                continue
            if short:
                yield Columns(short)
            yield Columns([run])  # as it lies, nothing has to be joined
            short = []
        if short:
            yield Columns(short)
        if texts:
            yield Lines(texts, sizes)


def _pieces(run: Run) -> Iterator[Run]:
    """A run in pieces that are not too long to be worked on."""
    if run.window is not None:
        yield run
        return
    for first in range(run.first, run.stop, FLUSH_ROWS):
        yield Run(run.column, first, min(first + FLUSH_ROWS, run.stop), None)
