"""What the bundle writer's text parts say, against literal lines."""

from __future__ import annotations

import gzip
import json
from datetime import date
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lithi_datasets.encoding import encode
from lithi_datasets.errors import UsageError
from lithi_datasets.testing import compress

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def text(table: pa.Table, format: str, **options: object) -> str:
    return encode(table, format, compression=None, options=options).decode("utf-8")


def lines_of(values: list[object], type: pa.DataType) -> list[str]:
    """The values of one column as JSON, one a line."""
    return [
        line.removeprefix('{"v":').removesuffix("}")
        for line in text(pa.table({"v": pa.array(values, type)}), "jsonl").split("\n")[:-1]
    ]


def cells_of(values: list[object], type: pa.DataType) -> list[str]:
    """The values of one column as CSV cells (no value here holds a line break)."""
    return text(pa.table({"v": pa.array(values, type)}), "csv").split("\n")[1:-1]


BOTH = [
    pytest.param(pa.bool_(), [True, False], ["true", "false"], id="bool"),
    pytest.param(
        pa.int64(),
        [INT64_MIN, INT64_MAX, 2**53 + 1],
        [str(INT64_MIN), str(INT64_MAX), str(2**53 + 1)],
        id="int64",
    ),
    pytest.param(pa.uint64(), [2**64 - 1], ["18446744073709551615"], id="uint64"),
    pytest.param(
        pa.float64(),
        [0.1, -0.0, 1e300, 5e-324, 3.0],
        ["0.1", "-0.0", "1e+300", "5e-324", "3.0"],
        id="float64",
    ),
    pytest.param(pa.float32(), [0.1], ["0.10000000149011612"], id="float32"),
    pytest.param(pa.float16(), [0.1], ["0.0999755859375"], id="float16"),
    pytest.param(
        pa.duration("ns"), [INT64_MIN, INT64_MAX], [str(INT64_MIN), str(INT64_MAX)], id="duration"
    ),
]

QUOTED = [
    pytest.param(
        pa.decimal128(38, 3),
        [Decimal("-1.5"), Decimal(0), Decimal("9" * 35 + ".999")],
        ["-1.500", "0.000", "9" * 35 + ".999"],
        id="decimal128",
    ),
    pytest.param(pa.decimal256(76, 0), [Decimal("9" * 76)], ["9" * 76], id="decimal256"),
    pytest.param(pa.binary(), [b"\x00\xff", b"abc"], ["AP8=", "YWJj"], id="binary"),
    pytest.param(
        pa.date32(),
        [0, -719_528, -719_162, 2_932_896, 11_016, -25_567],
        ["1970-01-01", "0000-01-01", "0001-01-01", "9999-12-31", "2000-02-29", "1900-01-01"],
        id="date32",
    ),
    pytest.param(pa.date64(), [86_400_000], ["1970-01-02"], id="date64"),
    pytest.param(pa.time32("s"), [0, 86_399], ["00:00:00", "23:59:59"], id="time32-s"),
    pytest.param(pa.time32("ms"), [3_723_004], ["01:02:03.004"], id="time32-ms"),
    pytest.param(pa.time64("us"), [1], ["00:00:00.000001"], id="time64-us"),
    pytest.param(pa.time64("ns"), [86_399_999_999_999], ["23:59:59.999999999"], id="time64-ns"),
    pytest.param(
        pa.timestamp("s"),
        [0, -1, 253_402_300_799],
        ["1970-01-01T00:00:00", "1969-12-31T23:59:59", "9999-12-31T23:59:59"],
        id="timestamp-s",
    ),
    pytest.param(
        pa.timestamp("ns"),
        [INT64_MIN, INT64_MAX],
        ["1677-09-21T00:12:43.145224192", "2262-04-11T23:47:16.854775807"],
        id="timestamp-ns",
    ),
    pytest.param(
        pa.timestamp("us", "UTC"), [-1], ["1969-12-31T23:59:59.999999Z"], id="timestamp-utc"
    ),
    pytest.param(
        pa.timestamp("ms", "-03:30"), [0], ["1969-12-31T20:30:00.000-03:30"], id="timestamp-offset"
    ),
    pytest.param(
        pa.timestamp("s", "Europe/Berlin"),
        [1_729_987_200, 1_729_990_800],
        ["2024-10-27T02:00:00+02:00", "2024-10-27T02:00:00+01:00"],
        id="timestamp-zone-fold",
    ),
    pytest.param(
        pa.timestamp("s", "+14:00"),
        [253_402_300_799],
        ["9999-12-31T23:59:59Z"],
        id="timestamp-local-year-10000",
    ),
    pytest.param(
        pa.timestamp("s", "No/Such_Zone"),
        [0],
        ["1970-01-01T00:00:00Z"],
        id="timestamp-unknown-zone",
    ),
]


