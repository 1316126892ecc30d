"""Rows of a map-style dataset as Arrow tables: contiguous slices, joined once, taken from once."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lithi_datasets.builder import rows_of
from lithi_datasets.provenance import provenance_of
from lithi_datasets.reading.order import RUN_ROWS, runs_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import datasets

__all__ = ["RowReader", "joined", "kept_columns"]

Rows = npt.NDArray[np.int64]

WIDE_ROW_BYTES = 4096
"""From here on it is cheaper to slice row by row than to fetch what lies between."""

_SAMPLE_ROWS = 1024


def kept_columns(ds: datasets.Dataset) -> list[str]:
    """The columns of a dataset's format; the item ids and statuses always ride along."""
    known = provenance_of(ds)
    shown = set(ds.format["columns"]) | {known.item_id_field, "lithi_status"}
    return [name for name in ds.column_names if name in shown]


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """One table of one chunk for each column, so that every later slice is free."""
    return (tables[0] if len(tables) == 1 else pa.concat_tables(tables)).combine_chunks()


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
        return batches, ends, indices

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
        """Rows [start, stop), copying nothing where they lie in one record batch."""
        if not self.contiguous:
            return self.take(np.arange(start, stop, dtype=np.int64))
        return pa.Table.from_batches(self._pieces(((start, stop - start),)), schema=self.schema)

    def take(self, positions: Rows) -> pa.Table:
        """The rows at `positions`, in that order, as one chunk for each column.

        Rows that lie close are fetched in one slice, unless they are wide.
        """
        indices = self._source[2]
        rows = positions
        if indices is not None:
            rows = indices.take(pa.array(positions)).to_numpy().astype(np.int64)
        runs, take = runs_of(rows, gap=RUN_ROWS if self.row_bytes < WIDE_ROW_BYTES else 1)
        return self.fetch(runs, take)

    def fetch(self, runs: Iterable[tuple[int, int]], take: Rows) -> pa.Table:
        """Slices of rows of the files, joined, then `take` of the joined rows."""
        table = joined([pa.Table.from_batches(self._pieces(runs), schema=self.schema)])
        # In order already: the slices are what is wanted, and the copy would be for nothing.
        if table.num_rows == len(take) and np.array_equal(take, np.arange(len(take))):
            return table
        return joined([table.take(pa.array(take))])

    def _pieces(self, runs: Iterable[tuple[int, int]]) -> list[pa.RecordBatch]:
        batches, ends, _ = self._source
        found = []
        for first, count in runs:
            number = int(np.searchsorted(ends, first, side="right"))
            row = first
            while row < first + count:
                batch = batches[number]
                offset = row - (int(ends[number]) - batch.num_rows)
                piece = batch.slice(offset, first + count - row)
                found.append(piece)
                row, number = row + piece.num_rows, number + 1
        return found
