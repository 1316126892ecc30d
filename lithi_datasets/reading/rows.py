"""Rows of a map-style dataset as Arrow tables: contiguous slices, joined once, taken from once."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lithi_datasets.builder import rows_of
from lithi_datasets.provenance import provenance_of
from lithi_datasets.reading.order import RUN_ROWS, runs_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import datasets

__all__ = ["Lot", "RowReader", "Window", "joined", "kept_columns"]

Rows = npt.NDArray[np.int64]

WIDE_ROW_BYTES = 4096
"""From here on it is cheaper to slice row by row than to fetch what lies between."""

_SAMPLE_ROWS = 1024


def kept_columns(ds: datasets.Dataset) -> list[str]:
    """The columns of a dataset's format; the item ids and statuses always ride along."""
    known = provenance_of(ds)
    shown = set(ds.format["columns"]) | {known.item_id_field, "lithi_status"}
    return [name for name in ds.column_names if name in shown]


def joined(pieces: Sequence[pa.RecordBatch | pa.Table]) -> pa.RecordBatch | pa.Table:
    """One record batch, so that every later slice is free; a table where it would be too large."""
    if len(pieces) == 1 and isinstance(pieces[0], pa.RecordBatch):
        return pieces[0]
    tables = [
        pa.Table.from_batches([piece]) if isinstance(piece, pa.RecordBatch) else piece
        for piece in pieces
    ]
    table = (tables[0] if len(tables) == 1 else pa.concat_tables(tables)).combine_chunks()
    if any(column.num_chunks > 1 for column in table.columns):
        return table
    arrays = [
        column.chunk(0) if column.num_chunks else column.combine_chunks()
        for column in table.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=table.schema)


class Lot(NamedTuple):
    """Rows `[first:first + length]` of some that were fetched together.

    Attributes:
        rows: those that were fetched.
        first: the first row that is wanted.
        length: how many are.
        window: which rows of the dataset `rows` are; None where they follow each other there.
    """

    rows: pa.RecordBatch | pa.Table
    first: int
    length: int
    window: Window | None = None

    @property
    def taken(self) -> pa.RecordBatch | pa.Table:
        """The rows that are wanted."""
        return self.rows.slice(self.first, self.length)


class Window(Protocol):
    """Which rows of a dataset some are."""

    @property
    def numbers(self) -> Rows:
        """The position in the dataset of each: `int64[n]`."""
        ...

    @property
    def blocks(self) -> Rows | None:
        """They are all rows of the runs with these numbers, see `order.Piece`; None: of no runs."""
        ...


class RowReader:
    """Reads rows by position.

    It pickles as the dataset does: memory-mapped files by path, never their rows.
    """

    def __init__(self, ds: datasets.Dataset) -> None:
        self._ds = ds
        self._columns = kept_columns(ds)

    def __getstate__(self) -> dict[str, Any]:
        return {"_ds": self._ds, "_columns": self._columns}

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self._ds)

    @cached_property
    def _source(self) -> tuple[list[pa.RecordBatch], Rows, Any]:
        table, indices = rows_of(self._ds)
        batches = table.select(self._columns).to_batches()
        ends = np.cumsum([batch.num_rows for batch in batches], dtype=np.int64)
        return batches, ends - [batch.num_rows for batch in batches], indices

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of the columns that are read."""
        table, _ = rows_of(self._ds)
        return table.select(self._columns).schema

    @cached_property
    def row_bytes(self) -> float:
        """Bytes of a row, from the first thousand."""
        table, _ = rows_of(self._ds)
        sample = table.select(self._columns).slice(0, _SAMPLE_ROWS)
        return float(sample.nbytes / max(1, sample.num_rows))

    @property
    def contiguous(self) -> bool:
        """Whether consecutive positions are consecutive rows of the files."""
        return self._source[2] is None

    def slice(self, start: int, stop: int) -> pa.Table:
        """Rows [start, stop) as a table, copying nothing where they are rows of the files."""
        rows = self.batch(start, stop)
        return pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows

    def batch(self, start: int, stop: int) -> pa.RecordBatch | pa.Table:
        """Rows [start, stop) as they lie: a record batch, or a table where they lie in several."""
        if not self.contiguous:
            return self.take(np.arange(start, stop, dtype=np.int64))
        pieces = [lot.taken for lot in self.lots(start, stop)]
        return pieces[0] if len(pieces) == 1 else pa.Table.from_batches(pieces, schema=self.schema)

    def lots(self, start: int, stop: int) -> list[Lot]:
        """Rows [start, stop) of a `contiguous` dataset, as parts of the batches they lie in."""
        batches, starts, _ = self._source
        found = []
        number = int(np.searchsorted(starts, start, side="right")) - 1
        while start < stop:
            first = start - int(starts[number])
            length = min(stop - start, batches[number].num_rows - first)
            if length:
                found.append(Lot(batches[number], first, length))
            start, number = start + length, number + 1
        return found

    def take(self, positions: Rows) -> pa.RecordBatch | pa.Table:
        """The rows at `positions`, in that order, joined.

        Rows that lie close are fetched in one slice, unless they are wide.
        """
        indices = self._source[2]
        rows = positions
        if indices is not None:
            rows = indices.take(pa.array(positions)).to_numpy().astype(np.int64)
        runs, take = runs_of(rows, gap=RUN_ROWS if self.row_bytes < WIDE_ROW_BYTES else 1)
        return self.fetch(runs, take)

    def fetch(self, runs: Iterable[tuple[int, int]], take: Rows) -> pa.RecordBatch | pa.Table:
        """Slices of rows of the files, joined, then `take` of the joined rows."""
        table = joined([pa.Table.from_batches(self._pieces(runs), schema=self.schema)])
        # In order already: the slices are what is wanted, and the copy would be for nothing.
        if table.num_rows == len(take) and np.array_equal(take, np.arange(len(take))):
            return table
        return joined([table.take(pa.array(take))])

    def _pieces(self, runs: Iterable[tuple[int, int]]) -> list[pa.RecordBatch]:
        batches, starts, _ = self._source
        runs = [run for run in runs if run[1]]
        # One search for all runs: one for each costs more than the slice that it is for.
        numbers = np.searchsorted(starts, [first for first, _ in runs], side="right") - 1
        offsets = [first for first, _ in runs] - starts[numbers]
        found = []
        for (_, left), number, offset in zip(runs, numbers.tolist(), offsets.tolist(), strict=True):
            piece = batches[number].slice(offset, left)
            found.append(piece)
            at = number + 1
            while (left := left - piece.num_rows) > 0:
                piece = batches[at].slice(0, left)
                found.append(piece)
                at += 1
        return found
