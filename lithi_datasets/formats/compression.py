"""A stored text part as a stream of text bytes: gzip and zstd, decoded a little at a time.

Whatever the ratio of a compressed file, at most `CHUNK_BYTES` of its text exist at once. A stream
of several gzip members or zstd frames is one text; skippable zstd frames are skipped.

gzip is the standard library's zlib, told to admit nothing but gzip: pyarrow's gzip stream takes a
zlib stream as well. zstd is pyarrow's: it says when a frame is cut short, while `zstandard`'s
stream reader ends there without a word, and it is a dependency already. Both refuse bytes after the
last frame. zstd's own limit on the window (128 MiB) bounds what one frame may ask for.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO, Final

import pyarrow as pa

from lithi_datasets.errors import PartDecodeError, UsageError

if TYPE_CHECKING:
    from lithi_datasets.formats import PartSource

__all__ = ["CHUNK_BYTES", "text_chunks"]

CHUNK_BYTES: Final = 2**20
"""The most bytes of decoded text in one chunk."""

_STORED_BYTES: Final = 2**15
"""Bytes of a gzip file read at once; small, because zlib copies what is left of it at each step."""

_GZIP_ONLY: Final = 31


def text_chunks(source: PartSource, *, compression: str | None, path: str) -> Iterator[bytes]:
    """Yield the decoded bytes of a part in order, at most `CHUNK_BYTES` at a time, none empty.

    Args:
        source: the stored bytes of the part.
        compression: `"gzip"`, `"zstd"` or None (spec, section 1).
        path: the part's path in the manifest, for messages.

    Raises:
        PartDecodeError: the stream is broken, cut short, followed by something else, or not there.
        UsageError: there is no such compression; `Manifest.parse` admits none of these.
    """
    if compression is None:
        return _plain(source)
    if compression == "gzip":
        return _gzip(source, path)
    if compression == "zstd":
        return _zstd(source, path)
    raise UsageError(
        "there is no decoder for this compression", expected="gzip, zstd", found=repr(compression)
    )


def _plain(source: PartSource) -> Iterator[bytes]:
    with source.stream() as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def _gzip(source: PartSource, path: str) -> Iterator[bytes]:
    stored = b""
    members = 0
    with source.stream() as file:
        while stored := stored or file.read(_STORED_BYTES):
            member = zlib.decompressobj(wbits=_GZIP_ONLY)
            members += 1
            try:
                yield from _gzip_member(member, stored, file)
            except zlib.error as error:
                raise _broken(path, "gzip", f"member {members}: {error}") from error
            if not member.eof:
                raise _broken(path, "gzip", f"the file ends inside member {members}")
            stored = member.unused_data
    if not members:
        raise _broken(path, "gzip", "the file is empty")


def _gzip_member(member: zlib._Decompress, stored: bytes, file: BinaryIO) -> Iterator[bytes]:
    """Yield the text of one member, until its end or the end of the file."""
    while not member.eof:
        text = member.decompress(stored, CHUNK_BYTES)
        if text:
            yield text
        stored = member.unconsumed_tail
        if not stored and not member.eof:
            stored = file.read(_STORED_BYTES)
            # Without input zlib still gives what it holds back, and nothing once that is all.
            if not stored and not text:
                return


def _zstd(source: PartSource, path: str) -> Iterator[bytes]:
    if source.size == 0:
        raise _broken(path, "zstd", "the file is empty")
    try:
        with source.arrow() as file, pa.CompressedInputStream(file, "zstd") as stream:
            while chunk := stream.read(CHUNK_BYTES):
                yield chunk
    except (OSError, pa.ArrowException) as error:
        raise _broken(path, "zstd", str(error)) from error


def _broken(path: str, kind: str, found: str) -> PartDecodeError:
    return PartDecodeError(f"A part does not decode as {kind}.", path=path, found=found)
