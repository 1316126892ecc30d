"""The one verified reader: every row that leaves the package came through here.

The rules, in the order in which they are applied to a bound file:

1. its size is what the manifest says (`FileSizeMismatch`), nothing longer is read;
2. the bytes are read once, into private memory or an unlinked temporary file;
3. their SHA-256 is what the manifest says (`FileDigestMismatch`);
4. those bytes, never the path again, are decoded, converted exactly and checked row by row;
5. rows and statuses add up to what the manifest says of the part.

`scan_part` yields while it checks, for callers that can throw away what they made (conversion,
`verify`); `read_part` yields the first row after the last one was checked, for callers that can't
(streams).
"""

from __future__ import annotations

import hashlib
import io
import mmap
import tempfile
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, BinaryIO, cast

import pyarrow as pa

from lithi_datasets import schema
from lithi_datasets.checks import RowChecker
from lithi_datasets.errors import (
    FileDigestMismatch,
    FileSizeMismatch,
    RowCountMismatch,
    StatusCountMismatch,
    StorageError,
)
from lithi_datasets.formats import ReadRequest, reader_for
from lithi_datasets.formats.memory import beyond_memory
from lithi_datasets.manifest import STATUSES, Attachment, Part

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithi_datasets.storage import Location, OpenedFile
    from lithi_datasets.types import Field

__all__ = ["PartRules", "PrivateBytes", "fetch", "read_part", "scan_part"]

MEMORY_CAP_BYTES = 256 * 2**20
"""Files up to this size are held in memory, larger ones in an unlinked temporary file."""

RETAINED_CAP_BYTES = 256 * 2**20
"""Decoded batches up to this size are kept between check and delivery, larger parts decoded
again."""

_CHUNK_BYTES = 8 * 2**20


@dataclass(frozen=True)
class PartRules:
    """What the manifest says of the rows of every part.

    Attributes:
        fields: the declared fields, in column order.
        item_id_field: name of the id column.
    """

    fields: tuple[Field, ...]
    item_id_field: str

    @cached_property
    def declared(self) -> pa.Schema:
        """The declared Arrow schema, which a format reader has to deliver."""
        return schema.declared_schema(self.fields)


class PrivateBytes:
    """Verified bytes that nobody else can change; a `formats.PartSource`."""

    def __init__(self, content: bytes | mmap.mmap) -> None:
        self._content = content

    @property
    def size(self) -> int:
        """Length in bytes."""
        return len(self._content)

    def arrow(self) -> pa.NativeFile:
        """A fresh random-access reader that copies nothing."""
        return pa.BufferReader(pa.py_buffer(self._content))

    def stream(self) -> BinaryIO:
        """A fresh buffered binary stream that copies no more than its buffer."""
        if isinstance(self._content, bytes):
            return io.BytesIO(self._content)  # shares the bytes until somebody writes
        return cast("BinaryIO", io.BufferedReader(_MappedBytes(self._content), 2**20))


class _MappedBytes(io.RawIOBase):
    """A position of its own over a shared mapping."""

    def __init__(self, content: mmap.mmap) -> None:
        self._view = memoryview(content)
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, target: object, /) -> int:
        into = memoryview(target).cast("B")  # type: ignore[arg-type]
        piece = self._view[self._position : self._position + len(into)]
        into[: len(piece)] = piece
        self._position += len(piece)
        return len(piece)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: len(self._view)}[whence]
        self._position = max(0, start + offset)
        return self._position


def fetch(location: Location, bound: Part | Attachment) -> PrivateBytes:
    """Read one bound file once and verify it.

    Raises:
        FileMissing: it is not there, or no regular file.
        FileSizeMismatch: it has another size than the manifest says.
        FileDigestMismatch: it has another SHA-256 than the manifest says.
        StorageError: the storage failed, or there is no room for the temporary file.
    """
    with location.open(bound.path) as opened:
        if opened.size is not None and opened.size != bound.bytes:
            raise _wrong_size(location, bound, f"{opened.size} bytes")
        digest = hashlib.sha256()
        if bound.bytes <= MEMORY_CAP_BYTES:
            content: bytes | mmap.mmap = _into_memory(opened, bound.bytes)
            digest.update(content)
            length = len(content)
        else:
            content, length = _into_file(opened, bound.bytes, digest)
        if length < bound.bytes:
            raise _wrong_size(location, bound, f"{length} bytes")
        if opened.stream.read(1):
            raise _wrong_size(location, bound, f"more than {bound.bytes} bytes")
    if digest.hexdigest() != bound.sha256:
        raise FileDigestMismatch(
            "A file of the bundle is not the one that its manifest binds.",
            path=location.join(bound.path),
            expected=f"SHA-256 {bound.sha256}",
            found=digest.hexdigest(),
        )
    return PrivateBytes(content)


