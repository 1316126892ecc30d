"""A verified bundle → Arrow shards in a folder, atomically.

`convert_part` makes one shard of a run of parts; it is a pure function of its argument, so that any
`concurrent.futures.Executor` can run it. What spans parts (unique ids, whole-bundle statuses) is
checked here before the folder gets its final name; a refused bundle leaves nothing behind.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
from pyarrow import ipc

from lithi_datasets import cache, uniqueness
from lithi_datasets.audit import (
    add_statuses,
    check_attachments,
    check_status_totals,
    located_ids,
)
from lithi_datasets.bundle import Bundle
from lithi_datasets.cache import CacheEntry, EntryKey, Shard
from lithi_datasets.errors import StorageError, UsageError
from lithi_datasets.manifest import STATUSES
from lithi_datasets.selection import in_schema, keep_statuses, normal_statuses

__all__ = [
    "ConvertTask",
    "ShardResult",
    "cache_root",
    "convert",
    "convert_part",
    "convert_to",
    "entry_key",
]

SHARD_SOURCE_BYTES = 64 * 2**20
"""Parts are put into one shard until their stored size reaches this, bytes."""

BATCH_ROWS = 8192
BATCH_BYTES = 16 * 2**20
"""Small batches are joined up to these, so that later reads don't go row by row."""

CACHE_FOLDER = "lithi_bundle"


@dataclass(frozen=True)
class ConvertTask:
    """What one call of `convert_part` does.

    Attributes:
        bundle: the opened bundle.
        parts: indexes of the parts, consecutive and of one split.
        target: the shard to write; its ids' hashes go beside it.
        seed: seed of the id hashes.
    """

    bundle: Bundle
    parts: tuple[int, ...]
    target: Path
    seed: int

    @property
    def ids(self) -> Path:
        """File of the id hashes, raw little-endian uint64."""
        return self.target.with_name(self.target.name + ".ids")


@dataclass(frozen=True)
class ShardResult:
    """What `convert_part` wrote: the shard and its rows by status."""

    shard: Shard
    statuses: dict[str, int]


