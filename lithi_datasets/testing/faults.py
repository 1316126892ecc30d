"""A filesystem that fails as told, read through fsspec like any other.

    with fault_filesystem(folder, Fault("parts/*", "replace", nth=2, data=b"other")) as scene:
        bundle = open_bundle(scene.url)          # faults://scene-1
        …
    assert scene.opens["parts/part-00000.parquet"] == 1
    assert scene.touched == ["result-manifest.json", …]

The faults and the counts belong to the scene that the first segment of the URL names, not to the
filesystem object: which instance fsspec makes, caches or skips has no say. A scene lives in its own
process; a forked child works on a copy and counts for itself, a spawned one does not know it.
"""

from __future__ import annotations

import contextlib
import fnmatch
import io
import itertools
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import fsspec
from fsspec.spec import AbstractFileSystem

from lithi_datasets.errors import UsageError
from lithi_datasets.testing.folder import resolve

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

__all__ = ["Fault", "FaultFileSystem", "FaultScene", "fault_filesystem"]

Event: TypeAlias = Literal["open", "read", "info", "list", "create", "write", "remove"]
Action: TypeAlias = Literal["replace", "truncate", "shorten", "raise", "delay", "call"]

_ACTIONS: dict[str, frozenset[str]] = {
    "replace": frozenset({"open", "info"}),
    "truncate": frozenset({"open", "info"}),
    "shorten": frozenset({"open"}),
}
_ANYWHERE = frozenset({"open", "read", "info", "list", "create", "write", "remove"})
_SCENES: dict[str, FaultScene] = {}
_NUMBERS = itertools.count(1)


@dataclass(frozen=True)
class Fault:
    """What goes wrong, where and when. Where several faults fit, all act, in their order.

    Attributes:
        path: a glob over paths in the folder, such as `parts/*`; `*` crosses slashes, the folder
            itself is `""`.
        action: `replace`: serve `data` for that opening, its `size` being that of `data`; on
            `info`, state the size of `data`. `truncate`: the opening ends after `size` bytes while
            it still states the whole size; on `info`, state `size`. `shorten`: no read of that
            opening returns more than `size` bytes. `raise`: raise `error`. `delay`: sleep for
            `seconds` first. `call`: call `call` with the path first.
        on: the event: `open` (for reading), `read` (one call of a reading method), `info` (which
            `exists`, `isfile` and `size` ask too), `list` (of a folder), `create` (opening for
            writing), `write` (one call), `remove`.
        nth: which event of that kind on that path, from 1; counted over all openings of the path.
            `None`: each one.
        data: bytes for `replace`.
        size: bytes for `truncate` and `shorten`.
        error: exception for `raise`; by default an `OSError`.
        seconds: for `delay`.
        call: for `call`; it may change the files.

    Raises:
        UsageError: an action that the event does not have, or `nth`, `size`, `call` out of range.
    """

    path: str
    action: Action
    on: Event = "open"
    nth: int | None = None
    data: bytes = b""
    size: int = 0
    error: Exception | None = None
    seconds: float = 0.0
    call: Callable[[str], object] | None = None

    def __post_init__(self) -> None:
        if self.action not in (*_ACTIONS, "raise", "delay", "call"):
            raise UsageError("no such action of a fault", found=self.action)
        events = _ACTIONS.get(self.action, _ANYWHERE)
        if self.on not in events:
            expected = ", ".join(sorted(events))
            raise UsageError(f"no {self.action} on this event", expected=expected, found=self.on)
        if self.nth is not None and self.nth < 1:
            raise UsageError("events are counted from 1", found=self.nth)
        if self.size < (1 if self.action == "shorten" else 0):
            raise UsageError(f"too few bytes for {self.action}", found=self.size)
        if (self.call is None) == (self.action == "call"):
            raise UsageError("`call` belongs to the action call", found=self.action)


