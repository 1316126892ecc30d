"""Where a ledger's expected ids come from: the dataset itself, or the parts of its bundle.

No whole row is read: of a map-style dataset two columns, of a stream the parts, one after the
other, through the verified reader.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import datasets
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lithi_datasets.builder import rows_of, stream_view
from lithi_datasets.errors import UsageError
from lithi_datasets.ledger_index import IdBatch
from lithi_datasets.manifest import STATUSES
from lithi_datasets.reading.rows import RowReader
from lithi_datasets.selection import STATUS_FIELD, keep_statuses

if TYPE_CHECKING:
    from lithi_datasets.bundle import Bundle
    from lithi_datasets.provenance import Provenance

__all__ = ["IdSource", "MapRows", "PartRows", "StreamRows", "rows_loaded", "source_of"]

_ROWS = 2**16
_STREAM_ROWS = 1024

_AS_LOADED = (
    "Give Ledger the dataset as it was loaded; the loader that it watches may read a mapped one."
)


class IdSource(Protocol):
    """The ids and statuses of some rows, as often as they are asked for."""

    @property
    def most_rows(self) -> int:
        """How many rows there are at most; 0 where only reading tells."""
        ...

    def batches(self) -> Iterator[IdBatch]:
        """The rows, in row order."""
        ...


def source_of(ds: Any, known: Provenance, *, subset: bool) -> IdSource:
    """The rows that a ledger of `ds` expects.

    Args:
        ds: a `Dataset` or `IterableDataset` of a bundle.
        known: what it knows about that.
        subset: of a stream, the rows that are left after its filters, not those of its parts.

    Raises:
        UsageError: `ds` has lost the columns, or can't be looked through.
    """
    if isinstance(ds, datasets.Dataset):
        return MapRows(ds, known)
    if not isinstance(ds, datasets.IterableDataset):
        raise UsageError(
            "A ledger is of one dataset.",
            expected="a Dataset or IterableDataset of a bundle",
            found=type(ds).__name__,
            remedy="Choose a split of it.",
        )
    try:
        view = stream_view(ds)
    except UsageError as error:
        raise UsageError(
            "A ledger can't tell which parts this stream reads.",
            expected=error.expected,
            found=error.found,
            remedy=_AS_LOADED,
        ) from error
    if subset and not view.plain:
        return StreamRows(ds, known)
    statuses = view.builder.selection.statuses
    return PartRows(view.builder.bundle, view.parts, statuses=statuses)


def rows_loaded(ds: Any, split: str | None) -> int | None:
    """Rows of a split, or of several joined by `+`, when the bundle was converted.

    What was done to a map-style dataset since then changes nothing about it; None where the dataset
    does not know, as a stream.
    """
    infos = (isinstance(ds, datasets.Dataset) and ds.info.splits) or {}
    names = (split or "").split("+")
    return sum(infos[name].num_examples for name in names) if set(names) <= set(infos) else None


@dataclass(frozen=True)
class MapRows:
    """A map-style dataset."""

    ds: datasets.Dataset
    known: Provenance

    def __post_init__(self) -> None:
        _check_columns(self.ds.column_names, self.known)

    @property
    def most_rows(self) -> int:
        """The dataset's rows."""
        return len(self.ds)

    @property
    def in_order(self) -> bool:
        """Whether consecutive rows lie one after the other, so that `ids` costs little."""
        return rows_of(self.ds)[1] is None

    @property
    def identity(self) -> str:
        """Equal for datasets of the same rows in the same order."""
        return f"{self.ds._fingerprint}:{len(self.ds)}"

    def ids(self, pieces: Sequence[tuple[int, int]]) -> Iterator[pa.Array]:
        """The ids of rows of a dataset that is `in_order`, as they lie in its files.

        Args:
            pieces: (first row, number of rows).
        """
        chunks, starts = self._chunks
        for start, count in pieces:
            row, stop = start, start + count
            at = bisect.bisect_right(starts, row) - 1
            while row < stop:
                chunk = chunks[at].slice(row - starts[at], stop - row)
                yield chunk
                row, at = row + len(chunk), at + 1

    @cached_property
    def _chunks(self) -> tuple[list[pa.Array], list[int]]:
        """The ids as they lie in the files, in chunks with rows, and the first row of each."""
        column = rows_of(self.ds)[0].column(self.known.item_id_field)
        chunks = [chunk for chunk in column.chunks if len(chunk)]
        for chunk in chunks:
            _check_ids(chunk, self.known.item_id_field)
        starts = itertools.accumulate(map(len, chunks), initial=0)
        return chunks, list(starts)[:-1]

    def find(self, item: str, start: int) -> int:
        """The first row from `start` on with an id; -1 where there is none."""
        ids = rows_of(self.ds)[0].column(self.known.item_id_field)
        row: int = pc.index(ids.slice(start), pa.scalar(item, ids.type)).as_py()
        return row if row < 0 else start + row

    def codes(self) -> Iterator[npt.NDArray[np.uint8]]:
        """The statuses of a dataset that is `in_order`, as `IdBatch` has them, some at a time."""
        table = rows_of(self.ds)[0]
        if STATUS_FIELD not in table.column_names:
            yield np.zeros(len(self.ds), dtype=np.uint8)
            return
        for chunk in table.column(STATUS_FIELD).chunks:
            for start in range(0, len(chunk), _ROWS):
                yield _status_codes(chunk.slice(start, _ROWS))

    def batches(self) -> Iterator[IdBatch]:
        """The rows, 65,536 at a time."""
        wanted = _wanted(self.ds.column_names, self.known)
        starts = range(0, len(self.ds), _ROWS)
        if self.in_order:
            table = rows_of(self.ds)[0].select(wanted)
            yield from (id_batch(table.slice(start, _ROWS), self.known) for start in starts)
            return
        reader = RowReader(self.ds.with_format(None).select_columns(wanted))
        for start in starts:
            yield id_batch(reader.slice(start, min(start + _ROWS, reader.rows)), self.known)


