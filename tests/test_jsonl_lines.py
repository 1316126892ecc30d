"""The jsonl reader: lines, line ends, bounds of memory, and bytes that mean harm."""

from __future__ import annotations

import contextlib
import gzip
import json
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from written import DEEP, PLAIN_TYPES, JsonType, Source, batches, nullable, request, table

from lithi_datasets.errors import PartDecodeError, SchemaMismatch
from lithi_datasets.formats import reader_for
from lithi_datasets.formats.jsonl import _Lines
from lithi_datasets.formats.text_blocks import Block, LineScan, Plan, blocks
from lithi_datasets.formats.text_columns import Unsure


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":1}\n{"a":2}\n',
        b'{"a":1}\r\n{"a":2}\r\n',
        b'{"a":1}\n{"a":2}',
        b'\xef\xbb\xbf{"a":1}\n{"a":2}\n',
        b'\n\r\n \t\n{"a":1}\n\n\n{"a":2}\n  \n\r',
        b'  { "a" : 1 }  \n\t{"a"\t:\r2}\r\n',
    ],
)
def test_line_ends_blank_lines_and_a_bom_are_tolerated(text: bytes) -> None:
    assert table("jsonl", text, {"a": "int8"})["a"].to_pylist() == [1, 2]


@pytest.mark.parametrize("text", [b"", b"\n", b"\xef\xbb\xbf", b" \r\n\r\n"])
def test_a_text_without_objects_has_no_rows(text: bytes) -> None:
    assert batches("jsonl", text, {"a": "int8"}) == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b'{"a":1}{"a":2}\n', 1),
        (b'{"a":1}\n{"a":\n2}\n', 2),
        (b'{"a":1}{"a":2}\n{"a":\n3}\n', 1),
        (b'{"a":1}\n[1]\n', 2),
        (b"null\n", 1),
        (b" null {}\n", 1),
        (b'{"a":1}\nnull\n', 2),
        (b'{"a":1}null{"a":2}\n', 1),
        (b"{}null\n{}\n", 1),
        (b'{"a":1},\n', 1),
        (b'{"a":1}\0\n', 1),
        (b'{"a":1}\n\0\n', 2),
        (b'{"a":1}\0{"a":2}\n', 1),
        (b'{"a":1,}\n', 1),
        (b"{'a':1}\n", 1),
        (b'{"a":1/*x*/}\n', 1),
        (b'{"a":1}\n\xef\xbb\xbf{"a":1}\n', 2),
        (b'\xef\xbb\xbf\xef\xbb\xbf{"a":1}\n', 1),
        (b'{"a":1}\n\xe2\x80\xa8\n', 2),
        (b'{"a":1}\n{"a":1', 2),
        (b'\xff\xfe{\0"\0', 1),
    ],
)
def test_a_line_that_is_not_one_object_does_not_decode(text: bytes, line: int) -> None:
    with pytest.raises(PartDecodeError, match=f"Line {line}:"):
        table("jsonl", text, {"a": "int8"})


@pytest.mark.parametrize("type", ["int8", {"list": "int8"}, DEEP])
@pytest.mark.parametrize("opening", ["[", '{"a":', '{"rows":[', '{"x":'])
def test_a_depth_bomb_does_not_decode(type: JsonType, opening: str) -> None:
    with pytest.raises(PartDecodeError, match="Line 1:"):
        table("jsonl", b'{"a": ' + opening.encode() * 200_000, {"a": type})


def test_a_line_of_five_megabytes_is_a_row() -> None:
    long = "ü" * 2_500_000
    text = json.dumps({"a": long}, ensure_ascii=False) + "\n" + json.dumps({"a": "short"}) + "\n"
    assert table("jsonl", text.encode(), {"a": "string"})["a"].to_pylist() == [long, "short"]


def test_batches_are_bounded_by_rows() -> None:
    text = b"".join(b'{"a":%d}\n' % n for n in range(1000))
    read = batches("jsonl", text, {"a": "int64"}, batch_rows=64)
    assert [batch.num_rows for batch in read] == [64] * 15 + [40]
    assert pa.Table.from_batches(read)["a"].to_pylist() == list(range(1000))


@pytest.mark.parametrize("batch_rows", [8192, 10**6])
def test_blocks_that_are_decoded_at_once_keep_their_order(batch_rows: int) -> None:
    text = b"".join(b'{"a":%d}\n' % n for n in range(150_000))
    read = table("jsonl", text, {"a": "int32"}, batch_rows=batch_rows)
    assert read["a"].to_pylist() == list(range(150_000))


def test_the_first_error_in_the_part_is_the_one_that_is_told() -> None:
    lines = [b'{"a":1}\n'] * 100_000
    lines[30_000] = lines[70_000] = b'{"a":"1"}\n'
    cut = gzip.compress(b"".join(lines))[:-4]
    with pytest.raises(SchemaMismatch, match="Line 30001,"):
        table("jsonl", cut, {"a": "int8"}, compression="gzip")


def test_an_error_comes_after_the_batches_that_stand_before_it() -> None:
    text = b'{"a":1}\n' * 100_000
    reader = reader_for("jsonl")(Source(text + b"{"), request({"a": "int8"}))
    rows: list[int] = []
    with pytest.raises(PartDecodeError, match="Line 100001:"):
        rows.extend(batch.num_rows for batch in reader)
    assert 80_000 < sum(rows) < 100_000