@pytest.mark.parametrize(("type", "values", "expected"), BOTH)
def test_numbers_read_the_same_in_jsonl_and_csv(
    type: pa.DataType, values: list[object], expected: list[str]
) -> None:
    assert lines_of(values, type) == expected
    assert cells_of(values, type) == expected


@pytest.mark.parametrize(("type", "values", "expected"), QUOTED)
def test_what_json_has_no_type_for_is_a_string(
    type: pa.DataType, values: list[object], expected: list[str]
) -> None:
    assert lines_of(values, type) == [f'"{item}"' for item in expected]
    assert cells_of(values, type) == expected


def test_non_finite_floats_are_csv_only() -> None:
    floats: list[object] = [float("nan"), float("inf"), float("-inf")]
    assert cells_of(floats, pa.float32()) == ["nan", "inf", "-inf"]
    with pytest.raises(UsageError, match="JSON"):
        lines_of([float("nan")], pa.float64())


def test_csv_text_is_literally_rfc_4180() -> None:
    strings = ["", None, "00123", "NA", "a,b", 'say "x"', "two\nlines", "\r", " x ", "\ufeff", "😀"]
    table = pa.table({"s": strings, "n,m": pa.array([1] * len(strings), pa.int8())})
    assert text(table, "csv", newline="\r\n").split("\r\n") == [
        's,"n,m"',
        '"",1',
        ",1",
        "00123,1",
        "NA,1",
        '"a,b",1',
        '"say ""x""",1',
        '"two\nlines",1',
        '"\r",1',
        " x ,1",
        '"\ufeff",1',
        "😀,1",
        "",
    ]


def test_csv_columns_in_another_order_with_a_bom_and_quotes() -> None:
    table = pa.table({"a": [1], "b": [True], "c": ["x"], "d": pa.array([None], pa.string())})
    written = encode(
        table,
        "csv",
        compression=None,
        options={"columns": ["c", "a", "d", "b"], "bom": True, "quote_all": True},
    )
    assert written == b'\xef\xbb\xbf"c","a","d","b"\n"x",1,,true\n'


def test_jsonl_text_is_literal_at_every_depth() -> None:
    point = pa.struct([("x", pa.int64()), ("at", pa.timestamp("ns"))])
    table = pa.table(
        {
            "s": ['"\\\u2028😀\n', None, ""],
            "l": pa.array([[1, None], None, []], pa.list_(pa.int64())),
            "f": pa.array([[b"a", b"b"], None, [None, b""]], pa.list_(pa.binary(), 2)),
            "p": pa.array([[{"x": 1, "at": 1}], [None], [{"x": None, "at": -1}]], pa.list_(point)),
        }
    )
    assert text(table, "jsonl").split("\n") == [
        (
            '{"s":"\\"\\\\\u2028😀\\n","l":[1,null],"f":["YQ==","Yg=="],'
            '"p":[{"x":1,"at":"1970-01-01T00:00:00.000000001"}]}'
        ),
        '{"s":null,"l":null,"f":null,"p":[null]}',
        '{"s":"","l":[],"f":[null,""],"p":[{"x":null,"at":"1969-12-31T23:59:59.999999999"}]}',
        "",
    ]
    absent = text(table, "jsonl", nulls="absent", ascii=True, newline="\r\n", bom=True)
    assert absent.split("\r\n")[1:] == [
        '{"p":[null]}',
        '{"s":"","l":[],"f":[null,""],"p":[{"at":"1969-12-31T23:59:59.999999999"}]}',
        "",
    ]
    assert absent.startswith('\ufeff{"s":"\\"\\\\\\u2028\\ud83d\\ude00\\n",')


