"""The jsonl reader: every row of the spec's table, what it refuses, and where it says it is."""

from __future__ import annotations

import json
import struct
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from written import DEEP, PLAIN_TYPES, JsonType, held, nullable, table

from lithi_datasets.errors import LithiError, PartDecodeError, SchemaMismatch

PAIR: JsonType = {"list": "int8", "length": 2}


def one(type: JsonType, text: str | bytes) -> Any:
    """The value of `{"a": text}`, held by an array of one."""
    raw = text if isinstance(text, bytes) else text.encode()
    return table("jsonl", b'{"a": ' + raw + b"}\n", {"a": type})["a"].combine_chunks()


def ticks(array: pa.Array) -> int:
    return int(array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())[0].as_py())


@pytest.mark.parametrize(
    ("type", "text", "value"),
    [
        ("bool", "true", True),
        ("int8", "-128", -128),
        ("int64", "9223372036854775807", 2**63 - 1),
        ("int64", "-9223372036854775808", -(2**63)),
        ("int64", "9007199254740993", 2**53 + 1),
        ("uint64", "18446744073709551615", 2**64 - 1),
        ("uint8", "-0", 0),
        ("float64", "5", 5.0),
        ("float64", "1E5", 1e5),
        ("float64", "0.1", 0.1),
        ("float64", "5e-324", 5e-324),
        ("float64", "1e-400", 0.0),
        ("float64", "18446744073709551616", 2.0**64),
        ("float16", "65504", 65504.0),
        ("string", '"00123"', "00123"),
        ("string", '""', ""),
        ("string", '"\\ud83d\\ude00\\u0000"', "\U0001f600\0"),
        ("large_string", '"é"', "é"),
        ("binary", '"+/8="', b"\xfb\xff"),
        ("large_binary", '""', b""),
        (PAIR, "[1, null]", [1, None]),
        ({"list": "int8"}, "[]", []),
        ({"large_list": {"list": "string"}}, '[["a"], null, []]', [["a"], None, []]),
    ],
)
def test_a_value_arrives_exactly(type: JsonType, text: str, value: object) -> None:
    assert one(type, text).to_pylist() == [value]


@pytest.mark.parametrize(
    ("type", "text", "count"),
    [
        ("date32", "0001-01-01", -719_162),
        ("date64", "9999-12-31", 253_402_214_400_000),
        ("date32", "2024-02-29", 19_782),
        ("time32[s]", "23:59:59", 86_399),
        ("time32[s]", "23:59:59.000000000000", 86_399),
        ("time32[ms]", "00:00:00.5", 500),
        ("time64[us]", "00:00:00.000001", 1),
        ("time64[ns]", "23:59:59.999999999", 86_399_999_999_999),
        ("timestamp[s]", "1969-12-31T23:59:59", -1),
        ("timestamp[s]", "1970-01-01T00:00:01.000", 1),
        ("timestamp[us]", "1970-01-01T00:00:00.1234560000", 123_456),
        ("timestamp[ns]", "2262-04-11T23:47:16.854775807", 2**63 - 1),
        ("timestamp[ns]", "1677-09-21T00:12:43.145224192", -(2**63)),
        ("timestamp[us, tz=UTC]", "1970-01-01T01:00:00+01:00", 0),
        ("timestamp[us, tz=UTC]", "1970-01-01T00:00:00z", 0),
        (
            "timestamp[ms, tz=America/New_York]",
            "1969-12-31T00:00:00.001-23:59",
            23 * 3_600_000 - 86_400_000 + 59 * 60_000 + 1,
        ),
        ("timestamp[s, tz=No/Such_Zone]", "1970-01-01T00:00:00-00:00", 0),
        ("timestamp[s, tz=UTC]", "0001-01-01T00:00:00Z", -62_135_596_800),
        ("timestamp[s, tz=UTC]", "9999-12-31T23:59:59Z", 253_402_300_799),
    ],
)
def test_dates_and_times_are_counted_exactly(type: str, text: str, count: int) -> None:
    assert ticks(one(type, f'"{text}"')) == count


@pytest.mark.parametrize("count", [0, 5, 2**63 - 1, -(2**63)])
def test_a_duration_is_an_integer_count_of_its_unit(count: int) -> None:
    assert ticks(one("duration[us]", str(count))) == count


