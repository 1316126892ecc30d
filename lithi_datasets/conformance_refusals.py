"""The casts and slips that must be refused by name: data alone.

Each is what some library does in silence: it turns numbers into text, drops a zone, fills a missing
column with nulls. Each case writes the slip as every format can hold it; where a format has no way
to say it (a CSV cell has no type of its own), the writing is None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

__all__ = ["REFUSALS", "Refusal"]


@dataclass(frozen=True)
class Refusal:
    """One thing that is refused in each format that can hold it.

    Attributes:
        name: of the row.
        fields: `schema.fields` after the id.
        error: name of the error's class.
        binary: columns after the id, as Parquet and Arrow parts hold them.
        jsonl: members of the only line after the id, as JSON text.
        csv: (header, cells) of the only line after the id.
        says: what the message must name.
        cannot: formats whose files can't hold it either.
    """

    name: str
    fields: tuple[Mapping[str, Any], ...]
    error: str
    _: KW_ONLY
    binary: pa.Table | None = None
    jsonl: str | None = None
    csv: tuple[str, str] | None = None
    says: str = "value"
    cannot: tuple[str, ...] = ()


def _one(
    name: str,
    type: Any,
    array: pa.Array | None = None,
    *,
    json: str | None = None,
    cell: str | None = None,
    error: str = "SchemaMismatch",
    says: str = "value",
    **declared: Any,
) -> Refusal:
    """One column, one row."""
    return Refusal(
        name,
        ({"name": "value", "type": type, **declared},),
        error,
        binary=None if array is None else pa.table({"value": array}),
        jsonl=None if json is None else f'"value": {json}',
        csv=None if cell is None else ("value", cell),
        says=says,
    )


_US = pa.timestamp("us")
_UTC = pa.timestamp("us", "UTC")
_PAIR = {"struct": [{"name": "a", "type": "int64"}, {"name": "b", "type": "int64"}]}
_INT = {"name": "value", "type": "int64"}
_TWO = ({"name": "value", "type": "int64"}, {"name": "other", "type": "int64"})

_CASTS = (
    _one("an integer for a string", "string", pa.array([123]), json="123"),
    _one("a string of digits for an integer", "int64", pa.array(["00123"]), json='"00123"'),
    _one("text for an integer", "int64", pa.array(["x"]), json='"x"', cell="x"),
    _one("1e300 for a float32", "float32", pa.array([1e300]), json="1e300", cell="1e300"),
    _one("a float64 for a float32", "float32", pa.array([0.1])),
    _one("1e400 for a float64", "float64", json="1e400", cell="1e400"),
    _one("300 for an int8", "int8", pa.array([300], pa.int64()), json="300", cell="300"),
    _one(
        *("2^63 for an int64", "int64", pa.array([2**63], pa.uint64())),
        json="9223372036854775808",
        cell="9223372036854775808",
    ),
    _one("a negative number for a uint8", "uint8", pa.array([-1]), json="-1", cell="-1"),
    _one("a whole float for an integer", "int64", pa.array([3.0]), json="3.0", cell="3.0"),
    _one("an exponent for an integer", "int64", json="1e2", cell="1e2"),
    _one("an integer for a bool", "bool", pa.array([1]), json="1", cell="1"),
    _one("a bool for an integer", "int64", pa.array([True]), json="true", cell="true"),
    _one(
        *("a zone dropped", "timestamp[us]", pa.array([0], _UTC)),
        json='"1970-01-01T00:00:00Z"',
        cell="1970-01-01T00:00:00Z",
    ),
    _one(
        *("a zone added", "timestamp[us, tz=UTC]", pa.array([0], _US)),
        json='"1970-01-01T00:00:00"',
        cell="1970-01-01T00:00:00",
    ),
    _one(
        *("digits finer than the unit", "timestamp[s]", pa.array([1], pa.timestamp("ms"))),
        json='"1970-01-01T00:00:00.001"',
        cell="1970-01-01T00:00:00.001",
    ),
    Refusal(
        "a date64 within a day",
        ({"name": "value", "type": "date32"},),
        "SchemaMismatch",
        binary=pa.table({"value": pa.array([1], pa.date64())}),
        cannot=("parquet",),  # its dates are days
    ),
    _one("a date for a timestamp", "timestamp[s]", json='"1970-01-01"', cell="1970-01-01"),
    _one(
        *("decimal digits beyond the scale", "decimal128(5, 2)"),
        pa.array([Decimal("1.234")], pa.decimal128(5, 3)),
        json='"1.234"',
        cell="1.234",
    ),
    _one("a number for a decimal", "decimal128(5, 2)", pa.array([1.5]), json="1.5"),
    _one("a column of the null type", "int64", pa.nulls(1)),
    _one("text that is not base64", "binary", json='"AA="', cell="AA="),
    _one(
        *("a list of another length", {"list": "int64", "length": 2}),
        pa.array([[1, 2, 3]]),
        json="[1, 2, 3]",
    ),
)

_VALUES = (
    _one("NaN in JSON", "float64", json="NaN", error="PartDecodeError", says="NaN"),
    _one("a space before a number", "int64", cell=" 1"),
    _one('"" for a number', "int64", cell='""'),
    _one(
        *("a null in a required field", "int64", pa.array([None], pa.int64())),
        json="null",
        cell="",
        error="NullInRequiredField",
        nullable=False,
    ),
    _one(
        *("a null in a required struct field",),
        {"struct": [{"name": "a", "type": "int64", "nullable": False}]},
        pa.array([{"a": None}], pa.struct([("a", pa.int64())])),
        json='{"a": null}',
        error="NullInRequiredField",
        says="value.a",
    ),
    _one(
        *("a class out of range", "int8", pa.array([2], pa.int8())),
        json="2",
        cell="2",
        class_names=["ham", "spam"],
    ),
    Refusal(
        "a confidence above 1",
        ({"name": "lithi_confidence", "type": "float64"},),
        "SchemaMismatch",
        binary=pa.table({"lithi_confidence": [1.5]}),
        jsonl='"lithi_confidence": 1.5',
        csv=("lithi_confidence", "1.5"),
        says="lithi_confidence",
    ),
    Refusal(
        "NaN as a confidence",
        ({"name": "lithi_confidence", "type": "float64"},),
        "SchemaMismatch",
        binary=pa.table({"lithi_confidence": [math.nan]}),
        csv=("lithi_confidence", "nan"),
        says="lithi_confidence",
    ),
    Refusal(
        "another status",
        ({"name": "lithi_status", "type": "string", "nullable": False},),
        "SchemaMismatch",
        binary=pa.table({"lithi_status": ["ok"]}),
        jsonl='"lithi_status": "ok"',
        csv=("lithi_status", "ok"),
        says="lithi_status",
    ),
)

_COLUMNS = (
    # A key that is absent from a JSON object is a null, by the format.
    Refusal(
        "a missing column",
        _TWO,
        "SchemaMismatch",
        binary=pa.table({"value": [1]}),
        csv=("value", "1"),
        says="other",
    ),
    Refusal(
        "a column too many",
        (_INT,),
        "SchemaMismatch",
        binary=pa.table({"value": [1], "other": [1]}),
        jsonl='"value": 1, "other": 1',
        csv=("value,other", "1,1"),
        says="other",
    ),
    Refusal(
        "a column twice",
        (_INT,),
        "SchemaMismatch",
        binary=pa.table([pa.array([1]), pa.array([2])], names=["value", "value"]),
        jsonl='"value": 1, "value": 2',
        csv=("value,value", "1,2"),
    ),
    _one("a missing struct field", _PAIR, pa.array([{"a": 1}]), says="b"),
    _one(
        *("a struct field too many", _PAIR, pa.array([{"a": 1, "b": 2, "c": 3}])),
        json='{"a": 1, "b": 2, "c": 3}',
        says="c",
    ),
    _one("a struct field twice", _PAIR, json='{"a": 1, "a": 2}', says="a"),
    Refusal("a cell too many", (_INT,), "SchemaMismatch", csv=("value", "1,2"), says="3"),
)

REFUSALS: tuple[Refusal, ...] = (*_CASTS, *_VALUES, *_COLUMNS)
"""What is refused, in the order of the published table."""
