"""The csv reader: RFC 4180, every row of the spec's table, what it refuses and where."""

from __future__ import annotations

import contextlib
import csv
import io
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from written import PLAIN_TYPES, JsonType, as_cell, batches, held, nullable, request, table

from lithi_datasets.errors import LithiError, ManifestInvalid, PartDecodeError, SchemaMismatch
from lithi_datasets.formats.csv import _Records, _without_empty_last_line
from lithi_datasets.formats.text_blocks import Block, Plan, QuotedScan, blocks
from lithi_datasets.formats.text_columns import Unsure

TWO: dict[str, JsonType] = {"n": "int64", "s": "string"}
BROKEN = PartDecodeError
WRONG = SchemaMismatch


def one(type: JsonType, cell: str | bytes) -> Any:
    """The value of one cell beside another, held by an array of one."""
    raw = cell if isinstance(cell, bytes) else cell.encode()
    return table("csv", b"x,a\n1," + raw + b"\n", {"a": type, "x": "int8"})["a"].combine_chunks()


@pytest.mark.parametrize(
    ("type", "cell", "value"),
    [
        ("bool", "true", True),
        ("bool", '"false"', False),
        ("bool", "", None),
        ("int64", "9223372036854775807", 2**63 - 1),
        ("uint64", "18446744073709551615", 2**64 - 1),
        ("int8", "-0", 0),
        ("int64", '"7"', 7),
        ("int64", "", None),
        ("float64", "0.1", 0.1),
        ("float64", ".5", 0.5),
        ("float64", "5.", 5.0),
        ("float64", "-1E+5", -1e5),
        ("float64", "inf", math.inf),
        ("float32", "-inf", -math.inf),
        ("float16", "inf", math.inf),
        ("float16", "2049.0000000000000000000000001", 2050.0),
        ("float64", "", None),
        ("string", "00123", "00123"),
        ("string", "NA", "NA"),
        ("string", "nan", "nan"),
        ("string", "null", "null"),
        ("string", " x ", " x "),
        ("string", "", None),
        ("string", '""', ""),
        ("string", '"a,b"', "a,b"),
        ("string", '"a\r\nb\nc\rd"', "a\r\nb\nc\rd"),
        ("string", '"""q"""', '"q"'),
        ("string", '""""', '"'),
        ("string", "a\\", "a\\"),
        ("string", "\0", "\0"),
        ("string", "\ufeff", "\ufeff"),
        ("large_string", "\U0001f600", "\U0001f600"),
        ("large_string", '""', ""),
        ("binary", "+/8=", b"\xfb\xff"),
        ("binary", "", None),
        ("large_binary", '""', b""),
        ("decimal128(5, 2)", "", None),
    ],
)
def test_a_cell_arrives_exactly(type: JsonType, cell: str, value: object) -> None:
    assert one(type, cell).to_pylist() == [value]


def test_nan_is_a_value_and_not_a_null() -> None:
    read = table("csv", b"x,a\n1,nan\n2,\n3,1.5\n", {"x": "int8", "a": "float64"})["a"]
    assert read.null_count == 1
    assert math.isnan(read[0].as_py())
    assert read[1:].to_pylist() == [None, 1.5]