@pytest.mark.parametrize(
    ("type", "text", "value"),
    [
        ("decimal128(5, 2)", "1.5", "1.50"),
        ("decimal128(5, 2)", "-999.99000", "-999.99"),
        ("decimal128(5, 2)", "1E-2", "0.01"),
        ("decimal128(5, 2)", "0E+999999999999999999", "0.00"),
        ("decimal128(38, 38)", "0." + "9" * 38, "0." + "9" * 38),
        ("decimal256(76, 0)", "-" + "9" * 76, "-" + "9" * 76),
        ("decimal128(38, 2)", "0." + "0" * 80, "0.00"),
        ("decimal128(10, 0)", ".0", "0"),
        ("decimal128(10, 0)", "7.", "7"),
    ],
)
def test_a_decimal_is_exact(type: str, text: str, value: str) -> None:
    (read,) = one(type, f'"{text}"').to_pylist()
    assert f"{read:f}" == value


BROKEN = PartDecodeError
WRONG = SchemaMismatch


@pytest.mark.parametrize(
    ("type", "text", "error", "words"),
    [
        ("int64", "1.0", WRONG, "not an integer"),
        ("int64", "1e2", WRONG, "not an integer"),
        ("int64", "true", WRONG, "not a JSON number"),
        ("int64", '"1"', WRONG, "the string '1'"),
        ("int64", "9223372036854775808", WRONG, "too large"),
        ("int8", "128", WRONG, "too large"),
        ("uint64", "-1", WRONG, "too large"),
        ("uint64", "9" * 5000, WRONG, "too large"),
        ("duration[s]", "1.0", WRONG, "not an integer"),
        ("float64", "true", WRONG, "not a JSON number"),
        ("float64", '"1.5"', WRONG, "not a JSON number"),
        ("float64", "1e400", WRONG, "too large"),
        ("float32", "3.5e38", WRONG, "too large"),
        ("float16", "65520", WRONG, "too large"),
        ("float64", "NaN", BROKEN, "NaN is not JSON"),
        ("float64", "Infinity", BROKEN, "not JSON"),
        ("float64", "-Infinity", BROKEN, "not JSON"),
        ("float64", "nan", BROKEN, "not JSON"),
        ("float64", "1.", BROKEN, "not JSON"),
        ("float64", ".5", BROKEN, "not JSON"),
        ("float64", "+1", BROKEN, "not JSON"),
        ("int64", "01", BROKEN, "not JSON"),
        ("int64", "0x10", BROKEN, "not JSON"),
        ("bool", "1", WRONG, "true or false"),
        ("bool", '"true"', WRONG, "true or false"),
        ("string", "1", WRONG, "not a JSON string"),
        ("string", "false", WRONG, "not a JSON string"),
        ("string", "[]", WRONG, "an array of 0"),
        ("string", '"\\ud800"', BROKEN, "lone surrogate"),
        ("string", '"\\udc00x"', BROKEN, "lone surrogate"),
        ("string", '"a\tb"', BROKEN, "not JSON"),
        ("string", b'"\xff"', BROKEN, "not UTF-8"),
        ("string", b'"\xed\xa0\x80"', BROKEN, "not UTF-8"),
        ("binary", '"YQ"', WRONG, "base64"),
        ("binary", '"YQ==\\n"', WRONG, "base64"),
        ("binary", '"YR=="', WRONG, "base64"),
        ("binary", '"_-8="', WRONG, "base64"),
        ("binary", '"é==="', WRONG, "base64"),
        ("decimal128(5, 2)", "1.5", WRONG, "not a JSON string"),
        ("decimal128(5, 2)", '"1.555"', WRONG, "beyond the scale"),
        ("decimal128(5, 2)", '"1000"', WRONG, "too large"),
        ("decimal128(5, 2)", '"1E+3"', WRONG, "too large"),
        ("decimal128(5, 2)", '"1E-999999999999999999999"', WRONG, "beyond the scale"),
        ("decimal128(38, 0)", '"' + "9" * 60 + '"', WRONG, "too large"),
        ("decimal128(38, 10)", '"' + "9" * 33 + '"', WRONG, "too large"),
        ("decimal128(5, 2)", '"NaN"', WRONG, "not a decimal number"),
        ("decimal128(5, 2)", '" 1"', WRONG, "not a decimal number"),
        ("date32", '"2023-02-29"', WRONG, "full-date"),
        ("date32", '"0000-01-01"', WRONG, "full-date"),
        ("date32", '"2023-1-1"', WRONG, "full-date"),
        ("date32", '"2023-01-01T00:00:00"', WRONG, "full-date"),
        ("date32", "19782", WRONG, "not a JSON string"),
        ("time32[s]", '"24:00:00"', WRONG, "partial-time"),
        ("time32[s]", '"23:59:60"', WRONG, "partial-time"),
        ("time32[s]", '"12:00"', WRONG, "partial-time"),
        ("time32[s]", '"12:00:00.001"', WRONG, "finer than the unit"),
        ("time32[s]", '"12:00:00Z"', WRONG, "partial-time"),
        ("timestamp[us]", '"2024-01-01T00:00:00Z"', WRONG, "no zone"),
        ("timestamp[us, tz=UTC]", '"2024-01-01T00:00:00"', WRONG, "has a zone"),
        ("timestamp[us]", '"2024-01-01 00:00:00"', WRONG, "date-time"),
        ("timestamp[us]", '"2024-01-01t00:00:00"', WRONG, "date-time"),
        ("timestamp[us]", '"2024-01-01"', WRONG, "date-time"),
        ("timestamp[us]", '"2024-01-01T00:00:00.0000001"', WRONG, "finer than the unit"),
        ("timestamp[us]", '"2016-12-31T23:59:60"', WRONG, "date-time"),
        ("timestamp[us]", '"0000-12-31T23:59:59"', WRONG, "date-time"),
        ("timestamp[us, tz=UTC]", '"2024-01-01T00:00:00+24:00"', WRONG, "date-time"),
        ("timestamp[us, tz=UTC]", '"2024-01-01T00:00:00+01"', WRONG, "date-time"),
        ("timestamp[ns]", '"2262-04-11T23:47:16.854775808"', WRONG, "out of the range"),
        ("timestamp[ns, tz=UTC]", '"2262-04-11T23:00:00-23:00"', WRONG, "out of the range"),
        ("timestamp[s, tz=UTC]", '"9999-12-31T23:59:59-00:01"', WRONG, "out of the range"),
        ("timestamp[s, tz=UTC]", '"0001-01-01T00:00:00+00:01"', WRONG, "out of the range"),
        (PAIR, "[1]", WRONG, "an array of 1"),
        (PAIR, "[1, 2, 3]", WRONG, "an array of 3"),
        (PAIR, '{"0": 1}', WRONG, "an object"),
        ({"list": "int8"}, "[1, 2.5]", WRONG, "a[1]"),
        (DEEP, '{"dya": null}', WRONG, "a.dya"),
        (DEEP, '{"day": null, "day": null}', WRONG, "a.day"),
        (DEEP, '{"rows": [{"z": 1}, {"z": "1"}]}', WRONG, "a.rows[1].z"),
        (DEEP, '{"rows": [{"z": 1, "z": 1}]}', WRONG, "a.rows[0].z"),
        (DEEP, "[]", WRONG, "not a JSON object"),
    ],
)
def test_what_the_table_does_not_allow_is_refused(
    type: JsonType, text: str | bytes, error: type[LithiError], words: str
) -> None:
    with pytest.raises(error) as caught:
        one(type, text)
    assert words in str(caught.value)
    assert "parts/p" in str(caught.value)
    assert "Line 1" in str(caught.value)


