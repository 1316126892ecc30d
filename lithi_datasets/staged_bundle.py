"""The writing of a staged bundle: ids held against the source, parts, manifest, one rename."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.types as patypes

from lithi_datasets import cache
from lithi_datasets.bundle import Bundle, open_bundle
from lithi_datasets.checks import RowChecker
from lithi_datasets.encoding import encode, suffix
from lithi_datasets.errors import BundleError, DuplicateItemId, StorageError, UsageError
from lithi_datasets.ledger_index import IdBatch, IdIndex, build_index, first_rows, id_keys
from lithi_datasets.manifest import MANIFEST_NAME, STATUSES, Snapshot, seal
from lithi_datasets.prediction_columns import with_leaves
from lithi_datasets.provenance import provenance_of
from lithi_datasets.schema import declared_schema, manifest_fields
from lithi_datasets.types import Field

__all__ = ["StagingJob", "storing", "write_staged"]

OUTSTANDING_PATH = "outstanding-items.txt"
_NAMED = 5
_SMALL_TABLES = 256


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
        splits = self.source.values() if isinstance(self.source, Mapping) else [self.source]
        for split in splits:
            if split.column_names is not None and name not in split.column_names:
                raise UsageError(
                    "The source has no item ids any more.",
                    path=name,
                    expected=f"a column {name!r}",
                    found=", ".join(map(repr, split.column_names)),
                    remedy="Pass the dataset as it was loaded, or the bundle.",
                )
            for table in split.select_columns([name]).with_format("arrow").iter(65_536):
                yield IdBatch(table.column(name).cast(pa.string()).combine_chunks())


class _Parts:
    """Writes tables as parts of about `part_bytes`."""

    def __init__(self, folder: Path, job: StagingJob) -> None:
        self._folder, self._job = folder, job
        self._held: list[pa.Table] = []
        self._small: list[pa.Table] = []
        self._size = 0
        self.fields: list[dict[str, Any]] = []
        self.entries: list[dict[str, Any]] = []
        self.statuses = dict.fromkeys(STATUSES, 0)

    def add(self, table: pa.Table) -> None:
        if not self.fields:
            self.fields = self._declared(table.schema)
        rows = max(1, self._job.part_bytes * table.num_rows // max(1, table.nbytes))
        for start in range(0, table.num_rows, rows):
            self._hold(table.slice(start, rows))

    def _hold(self, table: pa.Table) -> None:
        if self._size + table.nbytes > self._job.part_bytes:
            self.flush()
        self._small.append(table)
        self._size += table.nbytes
        if len(self._small) >= _SMALL_TABLES:
            # A table of a few rows takes many times the memory of its values.
            self._held.append(pa.concat_tables(self._small).combine_chunks())
            self._small = []

    def flush(self) -> None:
        held = self._held + self._small
        if not held:
            return
        table = pa.concat_tables(held).combine_chunks()
        self._held, self._small, self._size = [], [], 0
        path = f"parts/part-{len(self.entries):05d}{suffix(self._job.format, None)}"
        counts = self._check(table, path)
        data = encode(table, self._job.format, compression=None, options={})
        with storing(self._folder):
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
        with _callers_fault():
            # A manifest without parts: rules that the columns break are found before the rows are.
            seal(_document(self._job, declared, [], self.statuses, 0))
        return declared

    def _check(self, table: pa.Table, path: str) -> dict[str, int]:
        """Hold the rows to the rules that a reader will hold them to."""
        fields = tuple(Field.model_validate(field) for field in self.fields)
        checker = RowChecker(fields, self._job.item_id_field, path)
        with _callers_fault():
            for batch in table.cast(declared_schema(fields), safe=True).to_batches():
                checker.check(batch)
        return dict(checker.statuses)


@contextlib.contextmanager
def storing(folder: Path) -> Iterator[None]:
    """Around what is written here: an `OSError` of it is ours, one of the caller's loop is not."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"The predictions could not be written: {error.strerror or error}",
            path=str(folder.parent),
            remedy="Make room there, or stage into a folder on another disk.",
        ) from error


