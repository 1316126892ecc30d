from __future__ import annotations

import json
import math
import struct
import sys
from collections.abc import Callable
from typing import Any

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from lithi_datasets import strict_json
from lithi_datasets.errors import ManifestInvalid, UsageError
from lithi_datasets.json_faults import json_path, shown
from lithi_datasets.limits import LIMITS, MAX_INTEGER, Limits

BOM = b"\xef\xbb\xbf"

integers = st.integers(-MAX_INTEGER, MAX_INTEGER)
reals = st.floats(allow_nan=False, allow_infinity=False)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
documents = st.recursive(
    st.none() | st.booleans() | integers | reals | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=12,
)


def loads(raw: bytes, limits: Limits = LIMITS) -> Any:
    return strict_json.loads(raw, path="m.json", limits=limits)


ATTACKS = {
    "duplicate member": (b'{"a": 1, "a": 1}', "$.a", "twice"),
    "duplicate member, deep": (
        b'[0, {"p": [{"x": 1, "y": {"k": 1, "k": 2}}]}]',
        "$[1].p[0].y.k",
        "",
    ),
    "duplicate member, escaped": (b'{"a": 1, "\\u0061": 1}', "$.a", "twice"),
    "NaN": (b'{"a": [1, NaN]}', "$.a[1]", "NaN"),
    "Infinity": (b'{"a": Infinity}', "$.a", "Infinity"),
    "-Infinity": (b'{"a": -Infinity}', "$.a", "-Infinity"),
    "a float that overflows": (b'{"a": {"b": 1e400}}', "$.a.b", "1e400"),
    "an integer over 2^53-1": (b'{"a": [0, 9007199254740992]}', "$.a[1]", "9007199254740992"),
    "an integer under -2^53+1": (b'{"a": -9007199254740992}', "$.a", "-9007199254740992"),
    "an integer of 5,000 digits": (b'{"a": ' + b"7" * 5000 + b"}", "$.a", "4920 characters more"),
    "a top number too large": (b"9007199254740992", "$", "too large"),
    "an escaped high surrogate": (b'{"a": "x\\ud83dx"}', "$.a", "surrogate"),
    "an escaped low surrogate": (b'{"a": "\\uDE00"}', "$.a", "surrogate"),
    "surrogates the wrong way round": (b'{"a": "\\ude00\\ud83d"}', "$.a", "surrogate"),
    "a surrogate at the end of one string": (b'["\\ud83d", "\\ude00"]', "$[0]", "surrogate"),
    "a surrogate in a name": (b'{"a": {"\\ud83d": 1}}', '$.a["\\ud83d"]', "surrogate"),
    "a surrogate as a top string": (b'"\\ud83d"', "$", "surrogate"),
    "a raw surrogate": (b'{"a": "\xed\xa0\xbd"}', "$", "UTF-8"),
    "an overlong form": (b'{"a": "\xc0\xaf"}', "$", "UTF-8"),
    "Latin-1": ('{"a": "é"}'.encode("latin-1"), "$", "UTF-8"),
    "UTF-16 with a mark": ('{"a": 1}'.encode("utf-16"), "$", "UTF-8"),
    "UTF-16 without a mark": ('{"a": 1}'.encode("utf-16-le"), "$", "line 1, column 2"),
    "two byte order marks": (BOM + BOM + b"{}", "$", "second BOM"),
    "nothing": (b"", "$", "nothing"),
    "only spaces": (b" \n ", "$", "nothing"),
    "only a byte order mark": (BOM, "$", "nothing"),
    "trailing data": (b'{"a": 1} {"a": 1}', "$", "after the end"),
    "a trailing NUL": (b'{"a": 1}\x00', "$", "after the end"),
    "cut short": (b'{"a": {"b": [1, 2', "$.a.b[1]", "the end"),
    "cut short in a string": (b'{"a": {"b": "x', "$.a.b", "Unterminated"),
    "single quotes": (b"{'a': 1}", "$", "line 1, column 2"),
    "a comment": (b'{"a": /* 1 */ 1}', "$.a", "/* 1 */"),
    "a raw control character": (b'{"a": "x\ny"}', "$.a", "control"),
    "a leading zero": (b'{"a": 01}', "$.a", "line 1"),
    "a plus sign": (b'{"a": +1}', "$.a", "+1"),
    "a no-break space between tokens": ('{"a":\u00a01}'.encode(), "$.a", "line 1"),
    "a bare word": (b'{"a": True}', "$.a", "True"),
    "a strange name on the way": (b'{"a b": {"c-d": [NaN]}}', '$["a b"]["c-d"][0]', "NaN"),
    "the first of two faults": (b'{"x": [1e999], "a": 1, "a": 1}', "$.x[0]", "1e999"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_refused_and_its_json_path_is_named(attack: str) -> None:
    raw, path, word = ATTACKS[attack]
    with pytest.raises(ManifestInvalid, match=r"m\.json") as caught:
        loads(raw)
    assert caught.value.path == path
    assert word in str(caught.value)
    assert caught.value.expected is not None
    assert caught.value.found is not None
    assert len(str(caught.value)) < 900


def test_a_trailing_comma_is_refused_where_it_stands() -> None:
    # The syntax error is at the comma or after it, by the version of Python.
    with pytest.raises(ManifestInvalid, match=r"line 1, column 1[123]") as caught:
        loads(b'{"a": [1, 2,]}')
    assert caught.value.path in {"$.a[1]", "$.a[2]"}


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (BOM + b'{"a": 1}', {"a": 1}),
        (b' \r\n\t{"a": 1}\n', {"a": 1}),
        (b"[9007199254740991, -9007199254740991, -0]", [MAX_INTEGER, -MAX_INTEGER, 0]),
        (b"[1.0, 1e3, 1e-400, -0.0, 1E+2]", [1.0, 1000.0, 0.0, -0.0, 100.0]),
        (b'["\\ud83d\\ude00", "\xf0\x9f\x98\x80"]', ["😀", "😀"]),
        (b'"\\\\ud83d"', "\\ud83d"),
        (b'{"": {"a": [null, true, false]}}', {"": {"a": [None, True, False]}}),
        (b'[{"a": 1}, {"a": 1}]', [{"a": 1}, {"a": 1}]),
        (b'"\\u0000\\u007f\\ufeff"', "\0\x7f\ufeff"),
    ],
)
def test_what_strict_json_allows(raw: bytes, value: object) -> None:
    assert loads(raw) == value