@pytest.mark.parametrize(
    ("type", "cell", "error", "words"),
    [
        ("int64", " 1", WRONG, "space around it"),
        ("int64", "1 ", WRONG, "space around it"),
        ("float64", "\t1.5", WRONG, "space around it"),
        ("int64", '" 1"', WRONG, "space around it"),
        ("int64", "+1", WRONG, "decimal integer"),
        ("int64", "007", WRONG, "decimal integer"),
        ("int64", "-01", WRONG, "decimal integer"),
        ("int64", "1_000", WRONG, "decimal integer"),
        ("int64", "0x1F", WRONG, "decimal integer"),
        ("int64", "１", WRONG, "decimal integer"),
        ("int64", "1.0", WRONG, "decimal integer"),
        ("int64", "1e3", WRONG, "decimal integer"),
        ("int64", "-", WRONG, "decimal integer"),
        ("int64", "NA", WRONG, "decimal integer"),
        ("int8", "128", WRONG, "too large"),
        ("uint8", "-1", WRONG, "too large"),
        ("int64", "9223372036854775808", WRONG, "too large"),
        ("float64", "NaN", WRONG, "decimal number"),
        ("float64", "-nan", WRONG, "decimal number"),
        ("float64", "+inf", WRONG, "decimal number"),
        ("float64", "Infinity", WRONG, "decimal number"),
        ("float64", "+1", WRONG, "decimal number"),
        ("float64", "00.5", WRONG, "decimal number"),
        ("float64", "1_0.0", WRONG, "decimal number"),
        ("float64", "0x1p3", WRONG, "decimal number"),
        ("float64", ".", WRONG, "decimal number"),
        ("float64", "1e", WRONG, "decimal number"),
        ("float64", '"1,5"', WRONG, "decimal number"),
        ("float64", "1e400", WRONG, "too large"),
        ("float32", "3.5e38", WRONG, "too large"),
        ("bool", "True", WRONG, "neither true nor false"),
        ("bool", "1", WRONG, "neither true nor false"),
        ("int64", '""', WRONG, "empty string"),
        ("float64", '""', WRONG, "empty string"),
        ("bool", '""', WRONG, "empty string"),
        ("date32", '""', WRONG, "empty string"),
        ("decimal128(5, 2)", '""', WRONG, "empty string"),
        ("binary", "YQ", WRONG, "base64"),
        ("binary", '"YQ==\n"', WRONG, "base64"),
        ("decimal128(5, 2)", "1.555", WRONG, "beyond the scale"),
        ("date32", "2023-02-29", WRONG, "full-date"),
        ("timestamp[us]", "2023-02-28 00:00:00", WRONG, "date-time"),
        ("duration[s]", "1.5", WRONG, "decimal integer"),
        ("string", 'a"b', BROKEN, "not quoted"),
        ("string", 'a"b"', BROKEN, "not quoted"),
        ("string", 'a""', BROKEN, "not quoted"),
        ("string", ' "a"', BROKEN, "not quoted"),
        ("string", '"a"b', BROKEN, "follows a closing quote"),
        ("string", '"a" ', BROKEN, "follows a closing quote"),
        ("string", '"a', BROKEN, "no closing quote"),
        ("string", '"a""', BROKEN, "no closing quote"),
        ("string", "a\rb", BROKEN, "CR outside quotes"),
        ("string", '"a"\r', BROKEN, "CR outside quotes"),
        ("string", b"\xff", BROKEN, "not UTF-8"),
        ("string", b"\xed\xa0\x80", BROKEN, "not UTF-8"),
    ],
)
def test_what_the_table_does_not_allow_is_refused(
    type: JsonType, cell: str | bytes, error: type[LithiError], words: str
) -> None:
    if cell == '"a"\r':
        with pytest.raises(error, match=words):
            table("csv", b'x,a\n1,"a"\r', {"a": type, "x": "int8"})
        return
    with pytest.raises(error) as caught:
        one(type, cell)
    assert words in str(caught.value)
    assert "parts/p" in str(caught.value)
    assert "Line 2" in str(caught.value)


def test_a_type_error_names_part_line_field_declared_and_found() -> None:
    with pytest.raises(SchemaMismatch) as caught:
        table("csv", b's,n\r\n"two\r\nlines",1\r\nx,1.0\r\n', TWO)
    error = caught.value
    assert (error.path, error.expected, error.found) == ("parts/p", "int64", "'1.0'")
    assert "Line 4, field 'n'" in error.problem


def test_an_error_inside_a_record_of_many_lines_names_the_line_of_its_cell() -> None:
    with pytest.raises(SchemaMismatch, match="Line 4, field 'n'"):
        table("csv", b's,n\n"1\n2\n3",x\n', TWO)