def test_a_type_error_names_part_line_field_declared_and_found() -> None:
    with pytest.raises(SchemaMismatch) as caught:
        table("jsonl", b'{"a": 1}\n\n{"a": 1.0}\n', {"a": "int16"})
    error = caught.value
    assert (error.path, error.expected, error.found) == ("parts/p", "int16", "the number 1.0")
    assert "Line 3, field 'a'" in error.problem


def test_a_list_and_a_struct_arrive_at_any_depth() -> None:
    text = (
        b'{"a": {"day": "1970-01-02", "rows": [{"z": 0.1}, null, {}], "halves": [1, null]}}\n'
        b'{"a": {"halves": null, "spans": [5, null]}}\n{"a": null}\n{}\n'
    )
    rows: list[dict[str, Any]] = [
        {"a": {"day": 1, "rows": [{"z": 0.1}, None, {"z": None}], "halves": [np.float16(1), None]}},
        {"a": {"spans": [5, None]}},
        {},
        {},
    ]
    assert table("jsonl", text, {"a": DEEP}) == held({"a": DEEP}, rows)


def test_an_absent_key_and_a_null_are_missing_values() -> None:
    read = table("jsonl", b'{"b": null}\n{}\n{"b": 1}', {"a": "string", "b": "int8"})
    assert read.to_pydict() == {"a": [None, None, None], "b": [None, None, 1]}