@pytest.mark.parametrize(
    ("opening", "closing", "times"),
    [(b"[", b"]", 64), (b'{"a":', b"}", 64), (b'[{"a":', b"}]", 32)],
)
def test_64_levels_are_read_and_65_are_refused(opening: bytes, closing: bytes, times: int) -> None:
    assert loads(opening * times + b"1" + closing * times) is not None
    with pytest.raises(ManifestInvalid, match="at most 64 levels") as caught:
        loads(opening * times + b"[]" + closing * times)
    steps = caught.value.path or ""
    assert steps.count("[0]") + steps.count(".a") == 64


@pytest.mark.parametrize(
    "raw", [b"[" * 1_000_000, b'{"a":' * 200_000, b"[" * 200_000 + b"]" * 200_000]
)
def test_nesting_beyond_the_stack_is_refused(raw: bytes) -> None:
    with pytest.raises(ManifestInvalid, match="nested too deeply"):
        loads(raw)


def outcome(function: Callable[[int], Any], argument: int) -> type:
    try:
        return type(function(argument))
    except Exception as error:
        return type(error)


def test_a_document_deeper_than_the_stack_that_is_left_is_our_error() -> None:
    raw = b"[" * 60 + b"]" * 60
    limit = sys.getrecursionlimit()

    def at_depth(levels: int) -> Any:
        return loads(raw) if levels == 0 else at_depth(levels - 1)

    outcomes = {outcome(at_depth, levels) for levels in range(limit - 200, limit - 20, 5)}
    assert list in outcomes
    # RecursionError: the stack ended before the parser was called.
    assert outcomes <= {list, ManifestInvalid, RecursionError}


def test_the_size_is_checked_before_anything_is_parsed() -> None:
    limits = Limits(manifest_bytes=10)
    assert loads(b'{"a": 123}', limits) == {"a": 123}
    with pytest.raises(ManifestInvalid, match="too large") as caught:
        loads(b'{"a": NaN  ', limits)
    assert (caught.value.expected, caught.value.found) == ("at most 10 bytes", "11 bytes")
    assert LIMITS.manifest_bytes == 256 * 1024 * 1024


def test_text_instead_of_bytes_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="bytes"):
        loads("{}")  # type: ignore[arg-type]


def test_bytes_of_any_kind_are_read() -> None:
    assert loads(bytearray(BOM + b"[1]")) == [1]  # type: ignore[arg-type]
    assert loads(memoryview(b"[1]")) == [1]  # type: ignore[arg-type]


@settings(deadline=None)
@given(documents, st.booleans())
def test_a_valid_document_is_read_as_json_reads_it(document: object, ascii_only: bool) -> None:
    raw = json.dumps(document, ensure_ascii=ascii_only).encode()
    assert loads(raw) == json.loads(raw)


FRAGMENTS = st.sampled_from(
    [*'[]{}:,"\\ 01.e-', '"a"', "NaN", "1e999", "null", "\\ud800", "\ufeff", "9" * 17, "[" * 70]
)