@dataclass(frozen=True)
class PartRows:
    """Parts of a bundle, each read and checked whole.

    Attributes:
        bundle: the opened bundle.
        parts: indexes of the parts, in row order.
        statuses: the statuses that are kept; None for all.
        window: (start, stop) of the kept rows that count; None for all.
    """

    bundle: Bundle
    parts: tuple[int, ...]
    _: KW_ONLY
    statuses: tuple[str, ...] | None = None
    window: tuple[int, int] | None = None

    @property
    def most_rows(self) -> int:
        """The rows of the parts, before any status is left out."""
        return sum(self.bundle.parts[index].rows for index in self.parts)

    def batches(self) -> Iterator[IdBatch]:
        """The rows, a few thousand at a time."""
        start, stop = self.window or (0, self.most_rows)
        first = 0
        for index in self.parts:
            for batch in self.bundle.read_part(index):
                kept = keep_statuses(batch, self.statuses)
                low, high = max(start - first, 0), min(stop - first, kept.num_rows)
                if low < high:
                    yield _of_batch(kept.slice(low, high - low), self.bundle.item_id_field)
                first += kept.num_rows


@dataclass(frozen=True)
class StreamRows:
    """What a stream yields after all that was done to it."""

    ds: datasets.IterableDataset
    known: Provenance

    @property
    def most_rows(self) -> int:
        """Only reading tells."""
        return 0

    def batches(self) -> Iterator[IdBatch]:
        """The rows, a thousand at a time."""
        # As Python values: as Arrow, `datasets` would infer the type of each column batch by batch.
        for rows in self.ds.with_format(None).iter(batch_size=_STREAM_ROWS):
            _check_columns(list(rows), self.known)
            columns = {name: _column(name, rows[name]) for name in _wanted(list(rows), self.known)}
            yield _of_batch(pa.RecordBatch.from_pydict(columns), self.known.item_id_field)


def _column(name: str, values: list[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise UsageError(
            f"A column of the dataset is not what the bundle holds: {error}",
            path=name,
            expected="strings",
            remedy=_AS_LOADED,
        ) from error


def id_batch(table: pa.Table, known: Provenance) -> IdBatch:
    """The ids and statuses of some rows.

    Raises:
        UsageError: an id is null or no string, or a status is none.
    """
    for batch in table.select(_wanted(table.column_names, known)).combine_chunks().to_batches():
        return _of_batch(batch, known.item_id_field)
    return IdBatch(pa.array([], pa.string()))


def _of_batch(batch: pa.RecordBatch, item_id_field: str) -> IdBatch:
    ids = batch.column(item_id_field)
    _check_ids(ids, item_id_field)
    if STATUS_FIELD not in batch.schema.names:
        return IdBatch(ids)
    return IdBatch(ids, _status_codes(batch.column(STATUS_FIELD)))


def _status_codes(column: pa.Array) -> npt.NDArray[np.uint8]:
    if not _is_text(column):
        _refuse_values(STATUS_FIELD, ", ".join(STATUSES), column)
    codes = pc.index_in(column, value_set=pa.array(STATUSES, column.type))
    if codes.null_count:
        _refuse_values(STATUS_FIELD, ", ".join(STATUSES), column.filter(codes.is_null()))
    found: npt.NDArray[np.uint8] = codes.to_numpy().astype(np.uint8)
    return found


def _check_ids(ids: pa.Array, name: str) -> None:
    if not _is_text(ids) or ids.null_count:
        _refuse_values(name, "strings, none of them null", ids)


def _is_text(column: pa.Array) -> bool:
    return bool(pa.types.is_string(column.type) or pa.types.is_large_string(column.type))


def _refuse_values(name: str, expected: str, found: pa.Array) -> NoReturn:
    raise UsageError(
        "A column of the dataset is not what the bundle holds.",
        path=name,
        expected=expected,
        found=f"{found.type} with {found.null_count} nulls, such as {found[0].as_py()!r}",
        remedy=_AS_LOADED,
    )


def _wanted(names: Sequence[str], known: Provenance) -> list[str]:
    return [name for name in names if name in (known.item_id_field, STATUS_FIELD)]


def _check_columns(names: Sequence[str], known: Provenance) -> None:
    # Without any failed or abstained row, every row is an accepted one, whatever the columns.
    needed = [known.item_id_field]
    if known.counts["failed"] or known.counts["abstained"]:
        needed.append(STATUS_FIELD)
    lost = [name for name in needed if name not in names]
    if lost:
        raise UsageError(
            "The dataset has lost columns that tell its rows apart.",
            expected=", ".join(needed),
            found=", ".join(names),
            remedy=_AS_LOADED,
        )
