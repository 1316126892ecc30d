"""Predictions → a new bundle, keyed by item id: parts first, manifest last, in place in one step.

Everything is written in a folder of this process beside the target and renamed, so a writer that is
killed leaves no bundle, or a whole one.
"""

from __future__ import annotations

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
from lithi_datasets.predictions import one_schema, prediction_tables
from lithi_datasets.staged_bundle import StagingJob, write_staged

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
            fixed-size list.
        source: the dataset or bundle whose items are predicted; each of its ids has to come once.
        version_id: identity of the new bundle.
        format: `parquet`, `arrow`, `jsonl` or `csv`.
        missing: `"outstanding"` makes a PARTIAL bundle that binds the list of the ids without a
            prediction; `"refuse"` names them.
        duplicates: `"deduplicate"` drops a repeated row that is equal, such as a sampler's padding;
            one that differs is refused all the same.
        part_bytes: size of a part, bytes in memory.
        class_names: column → names, for integer columns that are classes.
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
    target = _target(folder)
    job = _job(source, version_id, format, missing, duplicates, part_bytes, class_names, supersedes)
    tables = prediction_tables(predictions, job.item_id_field)
    if world_size == 1 and rank == 0:
        if job.duplicates == "refuse":
            return write_staged(target, job, lambda: one_schema(tables))
        with cache.staging_folder(target) as spool:
            _spool(spool / "rows.arrow", tables)
            return write_staged(target, job, lambda: _spooled([spool / "rows.arrow"]))
    from lithi_datasets.reading.plan import check_rank

    check_rank(rank, world_size)
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
        StateError: a share is missing, or was made of another source.
        UsageError: as `stage_predictions`; the shares stay where they are.
    """
    target = _target(folder)
    job = _job(source, version_id, format, missing, duplicates, part_bytes, class_names, supersedes)
    shares = [_share_folder(target, rank, world_size) for rank in range(world_size)]
    for rank, share in enumerate(shares):
        _check_share(share, job, rank, world_size)
    files = [share / "rows.arrow" for share in shares]
    bundle = write_staged(target, job, lambda: one_schema(_spooled(files)))
    for share in shares:
        cache.displace(share)
    return bundle


def _target(folder: str | os.PathLike[str]) -> Path:
    if "://" in os.fspath(folder):
        raise UsageError(
            "Predictions are staged in a local folder.",
            path=os.fspath(folder),
            expected="a path of this machine",
            remedy="Stage locally, then copy the folder, the manifest last.",
        )
    target = Path(folder).expanduser().absolute()
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
        if value not in known:
            raise UsageError(
                f"{name}= is unknown.", expected=" or ".join(map(repr, known)), found=repr(value)
            )
    if not isinstance(part_bytes, int) or part_bytes < 1:
        raise UsageError("part_bytes= is a size.", expected="at least 1", found=repr(part_bytes))
    suffix(format, None)
    older = None if supersedes is None else Snapshot.coerce(supersedes)
    return StagingJob(
        source, version_id, format, missing, duplicates, part_bytes, class_names, older
    )


def _spool(path: Path, tables: Iterable[pa.Table]) -> int:
    """Write tables aside, to be read more than once; returns the rows."""
    rows = 0
    with path.open("wb") as stream:
        writer = None
        for table in one_schema(tables):
            if writer is None:
                writer = ipc.new_stream(stream, table.schema)
            writer.write_table(table)
            rows += table.num_rows
        if writer is not None:
            writer.close()
        stream.flush()
        os.fsync(stream.fileno())
    return rows


def _spooled(paths: Sequence[Path]) -> Iterator[pa.Table]:
    for path in paths:
        if path.stat().st_size:
            with pa.memory_map(str(path)) as stored:
                yield from (pa.Table.from_batches([batch]) for batch in ipc.open_stream(stored))


def _share_folder(target: Path, rank: int, world_size: int) -> Path:
    return target.with_name(f"{target.name}.share-{rank:05d}-of-{world_size:05d}")


def _write_share(
    target: Path, job: StagingJob, tables: Iterable[pa.Table], rank: int, world_size: int
) -> StagedShare:
    share = _share_folder(target, rank, world_size)
    with cache.staging_folder(share) as staging:
        rows = _spool(staging / "rows.arrow", tables)
        note = {"source": job.snapshot.as_dict(), "rank": rank, "rows": rows}
        cache.write_synced(staging / "share.json", json.dumps(note).encode())
        while not cache.publish(staging, share):
            cache.displace(share)  # of an earlier run of this rank
    return StagedShare(share, rank, world_size, rows)


def _check_share(share: Path, job: StagingJob, rank: int, world_size: int) -> None:
    try:
        note = json.loads((share / "share.json").read_bytes())
    except (OSError, ValueError) as error:
        raise StateError(
            f"The predictions of rank {rank} of {world_size} are not there.",
            path=str(share),
            expected="what stage_predictions left on that rank",
            found=type(error).__name__,
            remedy="Call stage_predictions on every rank, wait for all, then commit on one.",
        ) from error
    if note.get("source") != job.snapshot.as_dict():
        raise StateError(
            f"The predictions of rank {rank} were made of another source.",
            path=str(share),
            expected=job.snapshot.as_dict(),
            found=note.get("source"),
        )