@settings(deadline=None, max_examples=200)
@given(st.lists(FRAGMENTS, max_size=12).map("".join) | st.text(), st.binary(max_size=2))
def test_no_bytes_bring_a_foreign_error(body: str, tail: bytes) -> None:
    raw = body.encode("utf-8", "surrogatepass") + tail
    try:
        value = loads(raw)
    except ManifestInvalid as error:
        assert str(error.path).startswith("$")  # noqa: PT017 - a value is a right outcome as well
    else:
        assert value == json.loads(raw.removeprefix(BOM))


@settings(deadline=None, max_examples=200)
@given(documents)
def test_the_canonical_form_is_that_of_rfc8785(document: Any) -> None:
    assert strict_json.canonical(document) == rfc8785.dumps(document)


@settings(deadline=None, max_examples=200)
@given(documents)
def test_what_the_parser_calls_plain_is_canonical_by_the_fast_encoder(document: object) -> None:
    parsed = strict_json.read(json.dumps(document).encode(), path="m.json", limits=LIMITS)
    fast = strict_json.canonical(parsed.value, plain=parsed.plain)
    assert fast == rfc8785.dumps(parsed.value)


@settings(deadline=None, max_examples=250)
@given(reals | st.integers(-(2**70), 2**70).map(float) | st.decimals(-1, 1, places=9).map(float))
def test_a_float_that_counts_as_plain_prints_as_in_ecmascript(number: float) -> None:
    if strict_json._is_plain(number):
        assert json.dumps(number).encode() == rfc8785.dumps(number)
    assert strict_json.canonical([number]) == rfc8785.dumps([number])


# RFC 8785, appendix B: IEEE 754 bits, and the text in ECMAScript.
ECMASCRIPT_NUMBERS = {
    0x0000000000000000: "0",
    0x8000000000000000: "0",
    0x0000000000000001: "5e-324",
    0x7FEFFFFFFFFFFFFF: "1.7976931348623157e+308",
    0x4340000000000000: "9007199254740992",
    0x44B52D02C7E14AF5: "9.999999999999997e+22",
    0x444B1AE4D6E2EF50: "1e+21",
    0x444B1AE4D6E2EF4F: "999999999999999900000",
    0x3EB0C6F7A0B5ED8D: "0.000001",
    0x3EB0C6F7A0B5ED8C: "9.999999999999997e-7",
    0x41B3DE4355555553: "333333333.3333332",
    0xBECBF647612F3696: "-0.0000033333333333333333",
    0x43143FF3C1CB0959: "1424953923781206.2",
}


@pytest.mark.parametrize("bits", ECMASCRIPT_NUMBERS)
def test_numbers_of_the_rfc_print_as_it_says(bits: int) -> None:
    (number,) = struct.unpack(">d", bits.to_bytes(8, "big"))
    assert strict_json.canonical({"n": number}) == b'{"n":%b}' % ECMASCRIPT_NUMBERS[bits].encode()


def test_names_are_ordered_by_utf16_units() -> None:
    # RFC 8785, section 3.2.3; U+1F600 sorts before U+FB33 only as UTF-16.
    names = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6"]
    expected = ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]
    nested = strict_json.canonical({"x": dict.fromkeys(names, 1), "y": [1, 2]})
    assert list(json.loads(nested)["x"]) == expected
    assert list(json.loads(strict_json.canonical(dict.fromkeys(names, 1)))) == expected


RING: list[Any] = []
RING.append(RING)


@pytest.mark.parametrize(
    "value",
    [
        {"a": math.nan},
        {"a": [math.inf]},
        {"a": 2**53},
        {"a": {1, 2}},
        {"a": b"bytes"},
        {1: "a"},
        {"a": {1: "a"}},
        {"a": "\ud800"},
        {"\ud800": 1},
        {"a": RING},
        pytest.param(object(), id="object"),
    ],
    ids=repr,
)
def test_what_has_no_canonical_form_is_our_error(value: object) -> None:
    with pytest.raises(ManifestInvalid, match="canonical form"):
        strict_json.canonical(value)


def test_a_json_path_quotes_what_is_not_a_plain_name() -> None:
    assert json_path([]) == "$"
    assert json_path(["parts", 3, "rows"]) == "$.parts[3].rows"
    assert json_path(["a.b", "", 'q"', "é"]) == '$["a.b"][""]["q\\""]["\\u00e9"]'
    assert len(json_path(["x" * 10_000])) < 200


def test_a_found_value_is_shown_short_and_harmless() -> None:
    assert shown(None) == "null"
    assert shown(True) == "true"
    assert shown("a\u202eb\n") == '"a\\u202eb\\n"'
    assert shown({"a": 1, "b": 2}) == "an object of 2 members"
    assert shown((1, 2, 3)) == "a list of 3 items"
    assert shown(1.5) == "1.5"
    assert len(shown("x" * 10_000_000)) < 150
    assert len(shown(10**100_000)) < 150
    assert shown(b"x") == "a value of type bytes"
