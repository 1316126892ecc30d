"""Arrow parts: an IPC file where the magic bytes say so, else an IPC stream.

Buffers are not copied where they are not compressed. Compressed ones (LZ4, Zstandard) are inflated
a record batch at a time, to the size that each buffer claims for itself; before Arrow allocates it,
the claims of a batch are added up and held against `MIN_INFLATED_BYTES` and `MAX_INFLATION`.

A stream may end without its end-of-stream marker, which Arrow leaves to the writer; one that was
cut between two messages is found by its row count. Cut inside a message, or followed by anything,
it does not decode. Extension types and every metadata are ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from lithi_datasets.errors import PartDecodeError
from lithi_datasets.formats.physical import declared_batches, decoding

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from lithi_datasets.formats import PartSource, ReadRequest

__all__ = ["MAX_INFLATION", "MIN_INFLATED_BYTES", "read"]

MIN_INFLATED_BYTES: Final = 2**30
"""A record batch that claims no more bytes than this is inflated, however small the file is."""

MAX_INFLATION: Final = 100
"""Beyond that a record batch may claim at most so many times the bytes of the whole file."""

# Zstandard's densest block: four bytes for 128 KiB. LZ4 stays far below.
_MOST_BUFFER_INFLATION: Final = 2**15

_MAGIC: Final = b"ARROW1"
# What follows is laid out in Arrow's format/Message.fbs and format/File.fbs: the number of each
# member in its FlatBuffers table, and the layout of the structs in their vectors.
_MESSAGE_HEADER: Final = 2
_DICTIONARY_DATA: Final = 1
_BATCH_BUFFERS: Final = 2
_BATCH_COMPRESSION: Final = 3
_FOOTER_DICTIONARIES: Final = 2
_FOOTER_BATCHES: Final = 3
_BUFFER: Final = np.dtype([("offset", "<i8"), ("length", "<i8")])
_BLOCK: Final = np.dtype([("offset", "<i8"), ("metadata", "<i4"), ("", "<i4"), ("body", "<i8")])
# How files of 2020 said it, before there was a member for it; Arrow still reads them.
_EARLY_COMPRESSION: Final = b"ARROW:experimental_compression"


def read(source: PartSource, request: ReadRequest) -> Iterator[pa.RecordBatch]:
    """Yield the rows of an IPC file or stream; see `lithi_datasets.formats.Reader`."""
    with decoding(request.path):
        magic = source.arrow().read(len(_MAGIC))
        if magic == _MAGIC:
            reader = pa.ipc.open_file(source.arrow(), options=_options())
            batches = _file_batches(reader, source, request.path)
        else:
            reader = pa.ipc.open_stream(source.arrow(), options=_options())
            batches = _stream_batches(reader, source, request.path)
        schema = reader.schema
    yield from declared_batches(schema, batches, request)


def _file_batches(
    reader: pa.ipc.RecordBatchFileReader, source: PartSource, path: str
) -> Iterator[pa.RecordBatch]:
    dictionaries, batches = _blocks(source)
    bytes_ = source.arrow()
    for start in dictionaries:
        # Arrow reads all of them before the first batch.
        _check_claims(_message_at(bytes_, start), source.size, path)
    for index, start in enumerate(batches):
        _check_claims(_message_at(bytes_, start), source.size, path)
        yield reader.get_batch(index)


def _stream_batches(
    reader: pa.ipc.RecordBatchStreamReader, source: PartSource, path: str
) -> Iterator[pa.RecordBatch]:
    bytes_ = source.arrow()
    messages = pa.ipc.MessageReader.open_stream(bytes_)
    while True:
        for message in messages:
            _check_claims(message, source.size, path)
            if message.type == "record batch":
                break
        batch = next(reader, None)
        if batch is None:
            break
        yield batch
    if bytes_.tell() != source.size:
        left = source.size - bytes_.tell()
        raise ValueError(f"{left} bytes stand behind the end of the stream")


def _options() -> pa.ipc.IpcReadOptions:
    options = pa.ipc.IpcReadOptions(use_threads=False)
    if hasattr(pa.ipc, "Alignment"):
        # Buffers that a writer left unaligned are copied; older versions take them as they are.
        options.ensure_alignment = pa.ipc.Alignment.DataTypeSpecific
    return options


def _blocks(source: PartSource) -> tuple[list[int], list[int]]:
    """Where the messages of an IPC file start: its dictionaries, its record batches."""
    bytes_ = source.arrow()
    tail = bytes_.read_at(10, source.size - 10)
    length = int.from_bytes(tail[:4], "little")
    footer = _Table.root(bytes_.read_at(length, source.size - 10 - length))
    members = (_FOOTER_DICTIONARIES, _FOOTER_BATCHES)
    dictionaries, batches = (footer.vector(member, _BLOCK)["offset"] for member in members)
    return dictionaries.tolist(), batches.tolist()


def _message_at(bytes_: pa.NativeFile, start: int) -> pa.ipc.Message:
    bytes_.seek(start)
    return pa.ipc.read_message(bytes_)


def _check_claims(message: pa.ipc.Message, file_bytes: int, path: str) -> None:
    """Refuse a message whose compressed buffers claim to be more than the limits allow.

    Each starts with its inflated length in eight bytes, or -1 where it is not compressed after all.
    """
    if message.type not in {"record batch", "dictionary"}:
        return
    metadata = message.metadata.to_pybytes()
    batch = _Table.root(metadata).table(_MESSAGE_HEADER)
    if message.type == "dictionary":
        batch = batch.table(_DICTIONARY_DATA)
    if not batch.has(_BATCH_COMPRESSION) and _EARLY_COMPRESSION not in metadata:
        return
    body = message.body
    buffers = batch.vector(_BATCH_BUFFERS, _BUFFER)
    starts, lengths = buffers["offset"], buffers["length"]
    whole = (lengths >= 8) & (starts >= 0) & (starts <= body.size - 8)
    starts, lengths = starts[whole], lengths[whole]
    octets = np.frombuffer(body, dtype=np.uint8)[starts[:, np.newaxis] + np.arange(8)]
    claims = octets.view("<i8").ravel()
    claimed = sum(max(0, claim) for claim in claims.tolist())
    most = max(MIN_INFLATED_BYTES, MAX_INFLATION * file_bytes)
    if claimed > most or np.any(claims > _MOST_BUFFER_INFLATION * lengths):
        raise PartDecodeError(
            "a compressed record batch claims to be larger than it may be",
            path=path,
            expected=f"at most {most} bytes (the larger of {MIN_INFLATED_BYTES} and "
            f"{MAX_INFLATION} x the file), and {_MOST_BUFFER_INFLATION} x what a buffer stores",
            found=f"{claimed} bytes",
            remedy="The writer of the bundle has to write it again, in smaller record batches.",
        )


class _Table:
    """One table in verified FlatBuffers bytes; a position outside them is a ValueError."""

    def __init__(self, content: bytes, at: int) -> None:
        self._content = content
        self._at = at

    @classmethod
    def root(cls, content: bytes) -> _Table:
        return cls(content, 0)._follow(0)

    def has(self, member: int) -> bool:
        return self._slot(member) is not None

    def table(self, member: int) -> _Table:
        slot = self._slot(member)
        if slot is None:
            raise ValueError("a message lacks a part of its header")
        return self._follow(slot)

    def vector(self, member: int, of: np.dtype[np.void]) -> npt.NDArray[np.void]:
        slot = self._slot(member)
        if slot is None:
            return np.empty(0, dtype=of)
        at = self._follow(slot)._at
        return np.frombuffer(self._content, of, count=self._number(at, "<u4"), offset=at + 4)

    def _slot(self, member: int) -> int | None:
        """Position of a member's value; tables list them by offset, 0 or left out when absent."""
        entries = self._at - self._number(self._at, "<i4")
        entry = 4 + 2 * member
        if entry >= self._number(entries, "<u2"):
            return None
        offset = self._number(entries + entry, "<u2")
        return self._at + offset if offset else None

    def _follow(self, at: int) -> _Table:
        return _Table(self._content, at + self._number(at, "<u4"))

    def _number(self, at: int, layout: str) -> int:
        return int(np.frombuffer(self._content, layout, count=1, offset=at)[0])