class FaultScene:
    """A folder seen through faults, and what was done to it.

    Attributes:
        url: `faults://<token>`, to open the folder by.
        opens, reads, infos, lists, creates, writes, removes: number of events by path in the
            folder.
        bytes_read: bytes handed out by path; `bytes_written`: taken in.
        events: all of them, in order, as (event, path).
    """

    def __init__(self, token: str, target: Any, root: str, *, sizes: bool = True) -> None:
        self.url = f"faults://{token}"
        self.sizes = sizes
        self._token = token
        self._target = target
        self._root = root
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Forget all events; `nth` counts from 1 again. The faults stay."""
        self.opens: Counter[str] = Counter()
        self.reads: Counter[str] = Counter()
        self.infos: Counter[str] = Counter()
        self.lists: Counter[str] = Counter()
        self.creates: Counter[str] = Counter()
        self.writes: Counter[str] = Counter()
        self.removes: Counter[str] = Counter()
        self.bytes_read: Counter[str] = Counter()
        self.bytes_written: Counter[str] = Counter()
        self.events: list[tuple[Event, str]] = []

    @property
    def touched(self) -> list[str]:
        """Each path that any event named, once, in order of the first."""
        return list(dict.fromkeys(path for _, path in self.events))

    def add(self, *faults: Fault) -> None:
        """Add faults; `nth` goes by the events counted so far."""
        self._faults.extend(faults)

    def _happens(self, event: Event, path: str) -> list[Fault]:
        """Count an event, act on it, and return the faults left to the caller."""
        counts: Counter[str] = getattr(self, f"{event}s")
        with self._lock:
            counts[path] += 1
            number = counts[path]
            self.events.append((event, path))
        left: list[Fault] = []
        for fault in tuple(self._faults):
            if fault.on != event or fault.nth not in (None, number):
                continue
            if fnmatch.fnmatchcase(path, fault.path):
                left.extend(_act(fault, path))
        return left

    def _moved(self, counts: Counter[str], path: str, size: int) -> None:
        """Add bytes to `bytes_read` or `bytes_written`."""
        with self._lock:
            counts[path] += size

    def _at(self, path: str) -> str:
        """The path in the filesystem behind."""
        return f"{self._root}/{path}" if path else self._root or "/"

    def _entry(self, found: dict[str, Any]) -> dict[str, Any]:
        """What the filesystem behind says of a file or folder, as this one says it."""
        inner = str(found["name"])[len(self._root) :].strip("/")
        entry = {**found, "name": f"{self._token}/{inner}".rstrip("/")}
        if not self.sizes:
            entry["size"] = None
        return entry


def _act(fault: Fault, path: str) -> list[Fault]:
    if fault.action == "raise":
        error = fault.error or OSError(f"fault injected on {fault.on} of {path!r}")
        raise error.with_traceback(None)
    if fault.action == "delay":
        time.sleep(fault.seconds)
    elif fault.call is not None:
        fault.call(path)
    else:
        return [fault]
    return []


@contextlib.contextmanager
def fault_filesystem(
    folder: str | os.PathLike[str], *faults: Fault, sizes: bool = True
) -> Iterator[FaultScene]:
    """Show a folder through faults, under a URL that lives as long as the block.

    Args:
        folder: a local folder, or a URL of any fsspec filesystem.
        faults: what goes wrong; none: everything is counted and nothing fails.
        sizes: `False`: neither listings nor open files state sizes, as over chunked HTTP.

    Yields:
        The scene: its `url` to open, its counts to look at, also after the block. After the block
        the URL is `FileNotFoundError`.
    """
    fsspec.register_implementation("faults", FaultFileSystem, clobber=True)
    target, root = resolve(folder)
    token = f"scene-{next(_NUMBERS)}"
    scene = FaultScene(token, target, root, sizes=sizes)
    scene.add(*faults)
    _SCENES[token] = scene
    try:
        yield scene
    finally:
        del _SCENES[token]


class FaultFileSystem(AbstractFileSystem):
    """The fsspec side of scenes: `faults://<token>/<path in the folder>`. It holds no state."""

    protocol = "faults"

    def info(self, path: str, **_kwargs: Any) -> dict[str, Any]:
        """Describe a file or folder; event `info`."""
        scene, inner = self._find(path)
        faults = scene._happens("info", inner)
        entry = scene._entry(scene._target.info(scene._at(inner)))
        for fault in faults:
            entry["size"] = len(fault.data) if fault.action == "replace" else fault.size
        return entry

    def ls(self, path: str, detail: bool = True, **_kwargs: Any) -> list[Any]:
        """List a folder; event `list`."""
        scene, inner = self._find(path)
        scene._happens("list", inner)
        found = [scene._entry(entry) for entry in scene._target.ls(scene._at(inner), detail=True)]
        return found if detail else [entry["name"] for entry in found]

    def mkdir(self, path: str, create_parents: bool = True, **_kwargs: Any) -> None:
        """Make a folder; no event."""
        scene, inner = self._find(path)
        scene._target.mkdir(scene._at(inner), create_parents=create_parents)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Make a folder and those above; no event."""
        scene, inner = self._find(path)
        scene._target.makedirs(scene._at(inner), exist_ok=exist_ok)

    def rmdir(self, path: str) -> None:
        """Remove an empty folder; event `remove`."""
        scene, inner = self._find(path)
        scene._happens("remove", inner)
        scene._target.rmdir(scene._at(inner))

    def _rm(self, path: str) -> None:
        scene, inner = self._find(path)
        scene._happens("remove", inner)
        at = scene._at(inner)
        if scene._target.isdir(at):  # A recursive rm() comes here with emptied folders too.
            scene._target.rmdir(at)
        else:
            scene._target.rm_file(at)

    def cp_file(self, path1: str, path2: str, **_kwargs: Any) -> None:
        """Copy a file, or make the folder that it is; events as for reading and writing it."""
        if self.isdir(path1):
            self.makedirs(path2, exist_ok=True)
            return
        with self.open(path1, "rb") as source, self.open(path2, "wb") as sink:
            sink.write(source.read())

    def _open(self, path: str, mode: str = "rb", **_kwargs: Any) -> io.RawIOBase:
        scene, inner = self._find(path)
        if mode == "rb":
            return _opened(scene, inner)
        if mode not in ("wb", "xb"):
            raise NotImplementedError(f"faults:// does not open files with mode {mode!r}")
        scene._happens("create", inner)
        return _WrittenFile(scene, inner, scene._target.open(scene._at(inner), mode))

    def _find(self, path: str) -> tuple[FaultScene, str]:
        token, _, inner = self._strip_protocol(path).partition("/")
        scene = _SCENES.get(token)
        if scene is None:
            raise FileNotFoundError(f"no scene {token!r} in this process; it ends with its block")
        return scene, inner


