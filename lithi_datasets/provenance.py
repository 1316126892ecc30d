"""What a dataset knows about the bundle that it came from.

It travels in `DatasetInfo.download_checksums`, the one member that survives map, filter, select,
shuffle, shard, pickling and `save_to_disk` alike. Where it is lost, the answer is a `UsageError`,
not a guess.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from lithi_datasets.errors import UsageError
from lithi_datasets.manifest import Snapshot
from lithi_datasets.strict_json import canonical
from lithi_datasets.types import StructOf

if TYPE_CHECKING:
    from lithi_datasets.bundle import Bundle
    from lithi_datasets.types import Field

__all__ = ["Provenance", "fingerprint", "provenance_of", "replaces", "snapshot_of"]

KEY = "lithi_bundle"
FINGERPRINT_FORMAT = 1
"""Raised whenever the same bundle and view would give other rows or types than before."""


@dataclass(frozen=True)
class Provenance:
    """The bundle behind a dataset.

    Attributes:
        version_id: of the snapshot.
        content_sha256: of the snapshot.
        item_id_field: name of the id column.
        counts: the manifest's counts, by name.
        required: declared columns that hold no null.
        nullable: declared columns that may; a field of a struct by its dotted path.
        statuses: the statuses that were read, sorted; None for all.
        splits: split name → rows in the bundle, before any status was left out.
        status_counts: split name → rows by status, None where only the bundle's totals are known.
        node: `{"rank", "world_size"}` where `split_by_node` made this dataset, else None.
        supersedes: the snapshot of the older bundle that this one replaces, as its manifest says.
    """

    version_id: str
    content_sha256: str
    item_id_field: str
    counts: dict[str, int]
    required: tuple[str, ...]
    nullable: tuple[str, ...]
    statuses: tuple[str, ...] | None
    splits: dict[str, int]
    status_counts: dict[str, dict[str, int] | None]
    node: dict[str, int] | None = None
    supersedes: dict[str, str] | None = None

    @property
    def snapshot(self) -> Snapshot:
        """The bundle's snapshot."""
        return Snapshot(version_id=self.version_id, content_sha256=self.content_sha256)

    @classmethod
    def of_bundle(cls, bundle: Bundle, *, statuses: tuple[str, ...] | None) -> Provenance:
        """What the manifest alone says."""
        counts, older = bundle.counts, bundle.manifest.supersedes
        return cls(
            version_id=bundle.snapshot.version_id,
            content_sha256=bundle.snapshot.content_sha256,
            item_id_field=bundle.item_id_field,
            counts={name: getattr(counts, name) for name in type(counts).model_fields},
            required=tuple(f.name for f in bundle.manifest.table.fields if not f.nullable),
            nullable=tuple(_nullable(bundle.manifest.table.fields, "")),
            statuses=statuses,
            splits={
                split: sum(bundle.parts[index].rows for index in indexes)
                for split, indexes in bundle.splits.items()
            },
            status_counts={
                split: _stated_statuses(bundle, indexes) for split, indexes in bundle.splits.items()
            },
            supersedes=None if older is None else older.as_dict(),
        )

    def as_checksums(self) -> dict[str, Any]:
        """The value of `DatasetInfo.download_checksums`; plain JSON."""
        plain = {name: list(getattr(self, name)) for name in ("required", "nullable")}
        return {KEY: {**asdict(self), **plain}}


def _nullable(fields: Sequence[Field], prefix: str) -> Iterator[str]:
    for field in fields:
        if field.nullable:
            yield prefix + field.name
        elif isinstance(field.type, StructOf):
            yield from _nullable(field.type.fields, f"{prefix}{field.name}.")


def _stated_statuses(bundle: Bundle, indexes: Sequence[int]) -> dict[str, int] | None:
    parts = [bundle.parts[index] for index in indexes]
    if not bundle.manifest.has_status:
        return {"accepted": sum(part.rows for part in parts), "failed": 0, "abstained": 0}
    totals = {"accepted": 0, "failed": 0, "abstained": 0}
    for part in parts:
        if part.status_counts is None and part.rows:
            if len(bundle.splits) == 1:
                return {name: getattr(bundle.counts, name) for name in totals}
            return None
        for name in totals if part.status_counts is not None else ():
            totals[name] += getattr(part.status_counts, name)
    return totals


def provenance_of(ds: Any) -> Provenance:
    """What `ds` knows about its bundle.

    Args:
        ds: a `Dataset` or `IterableDataset`, or a dictionary of those.

    Raises:
        UsageError: it knows nothing: it is not from a bundle, or lost it on the way.
    """
    if isinstance(ds, Mapping):
        found = [provenance_of(split) for split in ds.values()]
        if found and all(one.snapshot == found[0].snapshot for one in found):
            return found[0]
        raise UsageError(
            "The splits are not of one bundle.",
            found=f"{len(found)} splits",
            remedy="Ask each one.",
        )
    info = getattr(ds, "info", None)
    kept = (getattr(info, "download_checksums", None) or {}).get(KEY)
    if not isinstance(kept, Mapping):
        raise UsageError(
            "This dataset does not know which bundle it came from.",
            expected="a dataset from lithi_datasets.load or load_dataset('lithi_bundle', …)",
            found=type(ds).__name__,
            remedy="Keep the dataset that was loaded: to_iterable_dataset, and joining datasets of "
            "different bundles, lose the snapshot.",
        )
    statuses = kept["statuses"]
    return Provenance(
        **{
            **kept,
            "required": tuple(kept["required"]),
            "nullable": tuple(kept["nullable"]),
            "statuses": None if statuses is None else tuple(statuses),
        }
    )


def snapshot_of(ds: Any) -> Snapshot:
    """The snapshot of the bundle that a dataset came from.

    It survives map, filter, select, shuffle, shard, pickling and `save_to_disk`.

    Args:
        ds: a `Dataset` or `IterableDataset`, or a dictionary of those.

    Raises:
        UsageError: the dataset does not know, or its splits are of different bundles.
    """
    return provenance_of(ds).snapshot


def replaces(newer: Mapping[str, Any] | None, older: object) -> bool:
    """Whether `older` is the snapshot that the `supersedes` of another bundle names."""
    named = None if newer is None else newer.get("content_sha256")
    return named is not None and isinstance(older, Mapping) and older.get("content_sha256") == named


def fingerprint(
    content_sha256: str,
    slices: Sequence[tuple[str, int, int]],
    statuses: tuple[str, ...] | None,
    columns: tuple[str, ...] | None,
) -> str:
    """The fingerprint of a view of a bundle: 64 hex characters.

    No path, time, worker count or hash seed enters it, so it is equal wherever the bundle is; the
    slices do, so that two splits never share the cache of a `map`.

    Args:
        content_sha256: the bundle.
        slices: (split, first row, row after the last) in row order.
        statuses: the statuses that are kept, sorted; None for all.
        columns: the columns that are kept, in manifest order; None for all.
    """
    view = [content_sha256, [list(s) for s in slices], statuses, columns, FINGERPRINT_FORMAT]
    return hashlib.sha256(canonical(view)).hexdigest()
