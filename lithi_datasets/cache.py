"""A folder of converted Arrow shards: its record, its checks, and how it comes to be there at once.

An entry is written in a folder of its own beside the target, synced, and renamed into place: no
reader ever sees half of one, and no lock is needed (locks are no-ops on some network filesystems).
Whoever renames second finds a whole entry and uses that.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import socket
import time
import uuid
import warnings
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from lithi_datasets.errors import StorageError, UsageError
from lithi_datasets.manifest import STATUSES
from lithi_datasets.strict_json import canonical

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = [
    "CacheEntry",
    "EntryKey",
    "Shard",
    "check_entry",
    "displace",
    "publish",
    "read_entry",
    "record_entry",
    "refuse_foreign",
    "staging_folder",
]

RECORD_NAME = "lithi-cache.json"
ENTRY_FORMAT = 1
"""Raised whenever the bytes of an entry, or what its rows mean, change."""

UNFIT = (OSError, ValueError, KeyError, TypeError)
"""What reading an entry raises where it is damaged, in whatever way."""

_STALE_SECONDS = 3600.0


@dataclass(frozen=True)
class Shard:
    """One Arrow IPC stream file.

    Attributes:
        name: file name in the entry.
        split: the split that its rows belong to.
        rows: number of rows.
        bytes: size of the file.
        sha256: SHA-256 of the file, lower-case hex.
        mtime_ns: modification time when it was written, ns.
        ctime_ns: change time when it was written, ns.
    """

    name: str
    split: str
    rows: int
    bytes: int
    sha256: str
    mtime_ns: int
    ctime_ns: int


@dataclass(frozen=True)
class EntryKey:
    """What the rows of an entry depend on, and nothing else.

    Attributes:
        content_sha256: the bundle that it is made of.
        statuses: the statuses that are kept, sorted; None for all rows.
        columns: the columns that are kept; None for all.
    """

    content_sha256: str
    statuses: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None

    @property
    def folder_name(self) -> str:
        """The name of the entry's folder in the cache, which holds whole rows only."""
        view = "all" if self.statuses is None else "+".join(self.statuses)
        return f"{self.content_sha256}-{view}-{ENTRY_FORMAT}"


@dataclass(frozen=True)
class CacheEntry:
    """A whole conversion.

    Attributes:
        folder: where it is.
        key: what its rows depend on.
        shards: the files, in row order.
        splits: split name → rows by status, in the order of the bundle.
    """

    folder: Path
    key: EntryKey
    shards: tuple[Shard, ...]
    splits: dict[str, dict[str, int]]

    def rows(self, split: str) -> int:
        """The number of rows of a split."""
        return sum(self.splits[split].values())


def record_entry(entry: CacheEntry) -> None:
    """Write the record of an entry, sealed with its own digest, and sync the folder."""
    record = {
        "format": ENTRY_FORMAT,
        **asdict(entry.key),
        # Times in ns pass 2^53, so they are kept as text.
        "shards": [
            {**asdict(s), "mtime_ns": str(s.mtime_ns), "ctime_ns": str(s.ctime_ns)}
            for s in entry.shards
        ],
        "splits": [[name, counts] for name, counts in entry.splits.items()],
    }
    sealed = {"record": record, "sha256": hashlib.sha256(canonical(record)).hexdigest()}
    write_synced(entry.folder / RECORD_NAME, json.dumps(sealed, indent=1).encode())
    sync_folder(entry.folder)


def read_entry(folder: Path, key: EntryKey, *, full: bool = False) -> CacheEntry | None:
    """The entry in `folder`, or None where there is none that can be served.

    A shard whose size and times are those recorded is trusted, another one is hashed; `full` hashes
    all. A damaged entry is reported with a `UserWarning` and never served.
    """
    if not folder.is_dir() or not any(folder.iterdir()):
        return None
    try:
        return check_entry(folder, key, full=full)
    except UNFIT as error:
        warnings.warn(
            f"The cached conversion in {folder} is damaged ({error}); it is made again.",
            UserWarning,
            stacklevel=2,
        )
        return None


def check_entry(folder: Path, key: EntryKey, *, full: bool = False) -> CacheEntry:
    """The entry in `folder`, checked as `read_entry` says.

    Raises:
        One of `UNFIT`: what is there is not a whole entry for `key`.
    """
    entry = _parse_record(folder)
    if entry.key != key:
        raise ValueError("it was made of another bundle or view")
    for shard in entry.shards:
        if not _intact(folder, shard, full):
            raise ValueError(f"{shard.name} is not the file that was written")
    return entry


