"""The published cells of Parquet and Arrow again, written by engines that the readers don't use.

The matrix itself writes these formats with pyarrow, which the readers decode with. Here Polars,
DuckDB and fastparquet write the same hard values with their own code. What arrives is compared with
the Python values that went in, a moment as its count of units.

`WRITERS` says which engine writes which cells. Where an engine has no such type, it writes another
that converts exactly, and `Told` says how; `LEFT_OUT` names the hard values that no engine holds.
"""

from __future__ import annotations

import datetime as dt
import io
import math
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from engines import Told, fields_of, ids_of, rows_of, sealed, written

import lithi_datasets as lithi
from lithi_datasets import conformance
from lithi_datasets.conformance_cases import CASES, FORMATS, Case

DAY_MS = 86_400_000
BY_NAME = {case.name: case for case in CASES}


def _times(factor: int) -> Callable[[int], int]:
    return lambda count: count * factor


def _days(count: int) -> int:
    return count // DAY_MS


# --- who writes what ------------------------------------------------------------------------------

_POINT = pl.Struct({"x": pl.Int64, "when": pl.Datetime("ns", "UTC")})
_POINT_COUNTS = pl.Struct({"x": pl.Int64, "when": pl.Int64})

_LAST_MS = (2**63 - 1) // 1000

POLARS: dict[str, Told] = {
    "bool": Told(pl.Boolean),
    "int8": Told(pl.Int8),
    "int16": Told(pl.Int16),
    "int32": Told(pl.Int32),
    "int64": Told(pl.Int64),
    "uint8": Told(pl.UInt8),
    "uint16": Told(pl.UInt16),
    "uint32": Told(pl.UInt32),
    "uint64": Told(pl.UInt64),
    "float16": Told(pl.Float16),
    "float32": Told(pl.Float32),
    "float64": Told(pl.Float64),
    # Views in Arrow.
    "string": Told(pl.String),
    "large_string": Told(pl.String),
    "binary": Told(pl.Binary),
    "large_binary": Told(pl.Binary),
    "decimal128(38, 10)": Told(pl.Decimal(38, 10)),
    "decimal128(38, 0)": Told(pl.Decimal(38, 0)),
    "decimal128(5, 5)": Told(pl.Decimal(5, 5)),
    # Polars ends at 38 digits.
    "decimal256(76, 38)": Told(
        pl.Decimal(38, 38), keep=lambda value: abs(value) < 1, also=(Decimal("0." + "9" * 38),)
    ),
    "date32": Told(pl.Date, pl.Int32),
    # Days, which are whole in a date64 too.
    "date64": Told(pl.Date, pl.Int32, unit=_days),
    # Polars has one time, in nanoseconds.
    "time32[s]": Told(pl.Time, pl.Int64, unit=_times(10**9)),
    "time32[ms]": Told(pl.Time, pl.Int64, unit=_times(10**6)),
    "time64[us]": Told(pl.Time, pl.Int64, unit=_times(10**3)),
    "time64[ns]": Told(pl.Time, pl.Int64),
    # Polars has no seconds; these are the ends of its milliseconds.
    "duration[s]": Told(
        pl.Duration("ms"),
        pl.Int64,
        unit=_times(1000),
        keep=lambda count: abs(count) <= _LAST_MS,
        also=(_LAST_MS, -_LAST_MS),
    ),
    "duration[ms]": Told(pl.Duration("ms"), pl.Int64),
    "duration[us]": Told(pl.Duration("us"), pl.Int64),
    "duration[ns]": Told(pl.Duration("ns"), pl.Int64),
    # Polars has no seconds.
    "timestamp[s]": Told(pl.Datetime("ms"), pl.Int64, unit=_times(1000)),
    "timestamp[ms]": Told(pl.Datetime("ms"), pl.Int64),
    "timestamp[us]": Told(pl.Datetime("us"), pl.Int64),
    "timestamp[ns]": Told(pl.Datetime("ns"), pl.Int64),
    "timestamp[s, tz=UTC]": Told(pl.Datetime("ms", "UTC"), pl.Int64, unit=_times(1000)),
    "timestamp[ms, tz=Europe/Berlin]": Told(pl.Datetime("ms", "Europe/Berlin"), pl.Int64),
    "timestamp[us, tz=UTC]": Told(pl.Datetime("us", "UTC"), pl.Int64),
    # Polars has no zones of an offset; another zone keeps the instant.
    "timestamp[ns, tz=+05:30]": Told(pl.Datetime("ns", "Asia/Kolkata"), pl.Int64),
    # Every list of Polars is a large one.
    "list of int64": Told(pl.List(pl.Int64)),
    "list of 3 uint8": Told(pl.Array(pl.UInt8, 3)),
    "large_list of string": Told(pl.List(pl.String)),
    "list of lists of float32": Told(pl.List(pl.List(pl.Float32))),
    "struct": Told(_POINT, _POINT_COUNTS),
    "list of structs": Told(pl.List(_POINT), pl.List(_POINT_COUNTS)),
    "list of 2 structs": Told(pl.Array(_POINT, 2), pl.Array(_POINT_COUNTS, 2)),
    "class_names on int8": Told(pl.Int8),
    "class_names on uint64": Told(pl.UInt64),
}