@pytest.mark.parametrize(
    "text",
    [
        b's,n\na,1\n"b\nb",2\n',
        b's,n\r\na,1\r\n"b\nb",2\r\n',
        b'n,s\n1,a\n2,"b\nb"',
        b'\xef\xbb\xbfs,n\na,1\n"b\nb",2\n',
        b'\xef\xbb\xbf"s","n"\n"a","1"\n"b\nb","2"\n\n',
        b's,n\r\na,1\n"b\nb",2\r\n\r\n',
    ],
)
def test_line_ends_a_bom_column_order_and_an_empty_last_line_are_tolerated(text: bytes) -> None:
    assert table("csv", text, TWO).to_pydict() == {"n": [1, 2], "s": ["a", "b\nb"]}


@pytest.mark.parametrize("text", [b"n,s\n", b"n,s", b"n,s\r\n", b"\xef\xbb\xbfn,s\n", b"n,s\n\n"])
def test_a_header_alone_is_a_part_of_no_rows(text: bytes) -> None:
    assert batches("csv", text, TWO) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "no header line"),
        (b"\xef\xbb\xbf", "no header line"),
        (b"\n", "does not declare: ''"),
        (b"n\n1\n", "lacks a column: 's'"),
        (b"n,s,t\n1,a,b\n", "does not declare: 't'"),
        (b"n,n,s\n1,2,a\n", "a name twice: 'n'"),
        (b"n, s\n1,a\n", "does not declare: ' s'"),
        (b"N,s\n1,a\n", "does not declare: 'N'"),
        (b"n," * 3_000_000 + b"s\n", "a name twice: 'n'"),
        (b"\xef\xbb\xbf\xef\xbb\xbfn,s\n1,a\n", "does not declare"),
        (b"1,a\n", "does not declare"),
    ],
)
def test_a_header_that_is_not_the_schema_is_refused(text: bytes, words: str) -> None:
    with pytest.raises(SchemaMismatch, match=words):
        table("csv", text, TWO)


@pytest.mark.parametrize("text", [b'n,"s\n1,a\n', b'n,s"\n1,a\n', b"n\rs\n1,a\n", b"n,\xff\n1,a\n"])
def test_a_header_that_is_no_csv_does_not_decode(text: bytes) -> None:
    with pytest.raises(PartDecodeError, match="Line 1:"):
        table("csv", text, TWO)


@pytest.mark.parametrize(
    ("text", "line", "found"),
    [
        (b"n,s\n1,a\n2\n", 3, 1),
        (b"n,s\n1,a\n2,b,\n", 3, "3 or more"),
        (b"n,s\n1,a\n2,b" + b"," * 3_000_000, 3, "3 or more"),
        (b"n,s\n1,a\n\n2,b\n", 3, 1),
        (b"n,s\n1,a\r\n\r\n2,b\n", 3, 1),
        (b"n,s\n1,a\n\n\n", 3, 1),
        (b"n,s\n1,a\n ", 3, 1),
    ],
)
def test_the_wrong_number_of_cells_is_refused(text: bytes, line: int, found: object) -> None:
    with pytest.raises(SchemaMismatch, match=f"Line {line}:") as caught:
        table("csv", text, TWO)
    assert (caught.value.expected, caught.value.found) == (2, found)


@pytest.mark.parametrize("text", [b"n,s\n1,a\n\r", b"n,s\r\n1,a\r\n\r", b"n,s\n\r"])
def test_a_cr_alone_is_no_empty_last_line(text: bytes) -> None:
    with pytest.raises(PartDecodeError, match="CR outside quotes"):
        table("csv", text, TWO)


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_an_empty_line_is_a_null_in_a_table_of_one_column(end: bytes) -> None:
    text = end.join([b"a", b"", b"1", b"", b"2", b"", b""])
    assert table("csv", text, {"a": "int8"})["a"].to_pylist() == [None, 1, None, 2]
    assert table("csv", text, {"a": "string"})["a"].to_pylist() == [None, "1", None, "2"]


def test_a_list_or_a_struct_refuses_the_manifest() -> None:
    with pytest.raises(ManifestInvalid, match="'b'"):
        table("csv", b"a,b\n1,\n", {"a": "int8", "b": {"list": "int8"}})