def _into_memory(opened: OpenedFile, size: int) -> bytes:
    pieces: list[bytes] = []
    left = size
    while left and (piece := opened.stream.read(left)):
        pieces.append(piece)
        left -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _into_file(
    opened: OpenedFile, size: int, digest: hashlib._Hash
) -> tuple[bytes | mmap.mmap, int]:
    length = 0
    try:
        with tempfile.TemporaryFile() as private:
            while length < size and (piece := opened.stream.read(min(_CHUNK_BYTES, size - length))):
                digest.update(piece)
                private.write(piece)
                length += len(piece)
            private.flush()
            # The mapping keeps the unlinked file alive; it is private to this process.
            return (
                mmap.mmap(private.fileno(), length, access=mmap.ACCESS_READ) if length else b""
            ), length
    except OSError as error:
        raise StorageError(
            f"No private copy of a large file could be made: {error}",
            path=tempfile.gettempdir(),
            expected=f"room for {size} bytes",
            remedy="Make room, or point TMPDIR at a folder with more.",
        ) from error


def _wrong_size(location: Location, bound: Part | Attachment, found: str) -> FileSizeMismatch:
    return FileSizeMismatch(
        "A file of the bundle has not the size that its manifest binds.",
        path=location.join(bound.path),
        expected=f"{bound.bytes} bytes",
        found=found,
    )


def scan_part(
    location: Location, part: Part, rules: PartRules, *, batch_rows: int = 8192
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part while they are checked.

    Batches have the types of `schema.output_schema`, in the manifest's column order, each of at
    most `batch_rows` rows. A caller has to discard what it made of them where a later one is
    refused.

    Raises:
        BundleError: the rule that the part breaks, by name (spec, section 6).
        StorageError: the storage failed.
    """
    return _decode(fetch(location, part), part, rules, batch_rows)


def read_part(
    location: Location, part: Part, rules: PartRules, *, batch_rows: int = 8192
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part after all of it was checked (spec, section 4).

    Raises what `scan_part` raises, all of it before the first row. Memory is bounded by the stored
    part and `RETAINED_CAP_BYTES`: a part that decodes to more is decoded a second time, from the
    same private bytes.
    """
    source = fetch(location, part)
    batches: list[pa.RecordBatch] | None = []
    retained = 0
    for batch in _decode(source, part, rules, batch_rows):
        retained += batch.nbytes
        if batches is None or retained > RETAINED_CAP_BYTES:
            batches = None
        else:
            batches.append(batch)
    yield from batches if batches is not None else _decode(source, part, rules, batch_rows)


def _decode(
    source: PrivateBytes, part: Part, rules: PartRules, batch_rows: int
) -> Iterator[pa.RecordBatch]:
    request = ReadRequest(
        fields=rules.fields,
        declared=rules.declared,
        path=part.path,
        compression=part.compression,
        batch_rows=batch_rows,
    )
    try:
        yield from _checked(source, part, rules, request)
    except MemoryError as error:
        raise beyond_memory(part.path) from error


def _checked(
    source: PrivateBytes, part: Part, rules: PartRules, request: ReadRequest
) -> Iterator[pa.RecordBatch]:
    checker = RowChecker(rules.fields, rules.item_id_field, part.path)
    for batch in reader_for(part.format)(source, request):
        checked = checker.check(batch)
        if checker.rows > part.rows:
            raise _wrong_rows(part, f"at least {checker.rows} rows")
        if checked.num_rows:
            yield checked
    if checker.rows != part.rows:
        raise _wrong_rows(part, f"{checker.rows} rows")
    stated = part.status_counts
    if stated is not None:
        expected = {status: getattr(stated, status) for status in STATUSES}
        if expected != checker.statuses:
            raise StatusCountMismatch(
                "The statuses in a part are not those that the manifest counts.",
                path=part.path,
                expected=expected,
                found=checker.statuses,
            )


def _wrong_rows(part: Part, found: str) -> RowCountMismatch:
    return RowCountMismatch(
        "A part does not hold the rows that the manifest counts.",
        path=part.path,
        expected=f"{part.rows} rows",
        found=found,
    )