_ENDS = 2**63 - 1  # DuckDB reads these counts as minus and plus infinity.

DUCKDB: dict[str, Told] = {
    "bool": Told("BOOLEAN"),
    "int8": Told("TINYINT"),
    "int16": Told("SMALLINT"),
    "int32": Told("INTEGER"),
    "int64": Told("BIGINT"),
    "uint8": Told("UTINYINT"),
    "uint16": Told("USMALLINT"),
    "uint32": Told("UINTEGER"),
    "uint64": Told("UBIGINT"),
    "float32": Told("FLOAT"),
    "float64": Told("DOUBLE"),
    "string": Told("VARCHAR"),
    "large_string": Told("VARCHAR"),
    "binary": Told("BLOB"),
    "large_binary": Told("BLOB"),
    "decimal128(38, 10)": Told("DECIMAL(38, 10)"),
    "decimal128(38, 0)": Told("DECIMAL(38, 0)"),
    "decimal128(5, 5)": Told("DECIMAL(5, 5)"),
    "date32": Told("DATE", "DATE '1970-01-01' + ({})"),
    "date64": Told("DATE", "DATE '1970-01-01' + ({})", unit=_days),
    "time32[s]": Told("TIME", "make_timestamp({})", unit=_times(10**6)),
    "time32[ms]": Told("TIME", "make_timestamp({})", unit=_times(10**3)),
    "time64[us]": Told("TIME", "make_timestamp({})"),
    "timestamp[s]": Told("TIMESTAMP_S", "make_timestamp({})", unit=_times(10**6)),
    "timestamp[ms]": Told("TIMESTAMP_MS", "make_timestamp_ms({})"),
    "timestamp[us]": Told("TIMESTAMP", "make_timestamp({})"),
    "timestamp[ns]": Told(
        "TIMESTAMP_NS", "make_timestamp_ns({})", keep=lambda count: abs(count) != _ENDS
    ),
    "timestamp[s, tz=UTC]": Told("TIMESTAMPTZ", "make_timestamptz({})", unit=_times(10**6)),
    "timestamp[ms, tz=Europe/Berlin]": Told(
        "TIMESTAMPTZ", "make_timestamptz({})", unit=_times(10**3)
    ),
    "timestamp[us, tz=UTC]": Told("TIMESTAMPTZ", "make_timestamptz({})"),
    "list of int64": Told("BIGINT[]"),
    # An array of DuckDB is broken by a null beside it (duckdb#24731), a list of the length is not.
    "list of 3 uint8": Told("UTINYINT[]"),
    "large_list of string": Told("VARCHAR[]"),
    "list of lists of float32": Told("FLOAT[][]"),
    "class_names on int8": Told("TINYINT"),
    "class_names on uint64": Told("UBIGINT"),
}

_FLAT = ("required", "nullable")  # fastparquet writes no structs.