def test_the_calendar_agrees_with_the_standard_library() -> None:
    days = range(-719_162, 2_932_897, 997)
    first = date(1970, 1, 1).toordinal()
    expected = [date.fromordinal(first + day).isoformat() for day in days]
    assert cells_of(list(days), pa.date32()) == expected


@pytest.mark.parametrize("stop", [1, 4, 7])
@pytest.mark.parametrize("start", [0, 1, 3])
def test_slices_of_encoded_and_nested_columns_keep_their_rows(start: int, stop: int) -> None:
    values = ["a", "a", None, "b", "b", "b", "c"]
    lists = [[1, 2], None, [3, 4], [None, 5], None, [6, 7], [8, 9]]
    integers = pa.array(values).dictionary_encode()
    structs = pa.array(
        [None if v is None else {"l": v} for v in lists],
        pa.struct([("l", pa.list_(pa.date32(), 2))]),
    )
    table = pa.table(
        {
            "d": integers,
            "r": pc.run_end_encode(pa.array(values)),
            "v": pa.array(values, pa.string_view()),
            "x": pa.array(lists, pa.list_(pa.int8(), 2)),
            "w": pa.array(lists, pa.list_view(pa.int8())),
            "s": structs,
        }
    ).slice(start, stop - start)
    days = {None: None} | {n: f"1970-01-{n + 1:02}" for n in range(1, 10)}
    expected = [
        {
            **dict.fromkeys("drv", value),
            **dict.fromkeys("xw", items),
            "s": None if items is None else {"l": [days[item] for item in items]},
        }
        for value, items in zip(values, lists, strict=True)
    ]
    written = [json.loads(line) for line in text(table, "jsonl").splitlines()]
    assert written == expected[start:stop]


@pytest.mark.parametrize(
    ("array", "problem"),
    [
        (pa.array([2_932_897], pa.date32()), "year"),
        (pa.array([1], pa.date64()), "whole day"),
        (pa.array([86_400], pa.time32("s")), "24 hours"),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int8())), "no manifest declares"),
    ],
)
def test_what_has_no_text_is_refused_by_field(array: pa.Array, problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as caught:
        text(pa.table({"v": array}), "jsonl")
    assert caught.value.path == "v"


def test_csv_refuses_lists_by_field_and_unknown_options_by_name() -> None:
    with pytest.raises(UsageError, match="lists") as caught:
        text(pa.table({"v": [[1]]}), "csv")
    assert caught.value.path == "v"
    with pytest.raises(UsageError, match="newlines"):
        text(pa.table({"v": [1]}), "csv", newlines="\n")


@pytest.mark.parametrize("members", [1, 3])
def test_members_and_frames_decode_to_the_whole(members: int) -> None:
    data = b"0123456789"
    zipped = compress(data, "gzip", members=members)
    assert gzip.decompress(zipped) == data
    assert zipped.count(b"\x1f\x8b") == members
    framed = compress(data, "zstd", members=members)
    assert framed.count(b"\x28\xb5\x2f\xfd") == members
    with pa.CompressedInputStream(pa.BufferReader(framed), "zstd") as stream:
        assert stream.read().startswith(b"0123" if members == 3 else data)