def _opened(scene: FaultScene, path: str) -> io.RawIOBase:
    faults = scene._happens("open", path)
    data, limit, longest = None, None, None
    for fault in faults:
        if fault.action == "replace":
            data = fault.data
        elif fault.action == "truncate":
            limit = fault.size
        else:
            longest = fault.size
    if data is not None:
        return _ReadFile(scene, path, io.BytesIO(data), len(data), limit=limit, longest=longest)
    at = scene._at(path)
    stream = scene._target.open(at, "rb")
    size = scene._target.info(at)["size"]
    return _ReadFile(scene, path, stream, size, limit=limit, longest=longest)


class _ReadFile(io.RawIOBase):
    def __init__(
        self,
        scene: FaultScene,
        path: str,
        stream: Any,
        size: int | None,
        *,
        limit: int | None,
        longest: int | None,
    ) -> None:
        self.path = path
        self.size = size if scene.sizes else None
        self._scene = scene
        self._stream = stream
        self._limit = limit
        self._longest = longest

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            return self.readall()
        self._scene._happens("read", self.path)
        return self._take(size if self._longest is None else min(size, self._longest))

    def readall(self) -> bytes:
        if self._longest is not None:
            return b"".join(iter(lambda: self.read(self._longest), b""))
        self._scene._happens("read", self.path)
        return self._take(-1)

    def readinto(self, target: Any, /) -> int:
        into = memoryview(target).cast("B")
        data = self.read(len(into))
        into[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        if whence == io.SEEK_END and self._limit is not None:
            end = self._stream.seek(0, io.SEEK_END)
            offset, whence = min(end, self._limit) + offset, io.SEEK_SET
        return int(self._stream.seek(offset, whence))

    def tell(self) -> int:
        return int(self._stream.tell())

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()

    def _take(self, size: int) -> bytes:
        if self._limit is not None:
            left = max(0, self._limit - self.tell())
            size = left if size < 0 else min(size, left)
        data = bytes(self._stream.read(size))
        self._scene._moved(self._scene.bytes_read, self.path, len(data))
        return data


class _WrittenFile(io.RawIOBase):
    def __init__(self, scene: FaultScene, path: str, stream: Any) -> None:
        self.path = path
        self._scene = scene
        self._stream = stream

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._scene._happens("write", self.path)
        size = int(self._stream.write(data))
        self._scene._moved(self._scene.bytes_written, self.path, size)
        return size

    def tell(self) -> int:
        return int(self._stream.tell())

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()