def test_quotes_are_followed_over_the_ends_of_chunks() -> None:
    filler = "x" * (2**20 - 20)
    for shift in range(24):
        cells = ["y" * shift, 'q"\r\n"', "", "é,"]
        text = io.StringIO(newline="")
        csv.writer(text, quoting=csv.QUOTE_ALL).writerows(
            [["a", "b"], [filler, "z"], cells[:2], cells[2:]]
        )
        read = table("csv", text.getvalue().encode(), {"a": "string", "b": "string"})
        assert read.to_pydict() == {"a": [filler, cells[0], ""], "b": ["z", cells[1], "é,"]}


def test_a_nul_hides_no_delimiter_near_it() -> None:
    cells = ['\0",\n', '"\0', "\0\r\n,", "\0\0\0\0", "a,\0b"]
    rows = [(n, f"{'x' * (n % 9)}{cells[n % 5]}{'y' * (n % 7)}") for n in range(2000)]
    text = io.StringIO(newline="")
    csv.writer(text).writerows([("n", "s"), *rows])
    read = table("csv", text.getvalue().encode(), TWO)
    assert list(zip(*read.to_pydict().values(), strict=True)) == rows


def test_a_cell_of_five_megabytes_is_a_value() -> None:
    long = 'ü"\n' * 1_700_000
    text = io.StringIO(newline="")
    csv.writer(text).writerows([["n", "s"], [1, long], [2, "short"]])
    assert table("csv", text.getvalue().encode(), TWO)["s"].to_pylist() == [long, "short"]


def test_batches_are_bounded_by_rows() -> None:
    text = b"n,s\n" + b"".join(b'%d,"a\nb"\n' % n for n in range(1000))
    read = batches("csv", text, TWO, batch_rows=64)
    assert [batch.num_rows for batch in read] == [64] * 15 + [40]
    assert pa.Table.from_batches(read)["n"].to_pylist() == list(range(1000))


def test_batches_are_bounded_by_bytes_of_text() -> None:
    line = b"1," + b"x" * 5_000_000 + b"\n"
    sizes = [batch.num_rows for batch in batches("csv", b"n,s\n" + line * 14, TWO)]
    assert max(sizes) * len(line) <= 32 * 2**20
    assert sum(sizes) == 14


@pytest.fixture
def no_slow_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a test that reads cell by cell."""

    def slow(self: _Records, block: Block) -> pa.RecordBatch:
        raise AssertionError(f"line {block.line} was read cell by cell")

    monkeypatch.setattr(_Records, "_read_exactly", slow)


@pytest.mark.usefixtures("no_slow_path")
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_ordinary_values_take_the_fast_path(end: str) -> None:
    names = list("iufhbslydt")
    kinds = ("int64", "uint8", "float64", "float16", "bool", "string", "large_string", "binary")
    types: dict[str, JsonType] = dict(
        zip(names, [*kinds, "date32", "timestamp[ms, tz=UTC]"], strict=True)
    )
    rows = [
        names,
        [
            "-5",
            "255",
            "1e-05",
            "nan",
            "true",
            'a,"b"\r\n',
            "é",
            "YQ==",
            "2024-02-29",
            "2024-01-01T00:00:00Z",
        ],
        ["", "", "", "", "", "", "", "", "", ""],
        [
            "0",
            "0",
            "-inf",
            "1.5",
            "false",
            "\n\n",
            "x",
            "",
            "0001-01-01",
            "2024-01-01T00:00:00.5-01:00",
        ],
    ]
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=end).writerows(rows)
    assert table("csv", text.getvalue().encode(), types).num_rows == 3


def as_csv(rows: list[list[str | None]], end: str, *, quote_all: bool) -> str:
    """Rows as text; None is the empty unquoted cell, which the csv module can't tell from ""."""

    def cell(value: str | None) -> str:
        if value is None:
            return ""
        if quote_all or not value or any(character in value for character in ',"\r\n'):
            return '"' + value.replace('"', '""') + '"'
        return value

    return "".join(",".join(map(cell, row)) + end for row in rows)


