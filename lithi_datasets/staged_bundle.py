"""The writing of a staged bundle: ids held against the source, parts, manifest, one rename."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from lithi_datasets import cache
from lithi_datasets.bundle import Bundle, open_bundle
from lithi_datasets.checks import RowChecker
from lithi_datasets.encoding import encode, suffix
from lithi_datasets.errors import UsageError
from lithi_datasets.ledger_index import IdBatch, IdIndex, build_index, first_rows, id_keys
from lithi_datasets.manifest import MANIFEST_NAME, STATUSES, Snapshot, seal
from lithi_datasets.provenance import provenance_of
from lithi_datasets.schema import declared_schema, manifest_fields
from lithi_datasets.types import Field

__all__ = ["StagingJob", "write_staged"]

OUTSTANDING_PATH = "outstanding-items.txt"
_NAMED = 5


@dataclass(frozen=True)
class StagingJob:
    """What is to be made; the arguments are those of `staging.stage_predictions`, checked."""

    source: Any
    version_id: str
    format: str
    missing: Literal["refuse", "outstanding"]
    duplicates: Literal["refuse", "deduplicate"]
    part_bytes: int
    class_names: Mapping[str, Sequence[str]] | None
    supersedes: Snapshot | None

    @property
    def snapshot(self) -> Snapshot:
        """The source's snapshot."""
        if isinstance(self.source, Bundle):
            return self.source.snapshot
        return provenance_of(self.source).snapshot

    @property
    def item_id_field(self) -> str:
        """The source's id column."""
        if isinstance(self.source, Bundle):
            return self.source.item_id_field
        return provenance_of(self.source).item_id_field

    def ids(self) -> Iterator[IdBatch]:
        """The ids that a prediction is wanted for, in the order of the source."""
        name = self.item_id_field
        if isinstance(self.source, Bundle):
            for index in range(len(self.source.parts)):
                for batch in self.source.scan_part(index):
                    yield IdBatch(batch.column(name))
            return
        for table in self.source.select_columns([name]).with_format("arrow").iter(65_536):
            yield IdBatch(table.column(name).combine_chunks())


class _Parts:
    """Writes tables as parts of about `part_bytes`."""

    def __init__(self, folder: Path, job: StagingJob) -> None:
        self._folder, self._job = folder, job
        self._held: list[pa.Table] = []
        self._size = 0
        self.fields: list[dict[str, Any]] = []
        self.entries: list[dict[str, Any]] = []
        self.statuses = dict.fromkeys(STATUSES, 0)

    def add(self, table: pa.Table) -> None:
        self._held.append(table)
        self._size += table.nbytes
        if self._size >= self._job.part_bytes:
            self.flush()

    def flush(self) -> None:
        if not self._held:
            return
        table = pa.concat_tables(self._held).combine_chunks()
        self._held, self._size = [], 0
        if not self.fields:
            self.fields = self._declared(table.schema)
        path = f"parts/part-{len(self.entries):05d}{suffix(self._job.format, None)}"
        counts = self._check(table, path)
        data = encode(table, self._job.format, compression=None, options={})
        (self._folder / "parts").mkdir(exist_ok=True)
        cache.write_synced(self._folder / path, data)
        self.entries.append(
            {
                "path": path,
                "format": self._job.format,
                "bytes": len(data),
                "rows": table.num_rows,
                "sha256": hashlib.sha256(data).hexdigest(),
                "status_counts": counts,
            }
        )
        for status in STATUSES:
            self.statuses[status] += counts[status]

    def _declared(self, schema: pa.Schema) -> list[dict[str, Any]]:
        declared = manifest_fields(schema, self._job.class_names)
        never_null = {self._job.item_id_field, "lithi_status"}
        for field in declared:
            if field["name"] in never_null:
                field["nullable"] = False
            if field["name"] == self._job.item_id_field:
                field["type"] = "string"
        return declared

    def _check(self, table: pa.Table, path: str) -> dict[str, int]:
        """Hold the rows to the rules that a reader will hold them to."""
        fields = tuple(Field.model_validate(field) for field in self.fields)
        declared = declared_schema(fields)
        checker = RowChecker(fields, self._job.item_id_field, path)
        for batch in table.cast(declared, safe=True).to_batches():
            checker.check(batch)
        return dict(checker.statuses)


def write_staged(target: Path, job: StagingJob, tables: Callable[[], Iterable[pa.Table]]) -> Bundle:
    """Write a bundle of predictions and open it.

    Args:
        target: new or empty.
        job: what is to be made.
        tables: the predictions, of one schema; called a second time to drop repeated rows.

    Raises:
        UsageError: ids that are repeated, unknown, missing or null, by name.
        StorageError: the disk is full or fails.
    """
    digest = job.snapshot.content_sha256
    index = build_index(job.ids, digest)
    with cache.staging_folder(target) as staging:
        parts = _Parts(staging, job)
        for table in _known_once(tables, index, job):
            parts.add(table)
        parts.flush()
        if not parts.fields:
            raise UsageError("There are no predictions at all.", path=str(target))
        if job.duplicates == "refuse":
            _refuse_repeated(index, job)
        outstanding = _outstanding(staging, index, job)
        cache.write_synced(staging / MANIFEST_NAME, seal(_document(job, parts, outstanding)))
        for folder in (staging / "parts", staging):
            cache.sync_folder(folder)
        if not cache.publish(staging, target):
            cache.refuse_foreign(target)
    return open_bundle(target, allow_partial=True)