FASTPARQUET: dict[str, Told] = {
    "bool": Told("boolean", shapes=_FLAT),
    "int8": Told("Int8", shapes=_FLAT),
    "int16": Told("Int16", shapes=_FLAT),
    "int32": Told("Int32", shapes=_FLAT),
    "int64": Told("Int64", shapes=_FLAT),
    "uint8": Told("UInt8", shapes=_FLAT),
    "uint16": Told("UInt16", shapes=_FLAT),
    "uint32": Told("UInt32", shapes=_FLAT),
    "uint64": Told("UInt64", shapes=_FLAT),
    # NaN is its null.
    "float32": Told("float32", keep=lambda value: not math.isnan(value), shapes=_FLAT),
    "float64": Told("float64", keep=lambda value: not math.isnan(value), shapes=_FLAT),
    "string": Told("utf8", shapes=_FLAT),
    "large_string": Told("utf8", shapes=_FLAT),
    "binary": Told("bytes", shapes=_FLAT),
    "large_binary": Told("bytes", shapes=_FLAT),
    "timestamp[ms]": Told("datetime64[ms]", shapes=_FLAT),
    "timestamp[us]": Told("datetime64[us]", shapes=_FLAT),
    "timestamp[ns]": Told("datetime64[ns]", shapes=_FLAT),
    "timestamp[us, tz=UTC]": Told("datetime64[us, UTC]", shapes=_FLAT),
    "class_names on int8": Told("Int8", shapes=_FLAT),
    "class_names on uint64": Told("UInt64", shapes=_FLAT),
}


WRITERS: dict[str, dict[str, dict[str, Told]]] = {
    "parquet": {"polars": POLARS, "duckdb": DUCKDB, "fastparquet": FASTPARQUET},
    "arrow file": {"polars": POLARS, "polars, oldest": POLARS},
    "arrow stream": {"polars": POLARS, "polars, oldest": POLARS},
}
"""format → engine → the cells that it writes."""

LEFT_OUT: dict[str, set[Any]] = {
    "decimal256(76, 38)": {Decimal("9" * 38 + "." + "9" * 38)},
    "duration[s]": {-(2**63 - 1), 2**63 - 1},
}
"""case → hard values that none of the engines holds: 76 digits, seconds beyond the milliseconds."""

PLAIN_HAS_NO_FORM = {"duration[s]", "duration[ms]", "time64[ns]"}
"""Values that Python's `timedelta` and `time` can't hold, so that plain rows can't either."""

BINARY = {"parquet", "arrow"}
CELLS = [
    (format, engine, name)
    for format, engines in WRITERS.items()
    for engine, told_of in engines.items()
    for name in told_of
]


# --- what must arrive -----------------------------------------------------------------------------


def arrow_of(case: Case, shape: str) -> pa.DataType:
    """The Arrow type that must arrive."""
    if shape != "nested":
        return case.arrow
    members = [("one", case.arrow), ("many", pa.list_(case.arrow))]
    return pa.struct(members[: 1 if case.class_names else 2])


def held(scalar: pa.Scalar) -> Any:
    """An Arrow scalar as the Python value that went in: a moment is its count of units."""
    if not scalar.is_valid:
        return None
    if isinstance(scalar, pa.StructScalar):
        return {name: held(scalar[name]) for name in scalar}
    if pa.types.is_nested(scalar.type):
        return [held(each) for each in scalar.values]
    return scalar.value if pa.types.is_temporal(scalar.type) else scalar.as_py()


def told_apart(value: Any) -> Any:
    """A value that equals the same value alone: NaN itself, not -0.0 the other, not True a 1."""
    if isinstance(value, list):
        return [told_apart(each) for each in value]
    if isinstance(value, dict):
        return {name: told_apart(each) for name, each in value.items()}
    return ("float", repr(float(value))) if isinstance(value, float) else (type(value), value)


def plain(value: Any, arrow: pa.DataType) -> Any:
    """The value as a plain row has it, built from what went in."""
    if value is None:
        return None
    if pa.types.is_struct(arrow):
        return {field.name: plain(value[field.name], field.type) for field in arrow}
    if pa.types.is_nested(arrow):
        return [plain(each, arrow.value_type) for each in value]
    if pa.types.is_date(arrow):
        days = value if pa.types.is_date32(arrow) else value // DAY_MS
        return dt.date(1970, 1, 1) + dt.timedelta(days=days)
    return moment(value, arrow) if pa.types.is_temporal(arrow) else value


