"""The table of hard values that the conformance matrix is made from: data alone.

Each case says a type three times, independently: as a manifest declares it, as the Arrow type that
must arrive, and as values (held, text). `held` is what `pyarrow.array` takes for the value, `text`
what stands in a JSON line or a CSV cell for the same value. Nothing here is computed by the
package: the texts, the integers beside them and the Arrow types were written down by hand from the
published format.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

__all__ = ["CASES", "FORMATS", "SHAPES", "Case", "Value", "Writing"]

Value: TypeAlias = tuple[Any, str]
"""(held, text): a value for `pyarrow.array`, and the same as text."""

SHAPES = ("required", "nullable", "nested")
"""How a type stands in a schema: not nullable; nullable, with a null; inside a struct, alone and as
a list, with nulls at every depth."""


@dataclass(frozen=True)
class Writing:
    """One way to write a part.

    Attributes:
        format: `parts[].format`.
        compression: `parts[].compression`.
        stream: for `arrow`, an IPC stream and not an IPC file.
    """

    format: str
    _: KW_ONLY
    compression: str | None = None
    stream: bool = False


FORMATS: Mapping[str, Writing] = MappingProxyType(
    {
        "parquet": Writing("parquet"),
        "arrow file": Writing("arrow"),
        "arrow stream": Writing("arrow", stream=True),
        "jsonl": Writing("jsonl"),
        "jsonl gzip": Writing("jsonl", compression="gzip"),
        "jsonl zstd": Writing("jsonl", compression="zstd"),
        "csv": Writing("csv"),
        "csv gzip": Writing("csv", compression="gzip"),
        "csv zstd": Writing("csv", compression="zstd"),
    }
)
"""The columns of the matrix."""


@dataclass(frozen=True)
class Case:
    """One row of the matrix.

    Attributes:
        name: of the row.
        type: as a manifest declares it.
        arrow: the Arrow type that must arrive.
        values: hard values, none of them null.
        quoted: in JSON the text is a string, not a token of its own.
        class_names: of an integer field.
        written: the Arrow type that Parquet and Arrow parts hold; None is `arrow`.
    """

    name: str
    type: Any
    arrow: pa.DataType
    values: tuple[Value, ...]
    _: KW_ONLY
    quoted: bool = False
    class_names: tuple[str, ...] | None = None
    written: pa.DataType | None = None

    @property
    def composite(self) -> bool:
        """Whether it is a list or struct, which a CSV part can't hold."""
        return not isinstance(self.type, str)


def _plain(type: str, arrow: pa.DataType, values: Sequence[Value], *, quoted: bool = False) -> Case:
    return Case(type, type, arrow, tuple(values), quoted=quoted)


def _quoted(type: str, arrow: pa.DataType, values: Sequence[Value]) -> Case:
    return _plain(type, arrow, values, quoted=True)


def _integers(type: str, arrow: pa.DataType, *values: int) -> Case:
    return _plain(type, arrow, [(value, str(value)) for value in values])


