"""Predictions → a new bundle, keyed by item id: parts first, manifest last, in place in one step.

Everything is written in a folder of this process beside the target and renamed, so a writer that is
killed leaves no bundle, or a whole one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pyarrow import ipc

from lithi_datasets import cache
from lithi_datasets.bundle import Bundle
from lithi_datasets.encoding import suffix
from lithi_datasets.errors import StateError, UsageError
from lithi_datasets.manifest import Snapshot
from lithi_datasets.predictions import label_names, merged, one_schema, prediction_tables
from lithi_datasets.staged_bundle import StagingJob, storing, write_staged

__all__ = ["StagedShare", "commit_predictions", "stage_predictions"]

PART_BYTES = 128 * 2**20
"""Predictions are cut into parts of about this many bytes in memory."""


@dataclass(frozen=True)
class StagedShare:
    """The predictions of one rank, waiting for `commit_predictions`.

    Attributes:
        folder: where they wait; `commit_predictions` removes it.
        rank: the rank.
        world_size: how many shares there will be.
        rows: rows of this share.
    """

    folder: Path
    rank: int
    world_size: int
    rows: int


def stage_predictions(
    folder: str | os.PathLike[str],
    predictions: Any,
    *,
    source: Any,
    version_id: str,
    format: str = "parquet",
    missing: Literal["refuse", "outstanding"] = "refuse",
    duplicates: Literal["refuse", "deduplicate"] = "refuse",
    part_bytes: int = PART_BYTES,
    class_names: Mapping[str, Sequence[str]] | None = None,
    supersedes: Snapshot | Mapping[str, Any] | None = None,
    rank: int = 0,
    world_size: int = 1,
) -> Any:
    """Write predictions as a new `staged_input` bundle, derived from their source.

    Args:
        folder: a new or empty local folder.
        predictions: an Arrow table, a `datasets.Dataset`, a dict of columns, or an iterator of
            those; with the source's item id column. dtypes are kept: a tensor `[B, n]` becomes a
            fixed-size list, a column with its `<name>__valid` beside it one with nulls.
        source: the dataset or bundle whose items are predicted; each of its ids has to come once.
        version_id: identity of the new bundle.
        format: `parquet`, `arrow`, `jsonl` or `csv`.
        missing: `"outstanding"` makes a PARTIAL bundle that binds the list of the ids without a
            prediction; `"refuse"` names them.
        duplicates: `"deduplicate"` drops a repeated row that is equal, such as a sampler's padding;
            one that differs is refused all the same.
        part_bytes: size of a part, bytes in memory.
        class_names: column → names, for integer columns that are classes; those of a `Dataset`
            come with it.
        supersedes: the snapshot of an older bundle that this one replaces.
        rank: with `world_size` above 1, this process.
        world_size: number of processes that predict together; each one calls this with its own
            predictions, then one calls `commit_predictions`.

    Returns:
        The opened `Bundle`; a `StagedShare` where `world_size` is above 1.

    Raises:
        UsageError: ids that are repeated, unknown, missing or no strings, by name; a folder that
            holds anything; types that differ between batches.
        StorageError: the disk is full or fails.
    """
    _check_ranks(rank, world_size)
    target = _target(folder)
    names = class_names if class_names is not None else label_names(predictions)
    job = _job(source, version_id, format, missing, duplicates, part_bytes, names, supersedes)
    tables = prediction_tables(predictions, job.item_id_field)
    if world_size == 1:
        if job.duplicates == "refuse":
            return write_staged(target, job, lambda: one_schema(tables))
        with cache.staging_folder(target) as spool:
            _spool(spool / "rows.arrow", tables)
            return write_staged(target, job, lambda: one_schema(_spooled([spool / "rows.arrow"])))
    return _write_share(target, job, tables, rank, world_size)


def commit_predictions(
    folder: str | os.PathLike[str],
    *,
    source: Any,
    version_id: str,
    world_size: int,
    format: str = "parquet",
    missing: Literal["refuse", "outstanding"] = "refuse",
    duplicates: Literal["refuse", "deduplicate"] = "refuse",
    part_bytes: int = PART_BYTES,
    class_names: Mapping[str, Sequence[str]] | None = None,
    supersedes: Snapshot | Mapping[str, Any] | None = None,
) -> Bundle:
    """Join the shares that `stage_predictions` left on each rank into one bundle.

    Call it on one rank, after all have staged. The arguments are those of `stage_predictions`.

    Raises:
        StateError: a share is missing or damaged, or was made of another source or for another
            `version_id`.
        UsageError: as `stage_predictions`; the shares stay where they are.
    """
    _check_ranks(0, world_size)
    target = _target(folder)
    job = _job(source, version_id, format, missing, duplicates, part_bytes, class_names, supersedes)
    shares = [_share_folder(target, rank, world_size) for rank in range(world_size)]
    notes = [_check_share(share, job, rank, world_size) for rank, share in enumerate(shares)]
    if class_names is None:
        labels = next((note["class_names"] for note in notes if note["class_names"]), None)
        job = dataclasses.replace(job, class_names=labels)
    files = [share / "rows.arrow" for share in shares]
    bundle = write_staged(target, job, lambda: one_schema(_spooled(files)))
    for share in shares:
        cache.displace(share)
    return bundle


def _check_ranks(rank: int, world_size: int) -> None:
    from lithi_datasets.reading.plan import check_rank

    check_rank(rank, world_size)


def _target(folder: str | os.PathLike[str]) -> Path:
    text = os.fspath(folder) if isinstance(folder, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text or "\0" in text or "://" in text:
        raise UsageError(
            "Predictions are staged in a local folder.",
            path=text or None,
            expected="a path of this machine",
            found=repr(folder),
            remedy="Stage locally, then copy the folder, the manifest last.",
        )
    # Followed to its end: a rename would replace a link, or fail on it.
    target = Path(os.path.realpath(Path(text).expanduser()))
    cache.refuse_foreign(target)
    return target


def _job(
    source: Any,
    version_id: str,
    format: str,
    missing: Any,
    duplicates: Any,
    part_bytes: int,
    class_names: Mapping[str, Sequence[str]] | None,
    supersedes: Snapshot | Mapping[str, Any] | None,
) -> StagingJob:
    for name, value, known in (
        ("missing", missing, ("refuse", "outstanding")),
        ("duplicates", duplicates, ("refuse", "deduplicate")),
    ):
        if not isinstance(value, str) or value not in known:
            raise UsageError(
                f"{name}= is unknown.", expected=" or ".join(map(repr, known)), found=repr(value)
            )
    if isinstance(part_bytes, bool) or not isinstance(part_bytes, int) or part_bytes < 1:
        raise UsageError("part_bytes= is a size.", expected="at least 1", found=repr(part_bytes))
    if not isinstance(format, str):
        raise UsageError("format= is a name.", expected="parquet, …", found=repr(format))
    suffix(format, None)
    names = class_names.values() if isinstance(class_names, Mapping) else [class_names or []]
    if not all(isinstance(one, (list, tuple)) for one in names):
        raise UsageError(
            "class_names= is wrong.", expected="column → list of names", found=repr(class_names)
        )
    _check_version(version_id)
    older = None if supersedes is None else Snapshot.coerce(supersedes)
    return StagingJob(
        source, version_id, format, missing, duplicates, part_bytes, class_names, older
    )


def _check_version(version_id: object) -> None:
    """Refuse an identity that the manifest can't hold, before anything is predicted."""
    try:
        Snapshot.coerce({"version_id": version_id, "content_sha256": "0" * 64})
        str(version_id).encode()
    except (UsageError, UnicodeEncodeError) as error:
        raise UsageError(
            "version_id= can't be the identity of a bundle.",
            expected="a string of 1 to 256 characters, none of them a control character",
            found=repr(version_id)[:200],
        ) from error