def moment(count: int, arrow: pa.DataType) -> Any:
    """A time, timestamp or duration of Python, or of pandas where it has nanoseconds."""
    if arrow.unit == "ns":
        if pa.types.is_duration(arrow):
            return pd.Timedelta(count, "ns")
        return pd.Timestamp(count, unit="ns", tz=arrow.tz and "UTC")
    span = dt.timedelta(microseconds=count * {"s": 10**6, "ms": 10**3, "us": 1}[arrow.unit])
    if pa.types.is_duration(arrow):
        return span
    if pa.types.is_time(arrow):
        return (dt.datetime(1970, 1, 1) + span).time()
    return dt.datetime(1970, 1, 1, tzinfo=arrow.tz and dt.timezone.utc) + span


def instants(value: Any) -> Any:
    """The same, a zoned moment in UTC, so that its type is equal too."""
    if isinstance(value, list):
        return [instants(each) for each in value]
    if isinstance(value, dict):
        return {name: instants(each) for name, each in value.items()}
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.timezone.utc)
    return value


def assert_holds(table: pa.Table, case: Case, rows: dict[str, list[Any]]) -> None:
    assert table["item_id"].to_pylist() == ids_of(rows)
    for shape, values in rows.items():
        assert table[shape].type == arrow_of(case, shape), shape
        found = [held(scalar) for scalar in table[shape]]
        assert told_apart(found) == told_apart(values), shape


@pytest.mark.parametrize(
    ("format", "engine", "name"), CELLS, ids=[": ".join(cell) for cell in CELLS]
)
def test_what_another_engine_wrote_arrives_exactly(
    format: str, engine: str, name: str, tmp_path: Path, cache_dir: Path
) -> None:
    case, told = BY_NAME[name], WRITERS[format][engine][name]
    rows, data = rows_of(case, told), written(format, engine, case, told, tmp_path)
    folder = sealed(
        tmp_path / "b", FORMATS[format].format, data, fields_of(case, told), len(ids_of(rows))
    )
    assert_holds(pa.Table.from_batches(lithi.open_bundle(folder).read_part(0)), case, rows)
    if name == "list of 2 structs" and conformance.features_of_old_datasets():
        with pytest.raises(lithi.UsageError, match="required"):
            lithi.load(folder, cache_dir=cache_dir)
        return
    ds = lithi.load(folder, cache_dir=cache_dir)
    assert_holds(ds.with_format("arrow")[:], case, rows)
    if name not in PLAIN_HAS_NO_FORM:
        found = ds.with_format(None)[:]
        for shape, values in rows.items():
            wanted = [plain(value, arrow_of(case, shape)) for value in values]
            assert told_apart(instants(found[shape])) == told_apart(instants(wanted)), shape


def test_every_published_cell_has_a_writer_that_is_not_the_readers() -> None:
    published = {
        (cell.format, cell.type, cell.shape)
        for cell in conformance.published_cells(old_datasets=False)
        if cell.format in WRITERS and cell.shape != conformance.REFUSED
    }
    covered = {
        (format, name, shape)
        for format, engines in WRITERS.items()
        for told_of in engines.values()
        for name, told in told_of.items()
        for shape in told.shapes
    }
    assert covered == published
    assert {*WRITERS} == {name for name, kind in FORMATS.items() if kind.format in BINARY}


@pytest.mark.parametrize("format", WRITERS)
def test_every_hard_value_is_written_but_for_those_that_are_named(format: str) -> None:
    for case in CASES:
        told_of = [told[case.name] for told in WRITERS[format].values() if case.name in told]
        missed = {
            value
            for value, _ in case.values
            if not isinstance(value, list | dict) and not any(told.keep(value) for told in told_of)
        }
        assert missed == LEFT_OUT.get(case.name, set()), case.name


