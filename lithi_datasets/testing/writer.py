"""Writes small bundles for tests, right ones and, on purpose, wrong ones.

    snapshot = write_bundle(folder, table)                            # one Parquet part
    write_bundle(folder, {"train": [a, b], "test": c}, format="csv", compression="zstd")
    write_bundle(folder, [PartSpec(a, path="x.bin"), PartSpec(b, format="arrow")])
    write_bundle(folder, table, outstanding=["i9"])                   # a PARTIAL bundle
    write_bundle(folder, table, mutate=lambda document: document["counts"].update(rows=7))

The same arguments give the same bytes. Parts are written first, the manifest last, at once.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from lithi_datasets.encoding import encode, suffix
from lithi_datasets.errors import LithiError, UsageError
from lithi_datasets.manifest import MANIFEST_NAME, STATUSES, Snapshot, content_digest
from lithi_datasets.manifest import seal as seal_document
from lithi_datasets.schema import manifest_fields
from lithi_datasets.testing.folder import Folder

if TYPE_CHECKING:
    import os

__all__ = ["Document", "PartSpec", "Tables", "read_manifest_document", "reseal", "write_bundle"]

Document: TypeAlias = dict[str, Any]
"""A manifest as parsed JSON, to look at and to change."""

OUTSTANDING_PATH = "outstanding/items.txt"
_STATUS_FIELD = "lithi_status"


@dataclass(frozen=True)
class PartSpec:
    """One part to write, in full control.

    Attributes:
        table: the rows, in the physical types to write (the declared ones are `write_bundle`'s).
        split: the split that the part belongs to.
        format: `parquet`, `arrow`, `jsonl` or `csv`.
        compression: `gzip` or `zstd`, for `jsonl` and `csv`.
        path: relative path in the bundle; by default `parts/part-00000.parquet` and so on.
        status_counts: whether the manifest counts the part's statuses. `None`: where the table has
            a `lithi_status` column. A mapping of the three counts is written as it is, and enters
            the bundle's counts, right or wrong.
        options: how the file is written. `parquet`: arguments of `pyarrow.parquet.write_table`.
            `arrow`: `stream` (bool, IPC stream for IPC file), `batch_rows` (int), `compression`
            (of buffers: `lz4`, `zstd`). `jsonl`: `nulls` (`"null"`, or `"absent"`: key left out, at
            any depth), `ascii` (bool, escapes). `csv`: `columns` (names in header order),
            `quote_all` (bool, every text cell). Both: `newline`, `bom` (bool), `members` (number of
            gzip members or zstd frames).
        data: the stored bytes, in place of what would be written from `table`.
        rows: what the manifest says in place of the table's number of rows.
    """

    table: pa.Table
    _: KW_ONLY
    split: str = "train"
    format: str = "parquet"
    compression: str | None = None
    path: str | None = None
    status_counts: bool | Mapping[str, int] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    data: bytes | None = None
    rows: int | None = None


_Parts: TypeAlias = pa.Table | PartSpec | Sequence[pa.Table | PartSpec]
Tables: TypeAlias = _Parts | Mapping[str, _Parts]
"""One part, a sequence of parts (split `train`), or split → the same, in the order of the parts."""


def write_bundle(
    folder: str | os.PathLike[str],
    tables: Tables,
    *,
    item_id_field: str = "item_id",
    version_id: str = "res_test_0001",
    kind: str = "result",
    format: str = "parquet",
    compression: str | None = None,
    options: Mapping[str, Any] | None = None,
    fields: Sequence[Mapping[str, Any]] | None = None,
    class_names: Mapping[str, Sequence[str]] | None = None,
    required: Collection[str] = (),
    status: str | None = None,
    next_action: Mapping[str, str] | None = None,
    outstanding: Sequence[str] | int = (),
    bind_outstanding: bool = False,
    attachments: Mapping[str, bytes] | None = None,
    supersedes: Snapshot | Mapping[str, str] | None = None,
    derived_from: Sequence[Snapshot | Mapping[str, str]] | None = None,
    created_at: str | None = None,
    extra: Mapping[str, Any] | None = None,
    mutate: Callable[[Document], None] | None = None,
    seal: bool = True,
    overwrite: bool = False,
) -> Snapshot:
    """Write a bundle and return its snapshot.

    Everything is checked in memory first: a call that raises has written nothing.

    Args:
        folder: a local folder or an fsspec URL (`memory://…`).
        tables: a table (one part), a sequence of tables (one part each, split `train`), a mapping
            split → table or tables; a `PartSpec` stands wherever a table does.
        item_id_field: name of the id column.
        version_id: identity of the result.
        kind: `result`, or `staged_input`, which needs no `lithi_status`.
        format: as in `PartSpec`, for each part given as a mere table.
        compression: the same.
        options: the same.
        fields: `schema.fields` of the manifest, to declare other types than the first table's;
            taken as they are. By default they come from the first part's schema, the id and
            `lithi_status` not nullable.
        class_names: field → names; not with `fields`.
        required: names of top-level fields declared not nullable, on top of those that the schema
            says; not with `fields`.
        status: `COMPLETE` or `PARTIAL`; by default what `outstanding` makes of it.
        next_action: `{"action", "message"}`; a PARTIAL bundle gets one anyway.
        outstanding: ids of the items without a row, or only their number.
        bind_outstanding: bind the ids as an attachment of the role `outstanding_items`.
        attachments: path → content, bound in the role `log`.
        supersedes: snapshot of the older bundle that this one replaces.
        derived_from: snapshots of the bundles that this one was computed from.
        created_at: RFC 3339 timestamp with offset.
        extra: members that the format does not name, at the top of the manifest.
        mutate: changes the manifest in place before it is sealed. The result is sealed whatever it
            is: this is how hostile manifests are made.
        seal: `False` leaves the digest at 64 zeros, or at what `mutate` made it, and checks
            nothing.
        overwrite: allow a folder that is a bundle already. Its manifest goes first; files that the
            new one does not name stay.

    Returns:
        The snapshot that the written manifest states, checked or not.

    Raises:
        UsageError: arguments that make no bundle, or a folder that is one already.
        ManifestInvalid: without `mutate`, what a reader would refuse as well.
    """
    specs = _specs(
        tables,
        PartSpec(pa.table({}), format=format, compression=compression, options=options or {}),
    )
    files = dict(attachments or {})
    roles = dict.fromkeys(files, "log")
    if bind_outstanding:
        files[OUTSTANDING_PATH] = _id_lines(outstanding)
        roles[OUTSTANDING_PATH] = "outstanding_items"
    stored = [_stored(index, spec) for index, spec in enumerate(specs)]
    missing = outstanding if isinstance(outstanding, int) else len(outstanding)
    document: Document = {
        "manifest_version": "1.0",
        "bundle_kind": kind,
        **_progress(status, next_action, missing),
        "snapshot": {"version_id": version_id, "content_sha256": "0" * 64},
        **_origin(created_at, supersedes, derived_from),
        "item_id_field": item_id_field,
        "schema": {"fields": _fields(specs, fields, item_id_field, class_names or {}, required)},
        "counts": _counts(specs, missing),
        "parts": [entry for entry, _ in stored],
        **_bound(files, roles),
    }
    document = _with_extra(document, extra or {})
    files.update((entry["path"], data) for entry, data in stored)
    return _write(Folder(folder), files, document, mutate, seal=seal, overwrite=overwrite)


def read_manifest_document(folder: str | os.PathLike[str]) -> Document:
    """Return the manifest of a bundle as parsed JSON, unchecked.

    Raises:
        FileNotFoundError: the folder has no manifest.
    """
    document: Document = json.loads(Folder(folder).read(MANIFEST_NAME).decode("utf-8-sig"))
    return document


def reseal(
    folder: str | os.PathLike[str], mutate: Callable[[Document], None], *, seal: bool = True
) -> Snapshot:
    """Change the manifest of a bundle in place and seal it again, whatever it is then.

    Args:
        folder: a bundle, local or a URL.
        mutate: changes the parsed manifest in place.
        seal: `False` keeps the digest that the manifest states.

    Returns:
        The snapshot that the new manifest states.
    """
    document = read_manifest_document(folder)
    return _write(Folder(folder), {}, document, mutate, seal=seal, overwrite=True)


def _write(
    folder: Folder,
    files: Mapping[str, bytes],
    document: Document,
    mutate: Callable[[Document], None] | None,
    *,
    seal: bool,
    overwrite: bool,
) -> Snapshot:
    if mutate is not None:
        mutate(document)
    checked = seal and mutate is None
    raw = seal_document(document) if checked else _as_it_is(document, seal=seal)
    there = folder.exists(MANIFEST_NAME)
    if there and not overwrite:
        raise UsageError(
            "the folder is a bundle already", remedy="Pass overwrite=True, or another."
        )
    if there and files:
        folder.remove(MANIFEST_NAME)
    for path, data in files.items():
        folder.write(path, data)
    folder.write(MANIFEST_NAME, raw)
    return _stated_snapshot(json.loads(raw))


def _as_it_is(document: Document, *, seal: bool) -> bytes:
    """The document's JSON with its digest, without a look at what it says."""
    snapshot = document.get("snapshot")
    if seal and isinstance(snapshot, dict):
        snapshot["content_sha256"] = _digest_of_anything(document)
    try:
        # ASCII, so that a lone surrogate can be written too.
        return json.dumps(document, indent=1, ensure_ascii=True).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"mutate left something that is not JSON: {error}") from error


