"""Compressed text: members and frames, streams that are cut or broken, and decompression bombs."""

from __future__ import annotations

import gzip
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from written import Source, table

from lithi_datasets.errors import PartDecodeError, UsageError
from lithi_datasets.formats.compression import CHUNK_BYTES, text_chunks

TEXT = b"".join(b'{"a": %d}\n' % n for n in range(20_000))
SKIPPABLE = struct.pack("<II", 0x184D2A50, 7) + b"comment"


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue().to_pybytes())


PACK = {"gzip": gzip.compress, "zstd": zstd}
KINDS = pytest.mark.parametrize("kind", ["gzip", "zstd"])


def unpack(data: bytes, kind: str | None) -> bytes:
    chunks = list(text_chunks(Source(data), compression=kind, path="parts/p"))
    assert all(0 < len(chunk) <= CHUNK_BYTES for chunk in chunks)
    return b"".join(chunks)


def test_plain_text_comes_in_chunks() -> None:
    data = bytes(range(256)) * 10_000
    assert unpack(data, None) == data
    assert unpack(b"", None) == b""


@KINDS
@settings(max_examples=25, deadline=None)
@given(texts=st.lists(st.binary() | st.just(b" " * 3_000_000), min_size=1, max_size=5))
def test_members_and_frames_are_one_text(kind: str, texts: list[bytes]) -> None:
    assert unpack(b"".join(PACK[kind](text) for text in texts), kind) == b"".join(texts)


def test_skippable_frames_are_skipped() -> None:
    data = SKIPPABLE + zstd(b"one") + SKIPPABLE + SKIPPABLE + zstd(b"two") + SKIPPABLE
    assert unpack(data, "zstd") == b"onetwo"
    assert unpack(SKIPPABLE, "zstd") == b""


@KINDS
@pytest.mark.parametrize("format", ["jsonl", "csv"])
def test_a_compressed_part_is_read(kind: str, format: str) -> None:
    text = TEXT if format == "jsonl" else b"a\n" + b"".join(b"%d\n" % n for n in range(20_000))
    half = len(text) // 3
    packed = PACK[kind](text[:half]) + PACK[kind](text[half:])
    read = table(format, packed, {"a": "int64"}, compression=kind)
    assert read["a"].to_pylist() == list(range(20_000))


@KINDS
@pytest.mark.parametrize("members", [1, 2])
def test_a_stream_that_is_cut_anywhere_does_not_decode(kind: str, members: int) -> None:
    whole = PACK[kind](TEXT[:200]) * members
    first = len(PACK[kind](TEXT[:200]))
    for length in range(len(whole)):
        if members == 2 and length == first:
            continue  # the first member alone is a whole stream
        with pytest.raises(PartDecodeError, match=f"does not decode as {kind}"):
            unpack(whole[:length], kind)


@KINDS
@pytest.mark.parametrize("rest", [b"\0", b"\0" * 512, b"garbage", b"{}\n", b"\x1f", b"\x28\xb5"])
def test_bytes_behind_the_last_member_do_not_decode(kind: str, rest: bytes) -> None:
    with pytest.raises(PartDecodeError):
        unpack(PACK[kind](TEXT) + rest, kind)


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"plain",
        TEXT,
        zlib.compress(TEXT),
        zlib.compress(TEXT)[2:-4],
        gzip.compress(TEXT)[:-8] + b"\0" * 8,
        gzip.compress(TEXT)[:3] + b"\xff" + gzip.compress(TEXT)[4:],
    ],
    ids=["empty", "plain", "text", "zlib", "deflate", "wrong-crc", "reserved-flags"],
)
def test_what_is_no_such_stream_does_not_decode(kind: str, data: bytes) -> None:
    with pytest.raises(PartDecodeError):
        unpack(data, kind)


@KINDS
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_changed_byte_is_seen_or_changes_no_text(kind: str, data: st.DataObject) -> None:
    whole = bytearray(PACK[kind](TEXT[:3000]))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    try:
        read = unpack(bytes(whole), kind)
    except PartDecodeError:
        return
    # gzip does not protect its header, and zstd has no checksum unless the writer asks for one.
    assert kind == "zstd" or read == TEXT[:3000]


def test_each_kind_is_told_from_the_other() -> None:
    with pytest.raises(PartDecodeError):
        unpack(gzip.compress(TEXT), "zstd")
    with pytest.raises(PartDecodeError):
        unpack(zstd(TEXT), "gzip")


def test_an_unknown_compression_is_a_wrong_call() -> None:
    with pytest.raises(UsageError, match="bz2"):
        unpack(b"", "bz2")


BOMB_READER = """
import resource, sys
from pathlib import Path
import pyarrow as pa
from lithi_datasets.errors import PartDecodeError
from lithi_datasets.formats import ReadRequest, reader_for
from lithi_datasets.parts import PrivateBytes
from lithi_datasets.types import Field

resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30, 6 * 2**30))

source = PrivateBytes(Path(sys.argv[1]).read_bytes())
format, kind = sys.argv[2:]
request = ReadRequest(
    fields=(Field(name="a", type="string"),),
    declared=pa.schema([("a", pa.string())]),
    path="parts/p",
    compression=kind,
)
try:
    rows = sum(batch.num_rows for batch in reader_for(format)(source, request))
except PartDecodeError as error:
    print(error.problem)
else:
    print(rows, "rows")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def two_gigabytes(kind: str, head: bytes, filler: bytes) -> bytes:
    """About 2 MB that hold 2 GiB of text."""
    piece = filler * (2**24 // len(filler))
    return PACK[kind](head) + PACK[kind](piece) * 128


def soak(*values: object) -> Any:
    """A case that takes seconds and shows little more than the others."""
    return pytest.param(*values, marks=pytest.mark.soak)


@pytest.mark.parametrize(
    ("format", "kind", "head", "filler", "words"),
    [
        ("jsonl", "gzip", b'{"a": "x"}\n', b" ", "Line 2: a record is longer"),
        soak("jsonl", "zstd", b'{"a": "', b" ", "Line 1: a record is longer"),
        ("jsonl", "gzip", b"", b"\n", "more blank lines in a row"),
        soak("jsonl", "zstd", b"", b" " * 1023 + b"\n", "more blank lines in a row"),
        soak("csv", "gzip", b'a\nx\n"', b" \n", "Line 3: a record is longer"),
        ("csv", "zstd", b"a\nx\n", b" ", "Line 3: a record is longer"),
    ],
    ids=["line", "value", "line-ends", "blank-lines", "quoted-cell", "cell"],
)
def test_a_bomb_ends_in_our_error_and_in_bounded_memory(
    format: str, kind: str, head: bytes, filler: bytes, words: str, tmp_path: Path
) -> None:
    bomb = tmp_path / "bomb"
    bomb.write_bytes(two_gigabytes(kind, head, filler))
    assert bomb.stat().st_size < 5 * 2**20
    run = subprocess.run(
        [sys.executable, "-c", BOMB_READER, str(bomb), format, kind],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert run.returncode == 0, run.stderr
    problem, peak_mib = run.stdout.splitlines()
    assert words in problem
    assert int(peak_mib) < 1500
