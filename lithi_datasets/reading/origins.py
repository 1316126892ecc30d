"""What the ids of the last batches were made of, for whoever counts them.

To look through a list of 256 strings costs more than a loader needs for most of a batch. The Arrow
column that the list was made of can be compared or hashed as it lies, many batches at once. So a
loader of this package remembers, of its last two batches, the column beside a copy of the list. Who
meets one of these lists compares it with the copy, which takes a nanosecond an id while the strings
are the same objects, and has the column. A list that was changed, or that came from elsewhere, has
none.

A batch itself stays a plain dict: what walks through batches (torch's pytree, accelerate) knows
what to do with it. Nothing is remembered where nobody wants it, or after the loader's end.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.types as patypes

if TYPE_CHECKING:
    from lithi_datasets.reading.rows import Lot

__all__ = ["Origin", "Origins", "forget_origins", "take_origin", "want_origins"]


Origin: TypeAlias = "tuple[list[str], list[str], tuple[tuple[pa.Array, Lot], ...]]"
"""Where the ids of one batch came from: the list in the batch; a copy of it as it was made; and the
columns that it was made of, `string` or `large_string` without nulls, each with the rows of it."""

# Of the last batch and of the one before, which is what a loop counts where its loader reads one
# batch ahead (accelerate). They are set and read one at a time, so loaders and ledgers in several
# threads need no lock: the worst is an origin that isn't found.
_recent: list[Origin | None] = [None, None]
_wanted = [0]


def want_origins(owner: object) -> None:
    """The loaders of this process remember as long as `owner` lives."""
    _wanted[0] += 1
    weakref.finalize(owner, _want_less).atexit = False


def _want_less() -> None:
    _wanted[0] -= 1


def forget_origins() -> None:
    """Let go of what the last batches were made of."""
    _recent[:] = [None, None]


def take_origin(ids: object) -> Origin | None:
    """The origin of a list of ids, if it is of one of the last batches and as it was made.

    It is known once: as long as the copy is kept, the strings outlive their batch, and to free them
    later costs more than they do.
    """
    for number, origin in enumerate(_recent):
        if origin is not None and origin[0] is ids:
            _recent[number] = None
            return origin if origin[1] == ids else None
    return None


class Origins:
    """Remembers the batches of a loader.

    Args:
        field: the id column.
        schema: of the rows.
    """

    def __init__(self, field: str, schema: pa.Schema) -> None:
        self._field, self._at = field, schema.get_field_index(field)
        kind = schema.field(self._at).type
        self._is_text = patypes.is_string(kind) or patypes.is_large_string(kind)
        self._rows: pa.RecordBatch | pa.Table | None = None
        self._column: pa.Array | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_rows": None, "_column": None}

    def note(self, batch: Mapping[str, Any], lots: Sequence[Lot]) -> None:
        """Remember a batch, if somebody wants that.

        Args:
            batch: has the ids as a list.
            lots: the rows that it was made of.
        """
        if not _wanted[0] or not self._is_text:
            return
        found = []
        for lot in lots:
            if lot.rows is not self._rows:
                self._rows, self._column = lot.rows, _alone(lot.rows.column(self._at))
            if self._column is None:
                return
            found.append((self._column, lot))
        ids = batch[self._field]
        _recent[1] = _recent[0]
        _recent[0] = (ids, ids.copy(), tuple(found))


def _alone(column: pa.Array | pa.ChunkedArray) -> pa.Array | None:
    """A column as one array; None where it lies in several, or holds a null."""
    if isinstance(column, pa.ChunkedArray):
        if column.num_chunks != 1:
            return None
        column = column.chunk(0)
    return None if column.null_count else column