def _digest_of_anything(document: Document) -> str:
    try:
        return content_digest(document)
    except (LithiError, ArithmeticError, LookupError, TypeError, ValueError, RecursionError):
        # No canonical form: any digest will do, since no reader gets that far.
        return hashlib.sha256(repr(document).encode("utf-8", "surrogatepass")).hexdigest()


def _stated_snapshot(document: Any) -> Snapshot:
    stated = document.get("snapshot")
    found = stated if isinstance(stated, dict) else {}
    members: dict[str, Any] = {key: found.get(key) for key in ("version_id", "content_sha256")}
    try:
        return Snapshot.coerce(members)
    except LithiError:
        return Snapshot.model_construct(**members)


def _specs(tables: Tables, default: PartSpec) -> list[PartSpec]:
    if isinstance(tables, PartSpec):
        return [tables]
    if isinstance(tables, pa.Table):
        return [replace(default, table=tables)]
    if isinstance(tables, Mapping):
        return [
            replace(spec, split=split)
            for split, inner in tables.items()
            for spec in _specs(inner, default)
        ]
    if isinstance(tables, Sequence) and not isinstance(tables, (str, bytes)):
        return [spec for table in tables for spec in _specs(table, default)]
    raise UsageError(
        "no table",
        expected="pa.Table, PartSpec, a sequence or a mapping",
        found=type(tables).__name__,
    )


