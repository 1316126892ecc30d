"""What Arrow IPC alone has: hostile buffers, compression, streams, dictionaries (section 6)."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from binary_parts import batches, fields_of, ipc_file, ipc_stream, read, refused

from lithi_datasets.errors import PartDecodeError

if TYPE_CHECKING:
    from collections.abc import Callable

every_ipc = pytest.mark.parametrize("write", [ipc_file, ipc_stream])


@every_ipc
@pytest.mark.parametrize("compression", ["lz4", "zstd", None])
def test_compressed_buffers_and_several_batches(
    write: Callable[..., bytes], compression: str | None
) -> None:
    table = pa.table(
        {"x": ["some text"] * 500, "y": pa.array(["a", "b"] * 250).dictionary_encode()}
    )
    raw = write(table, rows=120, compression=compression)
    arrived = read("arrow", raw, x="string", y="string")
    assert arrived["x"].to_pylist() == table["x"].to_pylist()
    assert arrived["y"].to_pylist() == table["y"].to_pylist()


@every_ipc
@pytest.mark.parametrize("claim", [2**62, 2**40, 2 * 2**30, 2**28])
def test_a_compressed_buffer_that_claims_to_be_huge_is_refused_before_it_is_allocated(
    write: Callable[..., bytes], claim: int
) -> None:
    raw = write(pa.table({"x": np.zeros(10_000, np.int64)}), compression="zstd")
    honest = struct.pack("<q", 80_000)
    assert raw.count(honest) == 1
    error = refused(
        PartDecodeError, "arrow", raw.replace(honest, struct.pack("<q", claim)), x="int64"
    )
    assert error.found == f"{claim} bytes"


@every_ipc
def test_a_record_batch_that_inflates_beyond_the_limit_is_refused(
    write: Callable[..., bytes],
) -> None:
    nothing = pa.array(np.zeros(2**27 + 1, np.int64))
    raw = write(pa.table({"x": nothing}), compression="zstd")
    assert len(raw) < 2**20
    refused(PartDecodeError, "arrow", raw, x="int64")
    in_batches = write(pa.table({"x": nothing}), compression="zstd", rows=2**24)
    del nothing
    assert next(batches("arrow", in_batches, fields_of(x="int64"))).num_rows == 8192


@every_ipc
def test_a_dictionary_that_claims_to_be_huge_is_refused_too(write: Callable[..., bytes]) -> None:
    words = pa.array([f"word {n:09}" for n in range(1000)]).dictionary_encode()
    raw = write(pa.table({"x": words}), compression="zstd")
    honest = struct.pack("<q", 14_000)
    assert raw.count(honest) == 1
    refused(PartDecodeError, "arrow", raw.replace(honest, struct.pack("<q", 2**50)), x="string")


def broken(kind: pa.DataType, length: int, *buffers: bytes, **options: Any) -> pa.Array:
    return pa.Array.from_buffers(kind, length, [None, *map(pa.py_buffer, buffers)], **options)


def offsets(*values: int, size: str = "i") -> bytes:
    return struct.pack(f"<{len(values)}{size}", *values)


HOSTILE: dict[str, tuple[Any, Callable[[], pa.Array]]] = {
    "negative offsets": ("string", lambda: broken(pa.string(), 2, offsets(0, -5, 3), b"abc")),
    "offsets that fall": ("binary", lambda: broken(pa.binary(), 3, offsets(0, 3, 1, 3), b"abc")),
    "large offsets that fall": (
        "large_binary",
        lambda: broken(pa.large_binary(), 3, offsets(0, 3, 1, 3, size="q"), b"abc"),
    ),
    "list offsets that fall": (
        {"list": "int64"},
        lambda: broken(pa.list_(pa.int64()), 3, offsets(0, 2, -1, 2), children=[pa.array([1, 2])]),
    ),
    "list offsets that fall over times out of range": (
        {"list": "time32[s]"},
        lambda: broken(
            pa.list_(pa.time32("s")),
            3,
            offsets(0, 2, -1, 2),
            children=[pa.array([-1, 10**6], pa.int32()).view(pa.time32("s"))],
        ),
    ),
    "dictionary indices beyond the dictionary": (
        "string",
        lambda: pa.DictionaryArray.from_arrays(
            pa.array([0, 9], pa.int8()), pa.array(["a"]), safe=False
        ),
    ),
    "negative dictionary indices": (
        "string",
        lambda: pa.DictionaryArray.from_arrays(
            pa.array([0, -3], pa.int8()), pa.array(["a"]), safe=False
        ),
    ),
    "a dictionary of broken text": (
        "string",
        lambda: pa.DictionaryArray.from_arrays(
            pa.array([0, 0], pa.int8()), broken(pa.string(), 1, offsets(0, 2), b"\xff\xfe")
        ),
    ),
    "a list view beyond its values": (
        {"list": "int64"},
        lambda: broken(
            pa.list_view(pa.int64()), 1, offsets(1), offsets(50), children=[pa.array([1, 2])]
        ),
    ),
}


@every_ipc
@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_buffers_do_not_decode(write: Callable[..., bytes], case: str) -> None:
    declared, column = HOSTILE[case]
    raw = write(pa.table({"x": column()}))
    refused(PartDecodeError, "arrow", raw, x=declared)


PATCHED: dict[str, tuple[Any, pa.Array, bytes, bytes]] = {
    "offsets beyond the data": (
        "string",
        pa.array(["abc", "defg", "hi"]),
        offsets(0, 3, 7, 9),
        offsets(0, 3, 7, 10**6),
    ),
    "list offsets beyond the values": (
        {"list": "int8"},
        pa.array([[1, 2, 3], [4, 5], []], pa.list_(pa.int8())),
        offsets(0, 3, 5, 5),
        offsets(0, 3, 99, 99),
    ),
    "fewer values than rows": (
        "int64",
        pa.array([0] * 777),
        struct.pack("<q", 777),
        struct.pack("<q", 10**9),
    ),
    "fewer elements than lists of a fixed size": (
        {"list": "int8", "length": 2},
        pa.FixedSizeListArray.from_arrays(pa.array([0] * 1554, pa.int8()), 2),
        struct.pack("<q", 777),
        struct.pack("<q", 1000),
    ),
    "a negative number of rows": (
        "int64",
        pa.array([0] * 777),
        struct.pack("<q", 777),
        struct.pack("<q", -1),
    ),
    "a view beyond its buffer": (
        "string",
        pa.array(["more than twelve bytes"], pa.string_view()),
        struct.pack("<i4sii", 22, b"more", 0, 0),
        struct.pack("<i4sii", 22, b"more", 0, 10**6),
    ),
    "a view whose prefix is another": (
        "string",
        pa.array(["more than twelve bytes"], pa.string_view()),
        struct.pack("<i4sii", 22, b"more", 0, 0),
        struct.pack("<i4sii", 22, b"less", 0, 0),
    ),
    "run ends that fall": (
        "int8",
        pa.RunEndEncodedArray.from_arrays(
            pa.array([2, 5, 9], pa.int32()), pa.array([1, 2, 3], pa.int8())
        ),
        offsets(2, 5, 9),
        offsets(5, 2, 9),
    ),
}


@every_ipc
@pytest.mark.parametrize("case", PATCHED)
def test_hostile_numbers_do_not_decode(write: Callable[..., bytes], case: str) -> None:
    declared, column, old, new = PATCHED[case]
    raw = write(pa.table({"x": column}))
    assert old in raw
    refused(PartDecodeError, "arrow", raw.replace(old, new), x=declared)


def test_a_stream_cut_inside_a_message_or_followed_by_bytes_does_not_decode() -> None:
    table = pa.table({"x": pa.array(range(100))})
    raw = ipc_stream(table, rows=50)
    end = b"\xff\xff\xff\xff\0\0\0\0"
    assert raw.endswith(end)
    refused(PartDecodeError, "arrow", raw[: -len(end) - 1], x="int64")
    refused(PartDecodeError, "arrow", raw + raw, x="int64")
    refused(PartDecodeError, "arrow", raw + b"\0", x="int64")
    # The marker is optional in the format; that no batch is missing is the row count's to say.
    assert read("arrow", raw[: -len(end)], x="int64").equals(table)


def test_a_file_of_another_ipc_message_does_not_decode() -> None:
    sink = pa.BufferOutputStream()
    pa.ipc.write_tensor(pa.Tensor.from_numpy(np.zeros((2, 2))), sink)
    refused(PartDecodeError, "arrow", bytes(sink.getvalue()), x="int64")


@pytest.mark.parametrize("deltas", [True, False])
def test_dictionaries_that_grow_or_are_replaced_within_a_stream(deltas: bool) -> None:
    parts = [
        pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(["a", "b"])),
        pa.DictionaryArray.from_arrays(
            pa.array([2, 0], pa.int32()), pa.array(["a", "b", "c"] if deltas else ["x", "y", "z"])
        ),
    ]
    table = pa.table({"x": pa.chunked_array(parts)})
    raw = ipc_stream(table, emit_dictionary_deltas=deltas, unify_dictionaries=False)
    expected = ["a", "b", "c", "a"] if deltas else ["a", "b", "z", "x"]
    assert read("arrow", raw, x="string")["x"].to_pylist() == expected


@every_ipc
def test_ipc_without_any_batch_is_a_part_of_no_rows(write: Callable[..., bytes]) -> None:
    raw = write(pa.table({"x": pa.chunked_array([], pa.int64())}))
    assert read("arrow", raw, x="int64").num_rows == 0


def test_the_magic_decides_between_file_and_stream_in_the_old_layout_too() -> None:
    table = pa.table({"x": [1, 2, 3]})
    for write in (ipc_file, ipc_stream):
        assert read("arrow", write(table, use_legacy_format=True), x="int64").equals(table)
