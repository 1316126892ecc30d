"""Which rows and columns of a bundle are wanted: one rule for conversion, streams and views."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lithi_datasets.bundle import Bundle
from lithi_datasets.errors import UsageError
from lithi_datasets.manifest import STATUSES

__all__ = ["Selection", "keep_statuses", "normal_statuses", "select_columns"]

STATUS_FIELD = "lithi_status"


@dataclass(frozen=True)
class Selection:
    """A view of a bundle.

    Attributes:
        statuses: the statuses that are kept, sorted; None for all.
        columns: the columns that are kept, in manifest order; None for all.
    """

    statuses: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None

    def table(self, batch: pa.RecordBatch, arrow_schema: pa.Schema) -> pa.Table:
        """The wanted rows and columns of a checked batch, in exactly `arrow_schema`."""
        kept = keep_statuses(batch, self.statuses)
        if self.columns is not None:
            kept = kept.select(list(self.columns))
        return pa.Table.from_batches([in_schema(kept, arrow_schema)])


def in_schema(batch: pa.RecordBatch, arrow_schema: pa.Schema) -> pa.RecordBatch:
    """The same columns without nullability inside types, which `datasets` does not have."""
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(batch.columns, arrow_schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema)


def keep_statuses(batch: pa.RecordBatch, statuses: tuple[str, ...] | None) -> pa.RecordBatch:
    """The rows with one of `statuses`; without the column each counts as accepted (section 4)."""
    if statuses is None:
        return batch
    if STATUS_FIELD not in batch.schema.names:
        return batch.slice(0, batch.num_rows if "accepted" in statuses else 0)
    wanted = pa.array(statuses, pa.string())
    return batch.filter(pc.is_in(batch.column(STATUS_FIELD), value_set=wanted))


def normal_statuses(statuses: Iterable[str] | None) -> tuple[str, ...] | None:
    """The statuses to keep, sorted, once each; None where all are kept.

    Raises:
        UsageError: an unknown status, none at all, or a bare string.
    """
    if statuses is None:
        return None
    named = [statuses] if isinstance(statuses, (str, bytes)) else list(statuses)
    bare = isinstance(statuses, (str, bytes))
    if bare or not named or any(status not in STATUSES for status in named):
        raise UsageError(
            "statuses= takes the statuses to keep.",
            expected=f"a non-empty list of {', '.join(STATUSES)}",
            found=repr(statuses if bare else named),
        )
    kept = tuple(sorted(set(named)))
    return None if len(kept) == len(STATUSES) else kept


def select_columns(bundle: Bundle, columns: Iterable[str] | None) -> tuple[str, ...] | None:
    """The columns to keep, in manifest order; None where all are kept.

    The item id field and `lithi_status` always stay.

    Raises:
        UsageError: a column that the manifest does not declare, or a bare string.
    """
    if columns is None:
        return None
    declared = [field.name for field in bundle.manifest.table.fields]
    bare = isinstance(columns, (str, bytes))
    named = [columns] if bare else list(columns)
    unknown = [name for name in named if name not in declared]
    if bare or unknown:
        raise UsageError(
            "columns= takes the columns to keep.",
            path=str(bundle.location),
            expected=f"a list of some of {', '.join(declared)}",
            found=repr(columns if bare else unknown),
        )
    always = {bundle.item_id_field, STATUS_FIELD}
    kept = tuple(name for name in declared if name in named or name in always)
    return None if len(kept) == len(declared) else kept