_NON_FINITE: tuple[Value, ...] = ((math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf"))

_NUMBERS = (
    _plain("bool", pa.bool_(), [(True, "true"), (False, "false")]),
    _integers("int8", pa.int8(), -128, -1, 0, 127),
    _integers("int16", pa.int16(), -32768, 0, 32767),
    _integers("int32", pa.int32(), -2147483648, 0, 16777217, 2147483647),
    _integers(
        *("int64", pa.int64()),
        *(-9223372036854775808, -9007199254740993, 0, 9007199254740993, 9223372036854775807),
    ),
    _integers("uint8", pa.uint8(), 0, 128, 255),
    _integers("uint16", pa.uint16(), 0, 32768, 65535),
    _integers("uint32", pa.uint32(), 0, 2147483648, 4294967295),
    _integers(
        *("uint64", pa.uint64()),
        *(0, 9007199254740993, 9223372036854775809, 18446744073709551615),
    ),
    _plain(
        "float16",
        pa.float16(),
        [
            (np.float16(65504.0), "65504"),
            (np.float16(2.0**-24), "6e-8"),
            (np.float16(-0.0), "-0.0"),
            (np.float16(1.5), "1.5"),
            *((np.float16(value), text) for value, text in _NON_FINITE),
        ],
    ),
    _plain(
        "float32",
        pa.float32(),
        [
            (3.4028234663852886e38, "3.4028235e38"),
            (2.0**-149, "1.4e-45"),
            (0.10000000149011612, "0.1"),
            (-0.0, "-0.0"),
            (16777216.0, "16777217"),
            *_NON_FINITE,
        ],
    ),
    _plain(
        "float64",
        pa.float64(),
        [
            (1e300, "1e300"),
            (1.7976931348623157e308, "1.7976931348623157e308"),
            (5e-324, "5e-324"),
            (0.1, "0.1"),
            (-0.0, "-0.0"),
            (3.0, "3"),
            (9007199254740992.0, "9007199254740993"),
            *_NON_FINITE,
        ],
    ),
)

_WORDS = (
    *("", "00123", "NA", "nan", "null", "true", "1e5", " x ", "a,b", 'say "it"', "two\nlines"),
    *("cr\r\nlf", "\\", "\ufeffmark", "\U0001f600", "e\u0301", "\u2028", "2026-11-02"),
)
_TEXTS: tuple[Value, ...] = tuple((word, word) for word in _WORDS)
_BYTES: tuple[Value, ...] = (
    (b"", ""),
    (b"\x00", "AA=="),
    (b"\xff\xfe\xfd", "//79"),
    (b"NA", "TkE="),
    (b"\x00\r\n,", "AA0KLA=="),
)

_LITERALS = (
    _quoted("string", pa.string(), _TEXTS),
    _quoted("large_string", pa.large_string(), _TEXTS),
    _quoted("binary", pa.binary(), _BYTES),
    _quoted("large_binary", pa.large_binary(), _BYTES),
    _quoted(
        "decimal128(38, 10)",
        pa.decimal128(38, 10),
        [
            (Decimal("9" * 28 + "." + "9" * 10), "9" * 28 + "." + "9" * 10),
            (Decimal("-" + "9" * 28 + "." + "9" * 10), "-" + "9" * 28 + "." + "9" * 10),
            (Decimal("0.0000000001"), "0.0000000001"),
            (Decimal("1.5000000000"), "1.500000000000"),
            (Decimal("0E-10"), "0"),
        ],
    ),
    _quoted(
        "decimal128(38, 0)",
        pa.decimal128(38, 0),
        [(Decimal("9" * 38), "9" * 38), (Decimal("-" + "9" * 38), "-" + "9" * 38)],
    ),
    _quoted(
        "decimal128(5, 5)",
        pa.decimal128(5, 5),
        [(Decimal("0.99999"), "0.99999"), (Decimal("-0.00001"), "-0.00001")],
    ),
    _quoted(
        "decimal256(76, 38)",
        pa.decimal256(76, 38),
        [
            (Decimal("9" * 38 + "." + "9" * 38), "9" * 38 + "." + "9" * 38),
            (Decimal("-0." + "0" * 37 + "1"), "-0." + "0" * 37 + "1"),
        ],
    ),
)

_MOMENTS = (
    _quoted(
        "date32",
        pa.date32(),
        [(-719162, "0001-01-01"), (-1, "1969-12-31"), (0, "1970-01-01"), (2932896, "9999-12-31")],
    ),
    _quoted(
        "date64",
        pa.date64(),
        [(-62135596800000, "0001-01-01"), (-86400000, "1969-12-31"), (951782400000, "2000-02-29")],
    ),
    _quoted("time32[s]", pa.time32("s"), [(0, "00:00:00"), (86399, "23:59:59")]),
    _quoted("time32[ms]", pa.time32("ms"), [(1, "00:00:00.001"), (86399999, "23:59:59.999")]),
    _quoted(
        "time64[us]", pa.time64("us"), [(1, "00:00:00.000001"), (86399999999, "23:59:59.999999")]
    ),
    _quoted(
        "time64[ns]",
        pa.time64("ns"),
        [(1, "00:00:00.000000001"), (86399999999999, "23:59:59.999999999")],
    ),
    *(
        _integers(
            *(f"duration[{unit}]", pa.duration(unit)),
            *(-9223372036854775807, -1, 0, 9007199254740993, 9223372036854775807),
        )
        for unit in ("s", "ms", "us", "ns")
    ),
    _quoted(
        "timestamp[s]",
        pa.timestamp("s"),
        [
            (-62135596800, "0001-01-01T00:00:00"),
            (-1, "1969-12-31T23:59:59"),
            (253402300799, "9999-12-31T23:59:59.000"),
        ],
    ),
    _quoted(
        "timestamp[ms]",
        pa.timestamp("ms"),
        [(-1, "1969-12-31T23:59:59.999"), (253402300799999, "9999-12-31T23:59:59.999")],
    ),
    _quoted(
        "timestamp[us]",
        pa.timestamp("us"),
        [
            (-62135596800000000, "0001-01-01T00:00:00"),
            (-1, "1969-12-31T23:59:59.999999"),
            (253402300799999999, "9999-12-31T23:59:59.999999"),
        ],
    ),
    _quoted(
        "timestamp[ns]",
        pa.timestamp("ns"),
        [
            (-9223372036854775807, "1677-09-21T00:12:43.145224193"),
            (-1, "1969-12-31T23:59:59.999999999"),
            (9223372036854775807, "2262-04-11T23:47:16.854775807"),
        ],
    ),
    _quoted(
        "timestamp[s, tz=UTC]",
        pa.timestamp("s", "UTC"),
        [(-1, "1969-12-31T23:59:59Z"), (0, "1970-01-01T05:30:00+05:30")],
    ),
    _quoted(
        "timestamp[ms, tz=Europe/Berlin]",
        pa.timestamp("ms", "Europe/Berlin"),
        [(-3600001, "1969-12-31T23:59:59.999+01:00"), (1, "1970-01-01T00:00:00.001Z")],
    ),
    _quoted(
        "timestamp[us, tz=UTC]",
        pa.timestamp("us", "UTC"),
        [(-1, "1969-12-31T23:59:59.999999Z"), (1, "1969-12-31T19:00:00.000001-05:00")],
    ),
    _quoted(
        "timestamp[ns, tz=+05:30]",
        pa.timestamp("ns", "+05:30"),
        [(-1, "1970-01-01T05:29:59.999999999+05:30"), (1, "1970-01-01T00:00:00.000000001Z")],
    ),
)

_POINT = [
    {"name": "x", "type": "int64", "nullable": False},
    {"name": "when", "type": "timestamp[ns, tz=UTC]"},
]
_POINT_ARROW = pa.struct(
    [pa.field("x", pa.int64(), nullable=False), pa.field("when", pa.timestamp("ns", "UTC"))]
)
_POINTS: tuple[Value, ...] = (
    (
        {"x": 9007199254740993, "when": -1},
        '{"x": 9007199254740993, "when": "1969-12-31T23:59:59.999999999Z"}',
    ),
    ({"x": -1, "when": None}, '{"when": null, "x": -1}'),
    ({"x": 0, "when": None}, '{"x": 0}'),
)
# What arrives has no nullability: `datasets` knows no other.
_POINT_HELD = pa.struct([("x", pa.int64()), ("when", pa.timestamp("ns", "UTC"))])


def _in_list(values: Sequence[Value], *indexes: int | None) -> Value:
    chosen = [(None, "null") if index is None else values[index] for index in indexes]
    return [held for held, _ in chosen], f"[{', '.join(text for _, text in chosen)}]"


_NESTED = (
    Case(
        "list of int64",
        {"list": "int64"},
        pa.list_(pa.int64()),
        (([], "[]"), ([9007199254740993, None, -1], "[9007199254740993, null, -1]")),
    ),
    Case(
        "list of 3 uint8",
        {"list": "uint8", "length": 3},
        pa.list_(pa.uint8(), 3),
        (([0, None, 255], "[0, null, 255]"), ([1, 2, 3], "[1,2,3]")),
    ),
    Case(
        "large_list of string",
        {"large_list": "string"},
        pa.large_list(pa.string()),
        (([], "[]"), (["", None, "\U0001f600"], '["", null, "\\ud83d\\ude00"]')),
    ),
    Case(
        "list of lists of float32",
        {"list": {"list": "float32"}},
        pa.list_(pa.list_(pa.float32())),
        (([[], None, [0.5, None]], "[[], null, [0.5, null]]"), ([], "[]")),
    ),
    Case("struct", {"struct": _POINT}, _POINT_HELD, _POINTS, written=_POINT_ARROW),
    Case(
        "list of structs",
        {"list": {"struct": _POINT}},
        pa.list_(_POINT_HELD),
        (_in_list(_POINTS, 0, None, 1), _in_list(_POINTS)),
        written=pa.list_(_POINT_ARROW),
    ),
    Case(
        "list of 2 structs",
        {"list": {"struct": _POINT}, "length": 2},
        pa.list_(_POINT_HELD, 2),
        (_in_list(_POINTS, 0, 1), _in_list(_POINTS, 2, None)),
        written=pa.list_(_POINT_ARROW, 2),
    ),
    Case(
        "class_names on int8",
        "int8",
        pa.int64(),
        ((0, "0"), (2, "2"), (1, "1")),
        class_names=("ham", "spam", "ẞ"),
        written=pa.int8(),
    ),
    Case(
        "class_names on uint64",
        "uint64",
        pa.int64(),
        ((0, "0"), (1, "1")),
        class_names=("ham", "spam"),
        written=pa.uint64(),
    ),
)

CASES: tuple[Case, ...] = (*_NUMBERS, *_LITERALS, *_MOMENTS, *_NESTED)
"""The rows of the matrix."""
