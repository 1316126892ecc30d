"""The table that other writers write, and how their files are read."""

from __future__ import annotations

import datetime as dt
import io
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pytest

from lithi_datasets.errors import SchemaMismatch
from lithi_datasets.formats import ReadRequest, reader_for
from lithi_datasets.schema import declared_schema
from lithi_datasets.types import Field

if TYPE_CHECKING:
    pass

PART = "parts/part-00000.bin"
UTC = dt.timezone.utc
NOON = dt.datetime(2024, 2, 29, 12, 0, 0, 123456)
EARLY = dt.datetime(1, 1, 1)


@dataclass(frozen=True)
class Column:
    """A declared column: its type, and a row of usual values, one of extremes, one of nulls."""

    name: str
    type: Any
    usual: Any
    extreme: Any
    duck: str
    polars: Any

    @property
    def values(self) -> list[Any]:
        return [self.usual, self.extreme, None if self.name != "item_id" else "c"]


COLUMNS = [
    Column("item_id", "string", "a", "b", "VARCHAR", pl.String),
    Column("bool", "bool", True, False, "BOOLEAN", pl.Boolean),
    Column("int8", "int8", 1, -(2**7), "TINYINT", pl.Int8),
    Column("int16", "int16", 1, -(2**15), "SMALLINT", pl.Int16),
    Column("int32", "int32", 1, -(2**31), "INTEGER", pl.Int32),
    Column("int64", "int64", 2**53 + 1, -(2**63), "BIGINT", pl.Int64),
    Column("uint8", "uint8", 1, 2**8 - 1, "UTINYINT", pl.UInt8),
    Column("uint16", "uint16", 1, 2**16 - 1, "USMALLINT", pl.UInt16),
    Column("uint32", "uint32", 1, 2**32 - 1, "UINTEGER", pl.UInt32),
    Column("uint64", "uint64", 1, 2**64 - 1, "UBIGINT", pl.UInt64),
    Column("float32", "float32", 1.5, float("inf"), "FLOAT", pl.Float32),
    Column("float64", "float64", 0.1, -1e300, "DOUBLE", pl.Float64),
    Column("wider", "int64", 1, 2**32 - 1, "UINTEGER", pl.UInt32),
    Column("text", "string", "00123", "é\n\U0001f600 " * 9, "VARCHAR", pl.String),
    Column("large", "large_string", "NA", "", "VARCHAR", pl.String),
    Column("bytes", "binary", b"\xff\x00", b"", "BLOB", pl.Binary),
    Column("date", "date32", NOON.date(), EARLY.date(), "DATE", pl.Date),
    Column("days", "date64", NOON.date(), EARLY.date(), "DATE", pl.Date),
    Column("time", "time64[us]", NOON.time(), dt.time(0), "TIME", pl.Time),
    Column(
        "ms",
        "timestamp[ms]",
        NOON.replace(microsecond=1000),
        EARLY,
        "TIMESTAMP_MS",
        pl.Datetime("ms"),
    ),
    Column("us", "timestamp[us]", NOON, EARLY, "TIMESTAMP", pl.Datetime("us")),
    Column("finer", "timestamp[us]", NOON, EARLY.replace(1700), "TIMESTAMP_NS", pl.Datetime("ns")),
    Column(
        "zoned",
        "timestamp[us, tz=Asia/Tokyo]",
        NOON.replace(tzinfo=UTC),
        dt.datetime(1700, 1, 1, tzinfo=UTC),
        "TIMESTAMPTZ",
        pl.Datetime("us", "UTC"),
    ),
    Column(
        "price",
        "decimal128(38, 2)",
        Decimal("1.20"),
        Decimal("-9999999.99"),
        "DECIMAL(9,2)",
        pl.Decimal(9, 2),
    ),
    Column("ints", {"list": "int64"}, [1, None, 3], [], "INTEGER[]", pl.List(pl.Int32)),
    Column(
        "vector",
        {"list": "float32", "length": 2},
        [1.0, -0.5],
        [0.0, 3.0],
        "FLOAT[]",
        pl.Array(pl.Float32, 2),
    ),
    Column(
        "meta",
        {
            "struct": [
                {"name": "b", "type": "string"},
                {"name": "a", "type": {"large_list": "int64"}},
            ]
        },
        {"b": "x", "a": [1]},
        {"b": None, "a": None},
        "STRUCT(a TINYINT[], b VARCHAR)",
        pl.Struct({"a": pl.List(pl.Int8), "b": pl.String}),
    ),
    Column("label", "string", "ham", "spam", "ENUM('ham', 'spam')", pl.Enum(["ham", "spam"])),
]
NAMES = [column.name for column in COLUMNS]


@dataclass(frozen=True)
class Source:
    """A part's bytes, as the package's readers get them."""

    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)

    def arrow(self) -> pa.NativeFile:
        return pa.BufferReader(self.data)

    def stream(self) -> io.BytesIO:
        return io.BytesIO(self.data)


def fields_of(**types: Any) -> tuple[Field, ...]:
    return tuple(
        Field.model_validate({"name": name, "type": type_}) for name, type_ in types.items()
    )


def read(format: str, data: bytes, **types: Any) -> pa.Table:
    declared = declared_schema(fields_of(**types))
    request = ReadRequest(fields=fields_of(**types), declared=declared, path=PART)
    return pa.Table.from_batches(reader_for(format)(Source(data), request), declared)


def assert_is_the_table(format: str, data: bytes, columns: list[Column]) -> None:
    types = {column.name: column.type for column in columns}
    schema = declared_schema(fields_of(**types))
    expected = pa.table([pa.array(c.values, schema.field(c.name).type) for c in columns], schema)
    found = read(format, data, **types)
    assert found.schema.equals(expected.schema, check_metadata=True)
    for name in schema.names:
        assert found[name].equals(expected[name]), name
        assert found[name].type.equals(schema.field(name).type, check_metadata=True)


def refusal(format: str, data: bytes, **types: Any) -> SchemaMismatch:
    with pytest.raises(SchemaMismatch) as caught:
        read(format, data, **types)
    assert caught.value.path == PART
    return caught.value