def _stored(index: int, spec: PartSpec) -> tuple[dict[str, Any], bytes]:
    ending = suffix(spec.format, spec.compression)
    data = spec.data
    if data is None:
        data = encode(spec.table, spec.format, compression=spec.compression, options=spec.options)
    path = f"parts/part-{index:05}{ending}" if spec.path is None else spec.path
    entry: dict[str, Any] = {"path": path, "format": spec.format}
    if spec.compression is not None:
        entry["compression"] = spec.compression
    entry |= {"bytes": len(data), "rows": _rows(spec), "sha256": hashlib.sha256(data).hexdigest()}
    entry["split"] = spec.split
    counted = spec.status_counts
    if counted is None:
        counted = _STATUS_FIELD in spec.table.column_names
    if counted is not False:
        entry["status_counts"] = _statuses(spec)
    return entry, data


def _rows(spec: PartSpec) -> int:
    return int(spec.table.num_rows) if spec.rows is None else spec.rows


def _statuses(spec: PartSpec) -> dict[str, int]:
    """Counts of the statuses; what is neither failed nor abstained counts as accepted."""
    if isinstance(spec.status_counts, Mapping):
        return dict(spec.status_counts)
    found: Counter[object] = Counter()
    if spec.table.column_names.count(_STATUS_FIELD) == 1:
        found.update(spec.table.column(_STATUS_FIELD).to_pylist())
    others = {status: found[status] for status in STATUSES[1:]}
    return {STATUSES[0]: _rows(spec) - sum(others.values()), **others}