@pytest.mark.parametrize("type", PLAIN_TYPES)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_what_another_writer_wrote_is_read_back(type: str, data: st.DataObject) -> None:
    pairs = data.draw(st.lists(nullable(type), min_size=1, max_size=6))
    types: dict[str, JsonType] = {"x": "int8", "a": type}
    rows = [[None if w is None else as_cell(w), str(n)] for n, (w, _) in enumerate(pairs)]
    end, quote_all = data.draw(st.sampled_from(["\n", "\r\n"])), data.draw(st.booleans())
    text = as_csv([["a", "x"], *rows], end, quote_all=quote_all)
    expected = held(types, [{"a": h, "x": n} for n, (_, h) in enumerate(pairs)])
    assert table("csv", text.encode(), types, batch_rows=2).equals(expected)


@given(texts=st.lists(st.tuples(st.text(), st.text()), min_size=1, max_size=5), crlf=st.booleans())
@settings(deadline=None)
def test_any_text_that_the_csv_module_writes_is_read_back(
    texts: list[tuple[str, str]], crlf: bool
) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\r\n" if crlf else "\n")
    writer.writerows([("a", "b"), *texts])
    read = table("csv", text.getvalue().encode(), {"a": "string", "b": "string"})
    assert list(zip(*read.to_pydict().values(), strict=True)) == texts


TYPES: dict[str, JsonType] = {"n": "int8", "s": "string", "f": "float64"}
SCRAPS = [
    *(b'"', b'""', b",", b"\n", b"\r\n", b"\r", b" ", b"\0", b"\xff", b"\xc3\xa9", b"\xef\xbb\xbf"),
    *(
        b"nan",
        b"inf",
        b"0",
        b"00",
        b"1",
        b"+",
        b"-",
        b".",
        b"e5",
        b"0x",
        b"\n\n",
        b'",',
        b',"',
        b"x",
    ),
]


@st.composite
def nearly_right(draw: st.DrawFn, header: bytes = b"") -> bytes:
    """Records with some bytes cut out and some put in."""
    cells = st.tuples(
        st.sampled_from(["1", "-5", None]),
        st.sampled_from(["x", "a,b", 'q"', "l\nl", "c\r\nd", "", "é", None]),
        st.sampled_from(["1.5", "nan", "-inf", "1e5", None]),
    )
    rows = draw(st.lists(cells, min_size=1, max_size=4))
    end = draw(st.sampled_from(["\n", "\r\n"]))
    text = header + as_csv([list(row) for row in rows], end, quote_all=False).encode()
    for _ in range(draw(st.integers(0, 3))):
        at, cut = draw(st.integers(0, len(text))), draw(st.integers(0, 3))
        text = text[:at] + draw(st.sampled_from([b"", *SCRAPS])) + text[at + cut :]
    return text


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=nearly_right(header=b"n,s,f\n"), rows=st.sampled_from([1, 2, 100]))
def test_any_bytes_end_in_batches_or_in_an_error_of_ours(text: bytes, rows: int) -> None:
    with contextlib.suppress(PartDecodeError, SchemaMismatch):
        batches("csv", text, TYPES, batch_rows=rows)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=nearly_right(), size=st.integers(1, 9))
@example(text=b'1,"a', size=9)
@example(text=b'1,"a"\r', size=1)
@example(text=b"\n1,a,\n", size=9)
def test_the_fast_path_reads_nothing_that_the_exact_one_reads_differently(
    text: bytes, size: int
) -> None:
    records = _Records(request(TYPES).declared, list(TYPES), "parts/p")
    chunks = [text[at : at + size] for at in range(0, len(text), size)]
    for block in blocks(chunks, QuotedScan(), Plan(2, 10**6, 10**6), "parts/p"):
        rest = _without_empty_last_line(block)
        try:
            fast = records._read_fast(rest) if len(rest.ends) else None
        except (Unsure, pa.ArrowException):
            continue
        if fast is not None:
            assert repr(fast.to_pydict()) == repr(records._read_exactly(rest).to_pydict())