def _spool(path: Path, tables: Iterable[pa.Table]) -> int:
    """Write tables aside, to be read more than once; returns the rows.

    A type that is not known yet for its nulls is written as it is, so a change of type begins
    another stream in the same file; `one_schema` settles it where all are read.
    """
    rows = 0
    schema: pa.Schema = None
    written: pa.Schema = None
    with path.open("wb") as stream, contextlib.ExitStack() as open_writer:
        for table in tables:
            if table.num_rows:
                schema = table.schema if schema is None else merged(schema, table.schema)
            with storing(path.parent):
                if written is None or table.schema != written:
                    open_writer.close()
                    written = table.schema
                    writer = open_writer.enter_context(ipc.new_stream(stream, written))
                writer.write_table(table)
            rows += table.num_rows
        with storing(path.parent):
            open_writer.close()
            stream.flush()
            os.fsync(stream.fileno())
    return rows


def _spooled(paths: Sequence[Path]) -> Iterator[pa.Table]:
    for path in paths:
        try:
            if not path.stat().st_size:
                continue
            stored = pa.memory_map(str(path))
        except FileNotFoundError as error:
            raise StateError(
                "The predictions of a rank were taken away while they were joined.",
                path=str(path.parent),
                expected="what stage_predictions left on that rank",
                found="none",
                remedy="Commit on one rank only.",
            ) from error
        with stored:
            while stored.tell() < stored.size():
                with ipc.open_stream(stored) as reader:
                    schema = reader.schema
                    yield schema.empty_table()
                    yield from (pa.Table.from_batches([batch], schema) for batch in reader)


