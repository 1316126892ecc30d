"""The counts of a ledger: how often each expected id came, and the names of the wrong ones.

Counts are kept by row as long as batches come in the order of the dataset, or are of the rows that
their loader says (`ledger_runs`); and by id from the first batch on that is neither, or where other
ledgers and states have to understand them.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lithi_datasets.errors import DuplicateItemId, UsageError
from lithi_datasets.ledger_index import (
    IdBatch,
    IdIndex,
    Tally,
    build_index,
    first_rows,
    id_hashes,
    id_keys,
)
from lithi_datasets.ledger_lines import Lines
from lithi_datasets.ledger_report import NAMED, Faults
from lithi_datasets.ledger_runs import RowRuns
from lithi_datasets.ledger_source import IdSource, MapRows, PartRows
from lithi_datasets.ledger_state import Holding, check_index
from lithi_datasets.ledger_waiting import Columns

__all__ = ["Account", "first_named"]

Keys = npt.NDArray[np.uint64]


class Account:
    """How often each id of some rows came.

    Args:
        content_sha256: of their bundle.
        source: the rows.

    Attributes:
        foreign: the first ids that are not among them, as they came.
        foreign_total: how often such an id came.
        united: rows of other accounts are counted too.
    """

    def __init__(self, content_sha256: str, source: IdSource) -> None:
        self._content_sha256, self._own = content_sha256, source
        self._sources = [source]
        self._index: IdIndex | None = None
        self._runs: RowRuns | None = None
        if isinstance(source, MapRows) and source.in_order:
            self._runs = RowRuns(source)
        self.united = False
        self.clear()

    def clear(self) -> None:
        """Nothing came, and only the own rows are expected."""
        self.foreign: list[str] = []
        self.foreign_total = 0
        if self.united:
            self._index, self._sources, self.united = None, [self._own], False
        if self._index is not None:
            self._index.clear()
        if self._runs is not None:
            self._runs.clear()
        self._by_row = self._runs

    @property
    def index(self) -> IdIndex:
        """The expected ids and all counts: from here on it is counted by id."""
        if self._index is None:
            if self._runs is not None:
                self._runs.forget_hashes()  # the index takes their memory
            self._index = self._new_index(0)
        if self._by_row is not None:
            seen, start = self._by_row.seen, 0
            for batch in self._own.batches() if seen.any() else ():
                keys = self._keys(batch.ids, self._index)
                self._index.add_counts_of(keys, seen[start : start + len(keys)])
                start += len(keys)
            self._by_row = None
        return self._index

    def _new_index(self, attempt: int) -> IdIndex:
        """An index in which nothing is counted.

        Raises:
            UsageError: an id stands more than once in the dataset.
            DuplicateItemId: one does in the bundle; a stream does not look at all parts together.
        """
        own = self._own
        try:
            return build_index(
                own.batches, self._content_sha256, rows=own.most_rows, attempt=attempt
            )
        except UsageError as error:
            if isinstance(own, PartRows) and error.path is None:
                raise DuplicateItemId(
                    "Item ids stand more than once in the bundle.",
                    expected="each item id once over the whole bundle",
                    found=error.found,
                ) from error
            raise

    def _keys(self, ids: pa.Array, index: IdIndex) -> Keys:
        return id_keys(ids, self._content_sha256, index.attempt)

    @property
    def rows(self) -> int:
        """How many ids are expected."""
        return self.index.rows if self._by_row is None else len(self._by_row.seen)

    @property
    def attempt(self) -> int:
        """The seed of the index; 0 where there is none."""
        return self.index.attempt if self._by_row is None else 0

    @property
    def digest(self) -> str:
        """What the counts are of; accounts that agree in it can add up their counts."""
        if self._by_row is not None and isinstance(self._own, MapRows):
            return f"rows:{self._own.identity}"
        return self.index.digest()

    def tally(self) -> Tally:
        """How many rows there are, and how many came."""
        return self.index.tally() if self._by_row is None else self._by_row.tally()

    def count(self, batches: Columns | Lines) -> None:
        """Count ids as come once more.

        Raises:
            UsageError: an id holds a line feed.
        """
        by_row = self._by_row
        if by_row is not None and (self._at_positions(batches) or by_row.take_all(batches)):
            return
        if by_row is None:
            self._count(batches.keys(self._content_sha256, self.index.attempt), batches.array)
            return
        ids = batches.array()
        left = by_row.take(ids, batches.sizes)
        if left:
            ids = pa.concat_arrays([ids.slice(first, size) for first, size in left])
            self._count(self._keys(ids, self.index), lambda: ids)

    def _at_positions(self, batches: Columns | Lines) -> bool:
        """Whether each id is that of a row where its loader had it from; they are then counted.

        Where there is an index already, it is asked instead: both would be too much to hold.
        """
        by_row = self._by_row
        if by_row is None or self._index is not None or not isinstance(batches, Columns):
            return False
        if not batches.placed:
            return False
        keys_of = functools.partial(id_hashes, content_sha256=self._content_sha256)
        keys = keys_of(batches.array())
        blocks = batches.blocks
        if blocks is not None and by_row.take_blocks(blocks, keys, keys_of):
            return True
        return by_row.take_at(batches.positions, keys, keys_of)

    def _count(self, keys: Keys, ids: Callable[[], pa.Array]) -> None:
        foreign = self.index.add(keys)
        if len(foreign):
            items = ids()
            rows = np.flatnonzero(np.isin(keys, foreign)).tolist()
            self.note_foreign((items[row].as_py() for row in rows), len(rows))

    def note_foreign(self, items: Iterable[str], count: int) -> None:
        """Count ids that are not expected.

        Args:
            items: the first ones, as they came.
            count: how many they are.
        """
        self.foreign_total += count
        for item in items:
            if len(self.foreign) == NAMED:
                break
            if item not in self.foreign:
                self.foreign.append(item)

    def named(self) -> Faults:
        """The first ids that did not come or came again, of the rows that can be read here."""
        index = self.index

        def missing(ids: pa.Array) -> Any:
            return index.times(self._keys(ids, index)) == 0

        def repeated(ids: pa.Array) -> Any:
            times = index.times(self._keys(ids, index))
            return np.where(times > 1, times, 0)

        return Faults(
            missing=tuple(item for item, _ in self._first(missing)),
            repeated=tuple(self._first(repeated)),
            foreign=tuple(self.foreign),
        )

    def _first(self, wanted: Callable[[pa.Array], Any]) -> Sequence[tuple[str, int]]:
        return first_rows(self._batches(), wanted, NAMED)

    def _batches(self) -> Iterator[IdBatch]:
        return (batch for source in self._sources for batch in source.batches())

    def rehash(self, attempt: int) -> None:
        """Bring the index to this seed or a later one, with all that it counted."""
        old = self.index
        if old.attempt >= attempt:
            return
        new = self._new_index(attempt)
        for batch in self._own.batches():
            new.add_counts_of(self._keys(batch.ids, new), old.times(self._keys(batch.ids, old)))
        self._index = new

    def holding(
        self, scope: dict[str, Any], dropped: dict[str, int], *, entries: bool = False
    ) -> Holding:
        """What was counted, for others and for later."""
        seen = self.index.counts() if self._by_row is None else self._by_row.seen
        return Holding(
            scope,
            attempt=self.attempt,
            rows=self.rows,
            digest=self.digest,
            seen=zlib.compress(seen.data, level=1),
            entries=self.index.entries().astype("<u8").tobytes() if entries else None,
            foreign=tuple(self.foreign),
            foreign_total=self.foreign_total,
            dropped=dict(dropped),
        )

    def absorb(self, held: Holding, sources: Sequence[IdSource] = ()) -> None:
        """Add what another account of the same bundle counted; its rows are expected from now on.

        Raises:
            StateError: a row has another status there.
        """
        if held.digest == self.digest:
            if self._by_row is None:
                self.index.add_counts(held.counts)
            else:
                self._by_row.add(held.counts)
        else:
            self._index = self.index.united(held.keys)
            self._index.add_counts_of(held.keys, held.counts)
            self._sources = [*self._sources, *(one for one in sources if one not in self._sources)]
            self.united = True
        self.note_foreign(held.foreign, held.foreign_total)

    def begin_with(self, held: Holding) -> None:
        """Forget what came, and begin with what another account of the same bundle counted."""
        if held.digest != self.digest:
            self._index = IdIndex(held.keys.copy(), held.rows, held.attempt)
            self.united = True
        if self._by_row is None:
            self.index.clear()
        else:
            self._by_row.clear()
        self.foreign, self.foreign_total = [], 0
        self.absorb(held)

    def absorb_account(self, other: Account, scope: dict[str, Any]) -> None:
        """Add what an account in this process counted."""
        entries = other.digest != self.digest
        if entries:
            other.rehash(self.index.attempt)
            self.rehash(other.index.attempt)
            entries = other.digest != self.digest
        self.absorb(other.holding(scope, {}, entries=entries), other._sources)

    def restore(self, held: Holding) -> None:
        """Begin with what an account of the same rows counted by id.

        Raises:
            StateError: it is of other rows.
        """
        index = None if self.united else self._index
        if index is None or index.attempt != held.attempt:
            index = self._new_index(held.attempt)
        check_index(held.digest, index.digest())
        self.clear()
        self._index, self._by_row = index, None
        self.absorb(held)


def first_named(named: Sequence[Faults]) -> Faults:
    """The first ids over all ranks, whose shares follow each other in rank order."""
    missing = dict.fromkeys(item for faults in named for item in faults.missing)
    repeated = dict(pair for faults in named for pair in faults.repeated)
    return Faults(tuple(missing)[:NAMED], tuple(repeated.items())[:NAMED])