STORED = {
    "BOOLEAN": {"": "Boolean BOOLEAN boolean"},
    "INT32": {
        "": "Int32 INTEGER",
        "INT_8": "Int8 TINYINT",
        "INT_16": "Int16 SMALLINT",
        "UINT_8": "UInt8 UTINYINT",
        "UINT_16": "UInt16 USMALLINT",
        "UINT_32": "UInt32 UINTEGER",
        "DATE": "Date DATE",
        "precision=5)": "Decimal(5,5) DECIMAL(5,5)",
    },
    "INT64": {
        "": "Int64 BIGINT Duration(ms) Duration(us) Duration(ns)",
        "UINT_64": "UInt64 UBIGINT",
        "TimeType(isAdjustedToUTC=0, unit=NANOS": "Time",
        "TimeType(isAdjustedToUTC=0, unit=MICROS": "TIME",
        "TimestampType(isAdjustedToUTC=0, unit=MILLIS": "Datetime(ms) TIMESTAMP_MS datetime64[ms]",
        "TimestampType(isAdjustedToUTC=0, unit=MICROS": "Datetime(us) TIMESTAMP TIMESTAMP_S "
        "datetime64[us]",
        "TimestampType(isAdjustedToUTC=0, unit=NANOS": "Datetime(ns) TIMESTAMP_NS datetime64[ns]",
        "TimestampType(isAdjustedToUTC=1, unit=MILLIS": "Datetime(ms,UTC) "
        "Datetime(ms,Europe/Berlin)",
        "TimestampType(isAdjustedToUTC=1, unit=MICROS": "Datetime(us,UTC) TIMESTAMPTZ "
        "datetime64[us,UTC]",
        "TimestampType(isAdjustedToUTC=1, unit=NANOS": "Datetime(ns,Asia/Kolkata)",
    },
    "FLOAT": {"": "Float32 FLOAT float32"},
    "DOUBLE": {"": "Float64 DOUBLE float64"},
    "BYTE_ARRAY": {"UTF8": "String VARCHAR utf8", "": "Binary BLOB bytes"},
    "FIXED_LEN_BYTE_ARRAY": {
        "Float16Type": "Float16",
        "scale=10, precision=38": "Decimal(38,10) DECIMAL(38,10)",
        "scale=0, precision=38": "Decimal(38,0) DECIMAL(38,0)",
        "scale=38, precision=38": "Decimal(38,38)",
    },
}
"""Physical type in Parquet → what its annotation says → the types of the engines."""


def engine_type(told: Told) -> str:
    """The engine's name of a type, without the spaces, quotes and names of arguments."""
    name = re.sub(r"(time_unit|time_zone|precision|scale)=|[' ]", "", str(told.type))
    return name.replace(",None", "")


@pytest.mark.parametrize(
    ("engine", "name"), [(e, n) for e, told_of in WRITERS["parquet"].items() for n in told_of]
)
def test_the_engine_wrote_the_type_that_is_meant(engine: str, name: str, tmp_path: Path) -> None:
    case, told = BY_NAME[name], WRITERS["parquet"][engine][name]
    path = tmp_path / "p"
    path.write_bytes(written("parquet", engine, case, told, tmp_path))
    with duckdb.connect() as connection:
        by = connection.execute(f"SELECT created_by FROM parquet_file_metadata('{path}')")
        assert engine in str(by.fetchone()).lower()
        kinds = connection.execute(
            "SELECT type, concat_ws(' ', converted_type, logical_type) "
            f"FROM parquet_schema('{path}') WHERE name = 'required'"
        )
        physical, words = kinds.fetchall()[0]
    if case.composite:
        assert (physical, "LIST" in words) == (None, "struct" not in case.type)
        return
    # Of the units that are listed, the one that is set.
    words = re.sub(r"unit=TimeUnit\(.*?(\w+)=\w+\(\).*", r"unit=\1", words)
    expected = [
        (kind, says)
        for kind, annotations in STORED.items()
        for says, types in annotations.items()
        if engine_type(told) in types.split()
    ]
    [(kind, says)] = expected
    assert physical == kind
    assert says in words if says else words in ("", "INT_32", "INT_64")


@pytest.mark.parametrize("name", POLARS)
def test_polars_reads_its_own_type_from_what_it_wrote_as_arrow(name: str, tmp_path: Path) -> None:
    case, told = BY_NAME[name], POLARS[name]
    file = written("arrow file", "polars", case, told, tmp_path)
    stream = written("arrow stream", "polars", case, told, tmp_path)
    assert pl.read_ipc(io.BytesIO(file)).schema["required"] == told.type
    assert pl.read_ipc_stream(io.BytesIO(stream)).schema["required"] == told.type