def test_key_order_and_escaped_keys_do_not_matter() -> None:
    read = table("jsonl", b'{"b": 1, "\\u0061": 2}\n{"a": 3, "b": 4}\n', {"a": "int8", "b": "int8"})
    assert read.to_pydict() == {"a": [2, 3], "b": [1, 4]}


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ('{"a": 1, "a": 1}', "a"),
        ('{"a": null, "a": null}', "a"),
        ('{"a": 1, "\\u0061": 1}', "a"),
        ('{"a": 1, "c": 1}', "c"),
        ('{"A": 1}', "A"),
    ],
)
def test_a_key_that_is_unknown_or_stands_twice_is_named(line: str, field: str) -> None:
    with pytest.raises(SchemaMismatch, match=f"Line 2, field '{field}'"):
        table("jsonl", f'{{"a": 1}}\n{line}\n'.encode(), {"a": "int8"})


def nearest(text: str, code: str) -> float:
    """The value of a struct code that is nearest to a decimal text, ties to even, exactly."""
    wanted, size = Fraction(text), struct.calcsize(code)
    kind = {2: "H", 4: "I"}[size]

    def value(bits: int) -> Fraction:
        return Fraction(struct.unpack(code, struct.pack(kind, bits))[0])

    low, high = 0, {2: 0x7BFF, 4: 0x7F7FFFFF}[size]
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if value(middle) <= abs(wanted) else (low, middle)
    best = min((low, high), key=lambda bits: (abs(value(bits) - abs(wanted)), bits & 1))
    return float(value(best)) * (-1 if wanted < 0 else 1)


@pytest.mark.parametrize(("type", "code"), [("float16", "e"), ("float32", "f")])
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_a_narrow_float_is_rounded_once(type: str, code: str, data: st.DataObject) -> None:
    # Halfway between two neighbours, and less than half a double's step beside that.
    bits = data.draw(st.integers(1, {"e": 0x7BFE, "f": 0x7F7FFFFE}[code]))
    kind = {"e": "H", "f": "I"}[code]
    below, above = (
        Fraction(struct.unpack(code, struct.pack(kind, b))[0]) for b in (bits, bits + 1)
    )
    half = (below + above) / 2
    shift = data.draw(st.sampled_from([-1, 0, 1])) * half / 2**70
    exact = half + shift
    digits = 400
    scaled = exact * 10**digits
    whole = int(scaled)
    text = f"{whole // 10**digits}.{whole % 10**digits:0{digits}d}"
    assert Fraction(text) == exact or shift
    assert one(type, text).to_pylist() == [nearest(text, code)]


@pytest.mark.parametrize("type", [*PLAIN_TYPES, DEEP, PAIR], ids=str)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_what_another_writer_wrote_is_read_back(type: JsonType, data: st.DataObject) -> None:
    pairs = data.draw(st.lists(nullable(type), min_size=1, max_size=6))
    types: dict[str, JsonType] = {"x": "int8", "a": type}
    ascii, absent = data.draw(st.booleans()), data.draw(st.booleans())
    rows = [
        {"a": w} if absent and w is None else {"a": w, "x": n} for n, (w, _) in enumerate(pairs)
    ]
    text = "".join(json.dumps(row, ensure_ascii=ascii) + "\n" for row in rows)
    expected = held(types, [{**r, "a": h} for r, (_, h) in zip(rows, pairs, strict=True)])
    assert table("jsonl", text.encode(), types, batch_rows=2).equals(expected)