HALF_READ = """
import pyarrow as pa
from lithi_datasets.formats import ReadRequest, reader_for
from lithi_datasets.parts import PrivateBytes
from lithi_datasets.types import Field

request = ReadRequest(
    fields=(Field(name="a", type="int64"),), declared=pa.schema([("a", pa.int64())]), path="p"
)
reader = reader_for("jsonl")(PrivateBytes(b'{"a": 1}\\n' * 10**6), request)
for _ in range(5):
    print(next(reader).num_rows)
"""


def test_an_interpreter_that_leaves_a_part_half_read_ends() -> None:
    run = subprocess.run(
        [sys.executable, "-c", HALF_READ], capture_output=True, text=True, timeout=200
    )
    assert (run.returncode, run.stdout.split(), run.stderr) == (0, ["8192"] * 5, "")


def test_batches_are_bounded_by_bytes_of_text() -> None:
    line = b'{"a":"' + b"x" * 5_000_000 + b'"}\n'
    sizes = [batch.num_rows for batch in batches("jsonl", line * 14, {"a": "string"})]
    assert max(sizes) * len(line) <= 32 * 2**20
    assert sum(sizes) == 14


def test_nulls_of_a_wide_fixed_size_list_do_not_pile_up() -> None:
    read = batches("jsonl", b"{}\n" * 70, {"a": {"list": "float64", "length": 2**18}})
    assert [batch.num_rows for batch in read] == [32, 32, 6]  # 128 MiB with an index for each slot


@pytest.fixture
def no_slow_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a test that reads line by line."""

    def slow(self: _Lines, block: Block) -> pa.RecordBatch:
        raise AssertionError(f"line {block.line} was read line by line")

    monkeypatch.setattr(_Lines, "_read_exactly", slow)


@pytest.mark.usefixtures("no_slow_path")
def test_ordinary_values_of_every_type_take_the_fast_path() -> None:
    types: dict[str, JsonType] = {f"{n}": type for n, type in enumerate(PLAIN_TYPES)}
    texts: dict[str, Any] = dict.fromkeys(("int", "uint", "duration"), 7)
    texts |= {"bool": True, "float": 1.5, "decimal": "0.50", "string": "é\U0001f600\\\n"}
    texts |= {"large_s": "x", "binary": "YQ==", "large_b": "", "date": "2024-02-29"}
    texts |= {"time32": "12:00:00", "time64": "12:00:00.123"}
    row = {}
    for name, type in types.items():
        assert isinstance(type, str)
        zone = "+02:00" if "tz=" in type else ""
        stamp = f"2024-02-29T12:00:00{zone}" if type.startswith("timestamp") else None
        row[name] = stamp or next(text for start, text in texts.items() if type.startswith(start))
        if type == "decimal128(38, 0)":
            row[name] = "50"
    types |= {"list": {"list": "float32", "length": 2}, "deep": DEEP}
    row |= {"list": [1, 2.5], "deep": {"day": "2024-01-01", "rows": [{"z": 1}], "halves": [1, 2]}}
    lines = [json.dumps(row, ensure_ascii=ascii) for ascii in (True, False)]
    text = "\n".join([*lines, "", "{}", '{"deep": null} ']) + "\r\n"
    assert table("jsonl", text.encode(), types).num_rows == 4


TYPES: dict[str, JsonType] = {"a": "int8", "b": "string", "c": "float16", "d": DEEP, "e": "bool"}
SCRAPS = [
    *(b"{", b"}", b"[", b"]", b'"', b",", b":", b"\n", b"\r\n", b" ", b"\0", b"\xff", b"\xc3"),
    *(b"NaN", b"1.0", b"1e999", b'"a":1,', b"\\ud800", b"\\u0061", b"null", b"\xef\xbb\xbf"),
    *(b"}\n{", b"}{", b"},{", b"[[[[", b"true", b"-", b"2049", b"\xed\xa0\x80"),
]


@st.composite
def nearly_right(draw: st.DrawFn) -> bytes:
    """Lines of objects with some bytes cut out and some put in."""
    row = st.fixed_dictionaries(
        {}, optional={name: nullable(type).map(lambda p: p[0]) for name, type in TYPES.items()}
    )
    rows = draw(st.lists(row, min_size=1, max_size=3))
    text = b"".join(json.dumps(r, ensure_ascii=False).encode() + b"\n" for r in rows)
    for _ in range(draw(st.integers(0, 3))):
        at, cut = draw(st.integers(0, len(text))), draw(st.integers(0, 3))
        text = text[:at] + draw(st.sampled_from([b"", *SCRAPS])) + text[at + cut :]
    return text


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=nearly_right(), rows=st.sampled_from([1, 2, 100]))
def test_any_bytes_end_in_batches_or_in_an_error_of_ours(text: bytes, rows: int) -> None:
    with contextlib.suppress(PartDecodeError, SchemaMismatch):
        batches("jsonl", text, TYPES, batch_rows=rows)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=nearly_right())
def test_the_fast_path_reads_nothing_that_the_exact_one_reads_differently(text: bytes) -> None:
    lines = _Lines(request(TYPES).declared, "parts/p")
    for block in blocks([text], LineScan(), Plan(100, 10**6, 10**6), "parts/p"):
        try:
            fast = lines._read_fast(block)
        except (Unsure, pa.ArrowException):
            continue
        exact = lines._read_exactly(block)
        assert fast is exact or (fast is not None and fast.equals(exact))