def _counts(specs: Sequence[PartSpec], outstanding: int) -> dict[str, int]:
    rows = sum(_rows(spec) for spec in specs)
    parts = [_statuses(spec) for spec in specs]
    statuses = {status: sum(part[status] for part in parts) for status in STATUSES}
    return {"items": rows + outstanding, "rows": rows, **statuses, "outstanding": outstanding}


def _fields(
    specs: Sequence[PartSpec],
    fields: Sequence[Mapping[str, Any]] | None,
    item_id_field: str,
    class_names: Mapping[str, Sequence[str]],
    required: Collection[str],
) -> list[dict[str, Any]]:
    if fields is not None:
        if class_names or required:
            raise UsageError("`fields` already says class names and what is required")
        return [copy.deepcopy(dict(item)) for item in fields]
    if not specs:
        raise UsageError("a bundle without parts needs `fields`")
    declared = manifest_fields(specs[0].table.schema, class_names)
    names = {item["name"] for item in declared}
    wanted = {item_id_field, *required}
    if isinstance(required, str) or wanted - names:
        unknown = ", ".join(sorted(wanted - names))
        raise UsageError("no such column", expected=", ".join(names), found=unknown)
    for item in declared:
        if item["name"] in wanted | {_STATUS_FIELD}:
            item["nullable"] = False
    return declared


def _progress(
    status: str | None, next_action: Mapping[str, str] | None, outstanding: int
) -> dict[str, Any]:
    stated = status or ("PARTIAL" if outstanding else "COMPLETE")
    if next_action is None and stated == "PARTIAL":
        message = f"Submit the {outstanding} outstanding items again."
        next_action = {"action": "RESUBMIT_OUTSTANDING", "message": message}
    return {"status": stated} | ({} if next_action is None else {"next_action": dict(next_action)})


def _origin(
    created_at: str | None,
    supersedes: Snapshot | Mapping[str, str] | None,
    derived_from: Sequence[Snapshot | Mapping[str, str]] | None,
) -> dict[str, Any]:
    members: dict[str, Any] = {}
    if created_at is not None:
        members["created_at"] = created_at
    if supersedes is not None:
        members["supersedes"] = Snapshot.coerce(supersedes).as_dict()
    if derived_from is not None:
        members["derived_from"] = [Snapshot.coerce(item).as_dict() for item in derived_from]
    return members


def _bound(files: Mapping[str, bytes], roles: Mapping[str, str]) -> dict[str, Any]:
    attachments = [
        {
            "path": path,
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
            "role": roles[path],
        }
        for path, data in files.items()
    ]
    return {"attachments": attachments} if attachments else {}


def _id_lines(outstanding: Sequence[str] | int) -> bytes:
    if isinstance(outstanding, (int, str)):
        raise UsageError("the outstanding ids are needed to bind them", found=outstanding)
    return "".join(f"{item}\n" for item in outstanding).encode()


def _with_extra(document: Document, extra: Mapping[str, Any]) -> Document:
    taken = sorted(document.keys() & extra.keys())
    if taken:
        remedy = "Change members of the format with `mutate`."
        raise UsageError("members that the format names", found=", ".join(taken), remedy=remedy)
    return document | copy.deepcopy(dict(extra))