class _HashingFile:
    """A file that hashes what is written to it."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.digest = hashlib.sha256()
        self.closed = False

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return self._stream.write(data)

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        self.closed = True


def convert_part(task: ConvertTask) -> ShardResult:
    """Read, check and write the parts of one shard.

    Raises:
        BundleError: the rule that a part breaks, by name (spec, section 6).
        StorageError: the storage failed, or there is no room.
    """
    bundle = task.bundle
    totals = dict.fromkeys(STATUSES, 0)

    def batches() -> Iterator[pa.RecordBatch]:
        with task.ids.open("wb") as ids:
            for index in task.parts:
                for batch in bundle.scan_part(index):
                    add_statuses(totals, batch)
                    column = batch.column(bundle.item_id_field)
                    ids.write(uniqueness.hash_ids(column, task.seed).tobytes())
                    yield batch

    split = bundle.parts[task.parts[0]].split
    shard = write_shard(task.target, split, bundle.features.arrow_schema, batches())
    return ShardResult(shard, totals)


def write_shard(
    target: Path, split: str, arrow_schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> Shard:
    """Write batches as one Arrow IPC stream, hashed and synced.

    Raises:
        StorageError: there is no room, or the disk fails.
    """
    rows = 0
    try:
        with target.open("wb") as stream:
            sink = _HashingFile(stream)
            with ipc.new_stream(pa.PythonFile(sink, mode="w"), arrow_schema) as writer:
                for batch in _joined(batches, arrow_schema):
                    rows += batch.num_rows
                    writer.write_batch(batch)
            stream.flush()
            os.fsync(stream.fileno())
            status = os.fstat(stream.fileno())
    except OSError as error:
        if isinstance(error, (StorageError, ValueError)):
            raise
        raise StorageError(
            f"A converted shard could not be written: {error.strerror or error}",
            path=str(target.parent.parent),
            remedy="Make room there, or pass a cache_dir on another disk.",
        ) from error
    return Shard(
        name=target.name,
        split=split,
        rows=rows,
        bytes=status.st_size,
        sha256=sink.digest.hexdigest(),
        mtime_ns=status.st_mtime_ns,
        ctime_ns=status.st_ctime_ns,
    )


def _joined(batches: Iterable[pa.RecordBatch], arrow_schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    pending: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        plain = in_schema(batch, arrow_schema)
        if pending and (rows + plain.num_rows > BATCH_ROWS or size + plain.nbytes > BATCH_BYTES):
            yield _one(pending)
            pending, rows, size = [], 0, 0
        pending.append(plain)
        rows += plain.num_rows
        size += plain.nbytes
    if pending:
        yield _one(pending)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    table = pa.Table.from_batches(batches).combine_chunks()
    (batch,) = table.to_batches()
    return batch


def cache_root(cache_dir: str | os.PathLike[str] | None) -> Path:
    """The folder of all entries below a `datasets` cache folder.

    Raises:
        UsageError: the cache folder is a URL.
    """
    if cache_dir is None:
        import datasets.config

        cache_dir = datasets.config.HF_DATASETS_CACHE
    if "://" in os.fspath(cache_dir):
        raise UsageError(
            "The cache has to be on a disk of this machine: it is memory-mapped.",
            path=os.fspath(cache_dir),
            expected="a local folder as cache_dir",
        )
    return Path(cache_dir).expanduser().absolute() / CACHE_FOLDER


def entry_key(bundle: Bundle, statuses: tuple[str, ...] | None) -> EntryKey:
    """The key of the cached conversion of a bundle."""
    return EntryKey(bundle.snapshot.content_sha256, statuses)


def convert(
    bundle: Bundle,
    cache_dir: str | os.PathLike[str] | None = None,
    *,
    statuses: Iterable[str] | None = None,
    executor: Executor | None = None,
    num_proc: int | None = None,
    full_check: bool = False,
    rebuild: bool = False,
) -> CacheEntry:
    """Convert a bundle into the cache, where `load` finds it.

    Args:
        bundle: an opened bundle; another process's copy of the same bytes shares the entry.
        cache_dir: the `datasets` cache folder; None is the default one.
        statuses: keep only rows with these statuses.
        executor: runs `convert_part`; not shut down here. None uses `num_proc` threads.
        num_proc: how many parts are converted at a time; reading, hashing and decoding leave the
            interpreter lock, so these are threads.
        full_check: hash a cached entry before it is used, not only look at sizes and times.
        rebuild: convert again, whatever is cached.

    Raises:
        BundleError: the rule that the bundle breaks, by name; nothing is left in the cache.
        StorageError: the storage failed, or there is no room.
        UsageError: the call is wrong.
    """
    root = cache_root(cache_dir)
    kept = normal_statuses(statuses)
    run = _Run(bundle, executor, num_proc, full_check, rebuild)
    whole = _entry_at(root, None, run, lambda folder: _write_whole(folder, run))
    if kept is None:
        return whole
    return _entry_at(root, kept, run, lambda folder: _write_filtered(folder, whole, kept, run))


def convert_to(
    folder: str | os.PathLike[str],
    entry: CacheEntry,
    arrow_schema: pa.Schema,
    files: Mapping[str, bytes],
) -> CacheEntry:
    """Write an entry once more into a folder of the caller's, with the columns of `arrow_schema`.

    Args:
        folder: new or empty, or holding what this function wrote for the same entry and columns.
        entry: a conversion.
        arrow_schema: the columns to keep.
        files: small files to write beside the shards.

    Raises:
        UsageError: the folder holds anything else; nothing of it was touched.
        StorageError: there is no room.
    """
    target = Path(folder).expanduser().absolute()
    columns = tuple(arrow_schema.names)
    key = replace(entry.key, columns=columns)
    with suppress(*cache.UNFIT):
        return cache.check_entry(target, key)
    cache.refuse_foreign(target)
    with cache.staging_folder(target) as staging:
        shards = tuple(
            write_shard(
                staging / shard.name,
                shard.split,
                arrow_schema,
                (batch.select(columns) for batch in _stored(entry, shard)),
            )
            for shard in entry.shards
        )
        copy = replace(entry, folder=staging, shards=shards, key=key)
        for name, data in files.items():
            cache.write_synced(staging / name, data)
        cache.record_entry(copy)
        if not cache.publish(staging, target):
            cache.refuse_foreign(target)
    return replace(copy, folder=target)


def _stored(entry: CacheEntry, shard: Shard) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(str(entry.folder / shard.name)) as source:
        yield from ipc.open_stream(source)


@dataclass(frozen=True)
class _Run:
    bundle: Bundle
    executor: Executor | None
    num_proc: int | None
    full_check: bool = False
    rebuild: bool = False


def _entry_at(
    root: Path,
    statuses: tuple[str, ...] | None,
    run: _Run,
    write: Callable[[Path], CacheEntry],
) -> CacheEntry:
    key = entry_key(run.bundle, statuses)
    target = root / key.folder_name
    if not run.rebuild:
        entry = cache.read_entry(target, key, full=run.full_check)
        if entry is not None:
            return entry
    with cache.staging_folder(target) as staging:
        entry = write(staging)
        while not cache.publish(staging, target):
            # Another process was first; its entry serves unless it is the damaged one.
            with suppress(*cache.UNFIT):
                if not run.rebuild:
                    return cache.check_entry(target, key, full=run.full_check)
            cache.displace(target)
    return replace(entry, folder=target)


def _write_whole(folder: Path, run: _Run) -> CacheEntry:
    bundle = run.bundle
    seed = uniqueness.new_seed()
    groups = list(_groups(bundle))
    tasks = [
        ConvertTask(
            bundle,
            parts,
            folder / f"{CACHE_FOLDER}-{split}-{n:05d}-of-{len(groups):05d}.arrow",
            seed,
        )
        for n, (split, parts) in enumerate(groups)
    ]
    results = _run_tasks(tasks, run)
    splits = {split: dict.fromkeys(STATUSES, 0) for split in bundle.splits}
    for result in results:
        for status in STATUSES:
            splits[result.shard.split][status] += result.statuses[status]
    totals = {status: sum(counts[status] for counts in splits.values()) for status in STATUSES}
    check_status_totals(bundle.manifest, totals)
    _check_ids(bundle, tasks, folder / "outstanding.ids", seed)
    shards = tuple(result.shard for result in results)
    entry = CacheEntry(folder, entry_key(bundle, None), shards, splits)
    cache.record_entry(entry)
    return entry


def _check_ids(bundle: Bundle, tasks: Sequence[ConvertTask], outstanding: Path, seed: int) -> None:
    """Refuse an id that stands twice, in the rows or in the list of outstanding items."""
    with outstanding.open("wb") as sink:
        for ids in check_attachments(bundle.location, bundle.manifest):
            sink.write(uniqueness.hash_ids(ids, seed).tobytes())
    files = [*(task.ids for task in tasks), outstanding]
    suspects = uniqueness.duplicate_hashes(files)
    uniqueness.refuse_duplicates(
        suspects, seed, lambda: located_ids(bundle.location, bundle.manifest, bundle.rules)
    )
    for file in files:
        file.unlink()


def _groups(bundle: Bundle) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Runs of parts that become one shard each: of one split, in row order, without empty parts.

    They depend on the manifest alone, so that an entry is the same for any number of workers.
    """
    for split, indexes in bundle.splits.items():
        group: list[int] = []
        size = 0
        for index in indexes:
            part = bundle.parts[index]
            if group and size + part.bytes > SHARD_SOURCE_BYTES:
                yield split, tuple(group)
                group, size = [], 0
            group.append(index)
            size += part.bytes
        if group:
            yield split, tuple(group)