@contextlib.contextmanager
def _callers_fault() -> Iterator[None]:
    """Turn what is wrong with a bundle into what is wrong with the predictions for one."""
    try:
        yield
    except UsageError:
        raise
    except BundleError as error:
        raise UsageError(
            f"The predictions break a rule of the bundle format: {error.problem}",
            path=error.path,
            expected=error.expected,
            found=error.found,
        ) from error
    except (pa.ArrowException, ValueError) as error:
        raise UsageError(
            f"The predictions break a rule of the bundle format: {error}",
            expected="the types of the first batch; no null among the statuses",
        ) from error


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
    index = _source_index(job)
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
        document = _document(job, parts.fields, parts.entries, parts.statuses, outstanding)
        if outstanding:
            document["attachments"] = [_bound_outstanding(staging)]
        with storing(staging):
            cache.write_synced(staging / MANIFEST_NAME, seal(document))
        for folder in (staging / "parts", staging):
            cache.sync_folder(folder)
        if not cache.publish(staging, target):
            cache.refuse_foreign(target)
            raise StorageError("The bundle could not be put in its place.", path=str(target))
    return open_bundle(target, allow_partial=True)


def _source_index(job: StagingJob) -> IdIndex:
    try:
        return build_index(job.ids, job.snapshot.content_sha256)
    except UsageError as error:
        if error.path is not None:
            raise
        kind = DuplicateItemId if isinstance(job.source, Bundle) else UsageError
        raise kind(
            "The source holds an item more than once, so no prediction can be told from another.",
            expected="each item id once",
            found=error.found,
        ) from error


def _known_once(
    tables: Callable[[], Iterable[pa.Table]], index: IdIndex, job: StagingJob
) -> Iterator[pa.Table]:
    """The tables, their ids counted; with repeated equal rows dropped where that is asked for."""
    for table in tables():
        ids = table.column(job.item_id_field).combine_chunks()
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
            text = _exact_text(table.slice(row, 1))
            keep[row] = item not in first
            if first.setdefault(item, text) != text:
                raise _wrong_ids("come twice with different predictions", [item], 1, job)
        yield table if keep.all() else table.filter(pa.array(keep))


def _exact_text(row: pa.Table) -> str:
    """Equal for equal values only, and a NaN is equal to itself."""
    values = []
    for column in row.columns:
        # Times as their integers: Python has no year 10000, nor every zone.
        kind = with_leaves(column.type, _as_integers)
        values += [chunk.view(kind).to_pylist() for chunk in column.chunks]
    return repr(values)


def _as_integers(kind: pa.DataType) -> pa.DataType:
    if not patypes.is_temporal(kind):
        return kind
    return pa.int32() if kind.bit_width == 32 else pa.int64()


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
    with storing(staging), (staging / OUTSTANDING_PATH).open("wb") as stream:
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


def _document(
    job: StagingJob,
    fields: Sequence[dict[str, Any]],
    parts: Sequence[dict[str, Any]],
    statuses: Mapping[str, int],
    outstanding: int,
) -> dict[str, Any]:
    rows = sum(entry["rows"] for entry in parts)
    document: dict[str, Any] = {
        "manifest_version": "1.0",
        "bundle_kind": "staged_input",
        "status": "PARTIAL" if outstanding else "COMPLETE",
        "snapshot": {"version_id": job.version_id},
        "derived_from": [job.snapshot.as_dict()],
        "item_id_field": job.item_id_field,
        "schema": {"fields": fields},
        "counts": {
            "items": rows + outstanding,
            "rows": rows,
            **statuses,
            "outstanding": outstanding,
        },
        "parts": parts,
    }
    if job.supersedes is not None:
        document["supersedes"] = job.supersedes.as_dict()
    if outstanding:
        document["next_action"] = {
            "action": "RESUBMIT_OUTSTANDING",
            "message": f"{outstanding} items have no prediction yet; predict and stage them.",
        }
    return document


def _bound_outstanding(folder: Path) -> dict[str, Any]:
    path = folder / OUTSTANDING_PATH
    return {
        "path": OUTSTANDING_PATH,
        "bytes": path.stat().st_size,
        "sha256": cache.file_sha256(path),
        "role": "outstanding_items",
    }