def _share_folder(target: Path, rank: int, world_size: int) -> Path:
    return target.with_name(f"{target.name}.share-{rank:05d}-of-{world_size:05d}")


def _write_share(
    target: Path, job: StagingJob, tables: Iterable[pa.Table], rank: int, world_size: int
) -> StagedShare:
    share = _share_folder(target, rank, world_size)
    # Of an earlier run of this rank: were this one to die, it must not stand for it.
    cache.displace(share)
    with cache.staging_folder(share) as staging:
        rows = _spool(staging / "rows.arrow", tables)
        note = {
            "source": job.snapshot.as_dict(),
            "version_id": job.version_id,
            "rank": rank,
            "rows": rows,
            "class_names": {k: list(v) for k, v in (job.class_names or {}).items()},
            "sha256": cache.file_sha256(staging / "rows.arrow"),
        }
        cache.write_synced(staging / "share.json", json.dumps(note).encode())
        while not cache.publish(staging, share):
            cache.displace(share)
    return StagedShare(share, rank, world_size, rows)


def _check_share(share: Path, job: StagingJob, rank: int, world_size: int) -> dict[str, Any]:
    """What a rank noted about its predictions, once these are found whole and of this job."""
    try:
        note: dict[str, Any] = json.loads((share / "share.json").read_bytes())
        whole = note["sha256"] == cache.file_sha256(share / "rows.arrow")
        given = {name: note[name] for name in ("source", "version_id", "class_names")}
    except cache.UNFIT as error:
        raise StateError(
            f"The predictions of rank {rank} of {world_size} are not there.",
            path=str(share),
            expected="what stage_predictions left on that rank",
            found=f"{type(error).__name__}: {error}",
            remedy="Call stage_predictions on every rank, wait for all, then commit on one.",
        ) from error
    wanted = {"source": job.snapshot.as_dict(), "version_id": job.version_id}
    for name, what in (("source", "of another source"), ("version_id", "for another version_id")):
        if given[name] != wanted[name]:
            raise StateError(
                f"The predictions of rank {rank} were made {what}.",
                path=str(share),
                expected=wanted[name],
                found=given[name],
            )
    if not whole:
        raise StateError(
            f"The predictions of rank {rank} are damaged.",
            path=str(share),
            expected=f"SHA-256 {note['sha256']}",
            found="other bytes",
            remedy="Call stage_predictions on that rank again.",
        )
    return note