def _run_tasks(tasks: Sequence[ConvertTask], run: _Run) -> list[ShardResult]:
    workers = 1 if run.num_proc is None else run.num_proc
    if not isinstance(workers, int) or workers < 1:
        raise UsageError("num_proc is a number of workers.", expected="at least 1", found=workers)
    if run.executor is None and min(workers, len(tasks)) < 2:
        return [convert_part(task) for task in tasks]
    given = run.executor
    with nullcontext(given) if given is not None else ThreadPoolExecutor(workers) as executor:
        futures = [executor.submit(convert_part, task) for task in tasks]
        try:
            return [future.result() for future in futures]
        finally:
            # After a refusal the rest must not write into a folder that is being removed.
            for future in futures:
                future.cancel()
            for future in futures:
                if not future.cancelled():
                    future.exception()


def _write_filtered(
    folder: Path, whole: CacheEntry, statuses: tuple[str, ...], run: _Run
) -> CacheEntry:
    """Make an entry with some statuses only from the whole one: contiguous rows read fast."""
    schema = run.bundle.features.arrow_schema
    shards = tuple(
        write_shard(
            folder / shard.name,
            shard.split,
            schema,
            (keep_statuses(batch, statuses) for batch in _stored(whole, shard)),
        )
        for shard in whole.shards
    )
    splits = {
        split: {status: count if status in statuses else 0 for status, count in counts.items()}
        for split, counts in whole.splits.items()
    }
    entry = CacheEntry(folder, replace(whole.key, statuses=statuses), shards, splits)
    cache.record_entry(entry)
    return entry