def _parse_record(folder: Path) -> CacheEntry:
    sealed = json.loads((folder / RECORD_NAME).read_bytes())
    record: dict[str, Any] = sealed["record"]
    if hashlib.sha256(canonical(record)).hexdigest() != sealed["sha256"]:
        raise ValueError("its record was changed")
    if record["format"] != ENTRY_FORMAT:
        raise ValueError(f"its record is in format {record['format']!r}")
    shards = tuple(
        Shard(**{**s, "mtime_ns": int(s["mtime_ns"]), "ctime_ns": int(s["ctime_ns"])})
        for s in record["shards"]
    )
    splits = {name: {s: counts[s] for s in STATUSES} for name, counts in record["splits"]}
    statuses, columns = (
        None if record[name] is None else tuple(record[name]) for name in ("statuses", "columns")
    )
    key = EntryKey(record["content_sha256"], statuses, columns)
    return CacheEntry(folder, key, shards, splits)


def _intact(folder: Path, shard: Shard, full: bool) -> bool:
    path = folder / shard.name
    status = path.stat()
    if status.st_size != shard.bytes:
        return False
    if (status.st_mtime_ns, status.st_ctime_ns) == (shard.mtime_ns, shard.ctime_ns) and not full:
        return True
    return file_sha256(path) == shard.sha256


def file_sha256(path: Path) -> str:
    """SHA-256 of a local file, lower-case hex."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(8 * 2**20):
            digest.update(piece)
    return digest.hexdigest()


@contextlib.contextmanager
def staging_folder(target: Path) -> Iterator[Path]:
    """A folder of this process alone beside `target`; removed on the way out, whatever happened.

    Raises:
        StorageError: it cannot be made or written.
    """
    prefix = f".lithi-tmp-{socket.gethostname()}-"
    staging = target.parent / f"{prefix}{os.getpid()}-{uuid.uuid4().hex[:12]}"
    try:
        staging.mkdir(parents=True)
        _sweep(target.parent, prefix)
        yield staging
    except OSError as error:
        if isinstance(error, StorageError) or not _is_ours(error, staging):
            raise
        raise StorageError(
            f"The converted rows could not be written: {error.strerror or error}",
            path=str(target.parent),
            remedy="Make room there, or pass a cache_dir on another disk.",
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _is_ours(error: OSError, staging: Path) -> bool:
    named = str(error.filename or "")
    return error.errno in (errno.ENOSPC, errno.EDQUOT) or named.startswith(str(staging.parent))


def _sweep(parent: Path, prefix: str) -> None:
    """Remove what killed processes of this host left behind more than an hour ago."""
    for left in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError, ValueError):
            owner = int(left.name[len(prefix) :].split("-", 1)[0])
            if time.time() - left.stat().st_mtime > _STALE_SECONDS and not _alive(owner):
                shutil.rmtree(left, ignore_errors=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def publish(staging: Path, target: Path) -> bool:
    """Rename a finished folder into place; False where another one stands there already.

    An empty folder at `target` is replaced.
    """
    try:
        staging.rename(target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            return False
        raise
    sync_folder(target.parent)
    return True


def displace(target: Path) -> None:
    """Take a damaged entry out of the way in one step, then remove it."""
    aside = target.parent / (
        f".lithi-tmp-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:12]}"
    )
    with contextlib.suppress(FileNotFoundError):
        target.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)


def refuse_foreign(target: Path) -> None:
    """Refuse a folder that holds anything which is not an entry of ours.

    Raises:
        UsageError: naming what stands there; nothing was changed.
    """
    if target.exists() and not target.is_dir():
        raise UsageError(
            "The output folder is a file.", path=str(target), expected="a new or empty folder"
        )
    names = sorted(path.name for path in target.iterdir()) if target.is_dir() else []
    if names:
        shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
        raise UsageError(
            "The output folder holds files already; nothing of it was touched.",
            path=str(target),
            expected="a new or empty folder",
            found=shown,
            remedy="Choose another output_dir.",
        )


def write_synced(path: Path, data: bytes) -> None:
    """Write a small file and sync it."""
    with path.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder, where the platform can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
