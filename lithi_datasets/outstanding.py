"""What changed between two results, and which items have no row: ids looked up, never held."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lithi_datasets.errors import DuplicateItemId, RowCountMismatch, UsageError
from lithi_datasets.ledger_index import IdBatch, IdIndex, build_index, id_keys
from lithi_datasets.manifest import STATUSES

if TYPE_CHECKING:
    from lithi_datasets.bundle import Bundle

__all__ = ["BundleDiff", "diff_bundles", "ids_without_row"]


@dataclass(frozen=True)
class BundleDiff:
    """How a newer result differs from an older one, by item id.

    Attributes:
        old, new: the snapshots.
        supersedes: whether the newer manifest says that it replaces the older one.
        added: ids with a row in the new one only, in its order.
        lost: ids with a row in the old one only, in its order.
        changed: (id, old status, new status), in the order of the new one.
        unchanged: rows with the same status in both.
    """

    old: dict[str, str]
    new: dict[str, str]
    supersedes: bool
    added: tuple[str, ...]
    lost: tuple[str, ...]
    changed: tuple[tuple[str, str, str], ...]
    unchanged: int

    def as_dict(self) -> dict[str, Any]:
        """The same as plain JSON."""
        return {
            **{name: getattr(self, name) for name in ("old", "new", "supersedes", "unchanged")},
            "added": list(self.added),
            "lost": list(self.lost),
            "changed": [list(change) for change in self.changed],
        }


def _rows(bundle: Bundle) -> Iterator[IdBatch]:
    for index in range(len(bundle.parts)):
        for batch in bundle.scan_part(index):
            codes = None
            if bundle.manifest.has_status:
                found = pc.index_in(batch.column("lithi_status"), value_set=pa.array(STATUSES))
                codes = found.to_numpy(zero_copy_only=False).astype(np.uint8)
            yield IdBatch(batch.column(bundle.item_id_field), codes)


def _ids(bundle: Bundle) -> Iterator[IdBatch]:
    return (IdBatch(batch.ids) for batch in _rows(bundle))


def _keys(batch: IdBatch, index: IdIndex) -> Any:
    return id_keys(batch.ids, _SEED, index.attempt)


# Both bundles are looked up in one index, so the seed is of neither.
_SEED = "0" * 64


def _index(bundle: Bundle, batches: Callable[[], Iterator[IdBatch]]) -> IdIndex:
    """The ids of a bundle, each of which has to be there once."""
    try:
        return build_index(batches, _SEED, rows=bundle.counts.rows)
    except UsageError as error:
        raise DuplicateItemId(
            "Item ids stand more than once in the bundle.",
            path=str(bundle.location),
            expected="each item id once",
            found=error.found,
        ) from error


def ids_without_row(result: Bundle, staged_input: Bundle) -> list[str]:
    """The ids of a staged input without a row in a result, in the order of the input.

    Raises:
        RowCountMismatch: they are not as many as the result counts as outstanding.
        BundleError: a part breaks a rule.
    """
    index = _index(result, lambda: _ids(result))
    for batch in _ids(result):
        index.add(_keys(batch, index))
    found: list[str] = []
    known = 0
    for batch in _ids(staged_input):
        lost = index.times(_keys(batch, index)) == 0
        found += batch.ids.filter(pa.array(lost)).to_pylist()
        known += len(lost) - int(np.count_nonzero(lost))
    # As many ids of another job would do no less: those that have a row have to be there, too.
    if len(found) != result.counts.outstanding or known != result.counts.rows:
        raise RowCountMismatch(
            "The staged input does not fit the result.",
            path=str(staged_input.location),
            expected=f"{result.counts.rows} ids with a row, {result.counts.outstanding} without",
            found=f"{known} with, {len(found)} without",
            remedy="Pass the staged input that this very job ran over.",
        )
    return found


def diff_bundles(old: Bundle, new: Bundle) -> BundleDiff:
    """Compare two results of the same items by item id and status.

    Memory is bounded by 12 bytes a row and the ids that differ.

    Raises:
        UsageError: their item id fields differ.
        BundleError: a part breaks a rule.
    """
    if old.item_id_field != new.item_id_field:
        raise UsageError(
            "The bundles are keyed by different fields.",
            expected=repr(old.item_id_field),
            found=repr(new.item_id_field),
        )
    indexes = [_index(old, lambda: _rows(old)), _index(new, lambda: _rows(new))]
    added: list[str] = []
    changed: list[tuple[str, str, str]] = []
    same = 0
    for batch in _rows(new):
        before = indexes[0].statuses(_keys(batch, indexes[0]))
        codes = np.zeros(len(batch.ids), np.uint8) if batch.codes is None else batch.codes
        added += batch.ids.filter(pa.array(before < 0)).to_pylist()
        same += int(np.count_nonzero(before == codes))
        for row in np.flatnonzero((before >= 0) & (before != codes)).tolist():
            change = (batch.ids[row].as_py(), STATUSES[before[row]], STATUSES[codes[row]])
            changed.append(change)
    lost: list[str] = []
    for batch in _ids(old):
        after = indexes[1].statuses(_keys(batch, indexes[1]))
        lost += batch.ids.filter(pa.array(after < 0)).to_pylist()
    replaced = new.manifest.supersedes
    return BundleDiff(
        old=old.snapshot.as_dict(),
        new=new.snapshot.as_dict(),
        supersedes=replaced is not None and replaced == old.snapshot,
        added=tuple(added),
        lost=tuple(lost),
        changed=tuple(changed),
        unchanged=same,
    )
