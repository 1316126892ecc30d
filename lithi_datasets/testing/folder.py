"""A folder to write a bundle into: a local one, or any fsspec URL."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from lithi_datasets.errors import UsageError

__all__ = ["Folder", "resolve"]


def resolve(folder: str | os.PathLike[str]) -> tuple[Any, str]:
    """Return the fsspec filesystem and the root path of a local folder or URL.

    A local path is never parsed, so that `[`, `*` and `::` in it stay what they are.
    """
    name = os.fspath(folder)
    if "://" in name:
        fs, root = fsspec.core.url_to_fs(name)
        return fs, str(root).rstrip("/")
    return LocalFileSystem(), str(Path(name).absolute())


class Folder:
    """Writes and reads files below one folder, and never outside it.

    Args:
        folder: a local path or an fsspec URL; it is made when the first file is written.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._fs, self._root = resolve(folder)
        self._local = isinstance(self._fs, LocalFileSystem)

    def exists(self, path: str) -> bool:
        """Tell whether a file is there."""
        return bool(self._fs.exists(self._at(path)))

    def read(self, path: str) -> bytes:
        """Return a whole file; `FileNotFoundError` where there is none."""
        return bytes(self._fs.cat_file(self._at(path)))

    def write(self, path: str, data: bytes) -> None:
        """Write a file at once: a local reader sees the old bytes, no file, or all the new ones."""
        at = self._at(path)
        self._fs.makedirs(at.rpartition("/")[0], exist_ok=True)
        if not self._local:
            self._fs.pipe_file(at, data)
            return
        part = Path(at + ".writing")
        part.write_bytes(data)
        part.replace(at)

    def remove(self, path: str) -> None:
        """Remove a file that is there."""
        self._fs.rm_file(self._at(path))

    def _at(self, path: str) -> str:
        segments = path.split("/")
        unsafe = {"", ".", ".."}.intersection(segments) or {"\\", "\0", ":"}.intersection(path)
        if unsafe or PurePosixPath(path).is_absolute():
            raise UsageError(
                "the writer writes below its folder alone",
                path=path,
                remedy="Write the file under a plain path and put this one in with `mutate`.",
            )
        return f"{self._root}/{path}"