def _known_once(
    tables: Callable[[], Iterable[pa.Table]], index: IdIndex, job: StagingJob
) -> Iterator[pa.Table]:
    """The tables, their ids counted; with repeated equal rows dropped where that is asked for."""
    for table in tables():
        ids = table.column(job.item_id_field).combine_chunks()
        _refuse_nulls(ids, job)
        keys = id_keys(ids, job.snapshot.content_sha256, index.attempt)
        foreign = index.add(keys)
        if len(foreign):
            named = ids.take(pa.array(np.flatnonzero(np.isin(keys, foreign))[:_NAMED])).to_pylist()
            raise _wrong_ids("are not of the source", named, len(foreign), job)
        if job.duplicates == "refuse":
            yield table
    if job.duplicates == "deduplicate":
        yield from _deduplicated(tables(), index, job)


def _deduplicated(
    tables: Iterable[pa.Table], index: IdIndex, job: StagingJob
) -> Iterator[pa.Table]:
    first: dict[str, str] = {}
    for table in tables:
        ids = table.column(job.item_id_field).combine_chunks()
        times = index.times(id_keys(ids, job.snapshot.content_sha256, index.attempt))
        keep = np.ones(table.num_rows, dtype=np.bool_)
        for row in np.flatnonzero(times > 1).tolist():
            item = ids[row].as_py()
            text = repr(table.slice(row, 1).to_pylist())  # a NaN is equal to itself in it
            keep[row] = item not in first
            if first.setdefault(item, text) != text:
                raise _wrong_ids("come twice with different predictions", [item], 1, job)
        yield table if keep.all() else table.filter(pa.array(keep))


def _refuse_nulls(ids: pa.Array, job: StagingJob) -> None:
    if ids.null_count:
        raise UsageError(
            "A prediction has no item id.",
            path=job.item_id_field,
            expected="a string",
            found="null",
        )


def _refuse_repeated(index: IdIndex, job: StagingJob) -> None:
    count = index.tally().repeated
    if count:
        digest = job.snapshot.content_sha256
        rows = first_rows(
            job.ids(),
            lambda ids: np.maximum(index.times(id_keys(ids, digest, index.attempt)), 1) - 1,
            _NAMED,
        )
        raise _wrong_ids("come more than once", [item for item, _ in rows], count, job)


def _outstanding(staging: Path, index: IdIndex, job: StagingJob) -> int:
    """Refuse or write down the ids without a prediction; returns how many they are."""
    count = index.tally().missing
    if not count:
        return 0
    digest = job.snapshot.content_sha256

    def missing(ids: pa.Array) -> Any:
        return (index.times(id_keys(ids, digest, index.attempt)) == 0).astype(np.uint8)

    if job.missing == "refuse":
        rows = first_rows(job.ids(), missing, _NAMED)
        raise _wrong_ids("have no prediction", [item for item, _ in rows], count, job)
    with (staging / OUTSTANDING_PATH).open("wb") as stream:
        for batch in job.ids():
            lost = batch.ids.filter(pa.array(missing(batch.ids).astype(np.bool_))).to_pylist()
            stream.write("".join(f"{item}\n" for item in lost).encode())
        stream.flush()
        os.fsync(stream.fileno())
    return count


def _wrong_ids(what: str, named: Sequence[str], count: int, job: StagingJob) -> UsageError:
    more = f" and {count - len(named)} more" if count > len(named) else ""
    remedies = {
        "have no prediction": 'Predict them, or pass missing="outstanding".',
        "come more than once": 'Read each row once, or pass duplicates="deduplicate".',
    }
    return UsageError(
        f"Item ids of the predictions {what}.",
        path=job.item_id_field,
        expected="each id of the source once",
        found=", ".join(map(repr, named)) + more,
        remedy=remedies.get(what, "Predict the items of the source."),
    )


def _document(job: StagingJob, parts: _Parts, outstanding: int) -> dict[str, Any]:
    rows = sum(entry["rows"] for entry in parts.entries)
    document: dict[str, Any] = {
        "manifest_version": "1.0",
        "bundle_kind": "staged_input",
        "status": "PARTIAL" if outstanding else "COMPLETE",
        "snapshot": {"version_id": job.version_id},
        "derived_from": [job.snapshot.as_dict()],
        "item_id_field": job.item_id_field,
        "schema": {"fields": parts.fields},
        "counts": {
            "items": rows + outstanding,
            "rows": rows,
            **parts.statuses,
            "outstanding": outstanding,
        },
        "parts": parts.entries,
    }
    if job.supersedes is not None:
        document["supersedes"] = job.supersedes.as_dict()
    if outstanding:
        document["next_action"] = {
            "action": "RESUBMIT_OUTSTANDING",
            "message": f"{outstanding} items have no prediction yet; predict and stage them.",
        }
        document["attachments"] = [_bound_outstanding(parts)]
    return document


def _bound_outstanding(parts: _Parts) -> dict[str, Any]:
    path = parts._folder / OUTSTANDING_PATH
    return {
        "path": OUTSTANDING_PATH,
        "bytes": path.stat().st_size,
        "sha256": cache.file_sha256(path),
        "role": "outstanding_items",
    }
