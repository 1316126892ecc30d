"""Real files of other writers, held against the table that went in, or refused by name.

Each writer gets the same Python values; the table to compare with is built from them in the
declared types. What the other writers make of a type is part of the case: a large string, a view,
a dictionary, `list` for an array of fixed length, another unit.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import datasets
import duckdb
import fastparquet
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lithi_datasets.errors import BundleError, PartDecodeError

if TYPE_CHECKING:
    from pathlib import Path

from other_writers import COLUMNS, NOON, PART, UTC, Column, assert_is_the_table, read, refusal

# --- DuckDB -------------------------------------------------------------------------------------


def duck_file(tmp_path: Path, query: str, options: str = "") -> bytes:
    path = tmp_path / "duck.parquet"
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'America/Lima'")
        connection.execute(f"COPY ({query}) TO '{path}' (FORMAT parquet{options})")
    return path.read_bytes()


def duck_literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, dict):
        return "{" + ", ".join(f"'{k}': {duck_literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(duck_literal, value)) + "]"
    if isinstance(value, bytes):
        return "'" + "".join(f"\\x{byte:02X}" for byte in value) + "'::BLOB"
    return "'" + str(value).replace("'", "''") + "'"


def duck_query(columns: list[Column]) -> str:
    rows = zip(*(column.values for column in columns), strict=True)
    selects = (
        ", ".join(
            f'{duck_literal(value)}::{column.duck} AS "{column.name}"'
            for column, value in zip(columns, row, strict=True)
        )
        for row in rows
    )
    union = " UNION ALL ".join(f"SELECT {row}, {n} AS n" for n, row in enumerate(selects))
    # A union by itself comes in any order.
    return f"SELECT * EXCLUDE (n) FROM ({union}) ORDER BY n"


@pytest.mark.parametrize("options", ["", ", COMPRESSION zstd", ", ROW_GROUP_SIZE 2"])
def test_a_table_that_duckdb_wrote_as_parquet(tmp_path: Path, options: str) -> None:
    assert_is_the_table("parquet", duck_file(tmp_path, duck_query(COLUMNS), options), COLUMNS)


def test_the_delta_encodings_of_duckdb(tmp_path: Path) -> None:
    wide = {"int32", "uint32", "wider"}
    columns = [replace(c, extreme=0) if c.name in wide else c for c in COLUMNS]
    data = duck_file(tmp_path, duck_query(columns), ", PARQUET_VERSION v2")
    assert_is_the_table("parquet", data, columns)
    # Deltas that need 33 bits break the Parquet format (arrow#20374).
    column = next(c for c in COLUMNS if c.name == "int32")
    broken = duck_file(tmp_path, duck_query([column]), ", PARQUET_VERSION v2")
    with pytest.raises(PartDecodeError, match=PART):
        read("parquet", broken, int32="int32")


def test_arrays_of_duckdb(tmp_path: Path) -> None:
    query = "SELECT [i, i + 1]::FLOAT[2] AS v FROM range(3) t(i)"
    vector = {"list": "float64", "length": 2}
    found = read("parquet", duck_file(tmp_path, query), v=vector)
    assert found.to_pydict() == {"v": [[0.0, 1.0], [1.0, 2.0], [2.0, 3.0]]}
    # A null among them is written with the levels of two elements (duckdb#24731).
    broken = duck_file(tmp_path, f"{query} UNION ALL SELECT NULL UNION ALL SELECT [3, 4]")
    with pytest.raises(PartDecodeError, match=PART):
        read("parquet", broken, v=vector)


def test_columns_in_another_order_are_found_by_name(tmp_path: Path) -> None:
    data = duck_file(tmp_path, duck_query(COLUMNS[::-1]))
    assert_is_the_table("parquet", data, COLUMNS)


def test_json_of_duckdb_is_the_string_that_it_stores(tmp_path: Path) -> None:
    data = duck_file(tmp_path, """SELECT '{"a": 1}'::JSON AS j""")
    assert read("parquet", data, j="string").to_pydict() == {"j": ['{"a": 1}']}
    assert "'j'" in refusal("parquet", data, j={"struct": [{"name": "a", "type": "int64"}]}).problem


@pytest.mark.parametrize(
    ("expression", "declared"),
    [
        ("1::HUGEINT", "int64"),  # written as a double
        ("uuid()", "binary"),
        ("uuid()", "string"),
        ("INTERVAL 1 DAY", "duration[us]"),
        ("MAP {'a': 1}", {"list": {"struct": [{"name": "key", "type": "string"}]}}),
        ("'2024-01-01'::TIMESTAMP", "timestamp[us, tz=UTC]"),
        ("'2024-01-01'::TIMESTAMPTZ", "timestamp[us]"),
        ("1::BIGINT", "int32"),
        ("1::DOUBLE", "float32"),
        ("1.5::DECIMAL(9, 2)", "decimal128(9, 3)"),
        ("1.5::DECIMAL(9, 2)", "decimal128(8, 2)"),
        ("'x'::BLOB", "string"),
        ("'x'", "binary"),
    ],
)
def test_what_duckdb_writes_otherwise_is_refused_by_name(
    tmp_path: Path, expression: str, declared: Any
) -> None:
    error = refusal("parquet", duck_file(tmp_path, f"SELECT {expression} AS odd"), odd=declared)
    assert "'odd'" in error.problem


def test_a_list_of_duckdb_for_a_fixed_size_list_needs_the_length_in_each_row(
    tmp_path: Path,
) -> None:
    data = duck_file(tmp_path, "SELECT [i, i] AS v FROM range(3) t(i) UNION ALL SELECT [1]")
    assert read("parquet", data, v={"list": "int64"}).num_rows == 4
    assert "row 3 " in refusal("parquet", data, v={"list": "int64", "length": 2}).problem


# --- Polars -------------------------------------------------------------------------------------


def polars_frame(columns: list[Column]) -> pl.DataFrame:
    return pl.DataFrame(
        {column.name: column.values for column in columns},
        schema={column.name: column.polars for column in columns},
    )


POLARS: dict[str, list[dict[str, Any]]] = {
    "parquet": [{}, {"compression": "uncompressed"}, {"row_group_size": 2, "data_page_size": 64}],
    "arrow": [
        {"compat_level": level, "compression": compression}
        for level in (pl.CompatLevel.oldest(), pl.CompatLevel.newest())
        for compression in ("uncompressed", "lz4", "zstd")
    ],
}


@pytest.mark.parametrize(
    ("format", "options"), [(format, each) for format, all_ in POLARS.items() for each in all_]
)
def test_a_table_that_polars_wrote(format: str, options: dict[str, Any]) -> None:
    sink = io.BytesIO()
    frame = polars_frame(COLUMNS)
    frame.write_parquet(sink, **options) if format == "parquet" else frame.write_ipc(
        sink, **options
    )
    assert_is_the_table(format, sink.getvalue(), COLUMNS)


def test_an_arrow_stream_of_polars_with_views() -> None:
    sink = io.BytesIO()
    frame = polars_frame(COLUMNS)
    frame.write_ipc_stream(sink, compat_level=pl.CompatLevel.newest())
    assert b"view" in str(pa.ipc.open_stream(sink.getvalue()).schema).encode()
    assert_is_the_table("arrow", sink.getvalue(), COLUMNS)


@pytest.mark.parametrize("level", [pl.CompatLevel.oldest(), pl.CompatLevel.newest()])
def test_categories_of_polars_are_strings(level: pl.CompatLevel) -> None:
    values = ["a fairly long category", None, "b", "a fairly long category"]
    frame = pl.DataFrame({"c": pl.Series(values, dtype=pl.Categorical)})
    arrow, parquet = io.BytesIO(), io.BytesIO()
    frame.write_ipc(arrow, compat_level=level)
    frame.write_parquet(parquet)
    for declared in ("string", "large_string"):
        assert read("arrow", arrow.getvalue(), c=declared)["c"].to_pylist() == values
        assert read("parquet", parquet.getvalue(), c=declared)["c"].to_pylist() == values


@pytest.mark.parametrize(
    ("series", "declared", "found"),
    [
        (pl.Series([None, None]), "string", "null"),
        (pl.Series([[1, 2]], dtype=pl.Array(pl.Int64, 2)), {"list": "int64"}, "fixed_size_list"),
        (pl.Series([[1, 2]], dtype=pl.Array(pl.Int64, 2)), {"list": "int64", "length": 3}, "[2]"),
        (pl.Series([dt.timedelta(1)]), "time64[us]", "duration[us]"),
        (pl.Series([{"a": 1, "b": 2}]), {"struct": [{"name": "a", "type": "int64"}]}, "'b'"),
    ],
)
def test_what_polars_writes_otherwise_is_refused_by_name(
    series: pl.Series, declared: Any, found: str
) -> None:
    sink = io.BytesIO()
    series.alias("odd").to_frame().write_ipc(sink, compat_level=pl.CompatLevel.newest())
    error = refusal("arrow", sink.getvalue(), odd=declared)
    assert "'odd'" in error.problem
    assert found in str(error.found)


def test_a_type_that_only_polars_knows_is_our_error() -> None:
    sink = io.BytesIO()
    pl.DataFrame({"odd": pl.Series([1], dtype=pl.Int128)}).write_ipc(sink)
    with pytest.raises(BundleError, match=PART):
        read("arrow", sink.getvalue(), odd="int64")


def test_nanoseconds_of_polars_that_are_no_whole_microseconds_are_refused_with_their_row() -> None:
    frame = pl.DataFrame({"t": pl.Series([1000, None, 1001]).cast(pl.Datetime("ns"))})
    sink = io.BytesIO()
    frame.write_parquet(sink)
    assert "row 2 " in refusal("parquet", sink.getvalue(), t="timestamp[us]").problem
    assert read("parquet", sink.getvalue(), t="timestamp[ns]").num_rows == 3


# --- fastparquet --------------------------------------------------------------------------------


def fast_file(tmp_path: Path, frame: pd.DataFrame, **options: Any) -> bytes:
    path = tmp_path / "fast.parquet"
    with warnings.catch_warnings():
        # How fastparquet uses pandas is not the subject.
        warnings.simplefilter("ignore")
        fastparquet.write(str(path), frame, **options)
    return path.read_bytes()


FLAT = [
    *("item_id", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float64", "text", "large", "bytes"),
]
PANDAS_TYPES = {
    **{f"int{bits}": f"Int{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"UInt{bits}" for bits in (8, 16, 32, 64)},
    "bool": "boolean",
}


@pytest.mark.parametrize("compression", [None, "SNAPPY", "ZSTD"])
def test_a_table_that_fastparquet_wrote(tmp_path: Path, compression: str | None) -> None:
    columns = [column for column in COLUMNS if column.name in FLAT]
    frame = pd.DataFrame(
        {c.name: pd.array(c.values, dtype=PANDAS_TYPES.get(c.name, "object")) for c in columns}
    )
    # pandas has no null among plain floats: NaN, which fastparquet writes as it is told to.
    frame["float64"] = np.array([0.1, -1e300, 5.0])
    encoding = {"item_id": "utf8", "text": "utf8", "large": "utf8", "bytes": "bytes"}
    data = fast_file(tmp_path, frame, compression=compression, object_encoding=encoding)
    assert b"pandas" in pq.ParquetFile(pa.BufferReader(data)).schema_arrow.metadata
    types = {column.name: column.type for column in columns}
    found = read("parquet", data, **types)
    for column in columns:
        values = [0.1, -1e300, 5.0] if column.name == "float64" else column.values
        assert found[column.name].to_pylist() == values


def test_moments_and_categories_of_fastparquet(tmp_path: Path) -> None:
    moments = pd.to_datetime(["2024-02-29 12:00:00.123456", None])
    frame = pd.DataFrame(
        {
            "local": moments.astype("datetime64[us]"),
            "zoned": moments.astype("datetime64[us]").tz_localize("Asia/Tokyo"),
            "label": pd.Categorical(["ham", None]),
        }
    )
    data = fast_file(tmp_path, frame)
    found = read(
        "parquet", data, local="timestamp[ns]", zoned="timestamp[us, tz=UTC]", label="string"
    )
    assert found["local"].cast(pa.timestamp("us")).to_pylist() == [NOON, None]
    instant = NOON.replace(tzinfo=UTC) - dt.timedelta(hours=9)
    assert found["zoned"].to_pylist() == [instant, None]
    assert found["label"].to_pylist() == ["ham", None]


@pytest.mark.parametrize(
    ("series", "options", "declared", "found"),
    [
        # fastparquet writes a timedelta as a time of day.
        (pd.Series(pd.to_timedelta([1], unit="ms")), {}, "duration[us]", "time64[us]"),
        # INT96 has no zone, so it was dropped.
        (
            pd.Series(pd.to_datetime(["2024-01-01"]).tz_localize("UTC")),
            {"times": "int96"},
            "timestamp[ns, tz=UTC]",
            "timestamp[ns]",
        ),
        # A nullable integer that became a float on the way.
        (pd.Series([1.0, None]), {}, "int64", "float64"),
        (pd.Series([1.5], dtype="float32"), {}, "float16", "float32"),
    ],
    ids=["timedelta", "int96-zone", "float-for-int", "narrower-float"],
)
def test_what_fastparquet_writes_otherwise_is_refused_by_name(
    tmp_path: Path, series: pd.Series, options: dict[str, Any], declared: str, found: str
) -> None:
    data = fast_file(tmp_path, pd.DataFrame({"odd": series}), **options)
    error = refusal("parquet", data, odd=declared)
    assert "'odd'" in error.problem
    assert (error.expected, error.found) == (declared, found)


# --- pandas and datasets, whose metadata comes along ---------------------------------------------


def test_feather_of_pandas_with_its_metadata() -> None:
    frame = pd.DataFrame({"n": pd.array([1, None], "Int8"), "c": pd.Categorical(["x", "y"])})
    sink = io.BytesIO()
    frame.to_feather(sink)
    assert b"pandas" in pa.ipc.open_file(sink.getvalue()).schema.metadata
    found = read("arrow", sink.getvalue(), n="int64", c="string")
    assert found.to_pydict() == {"n": [1, None], "c": ["x", "y"]}
    assert found.schema.metadata is None


def test_an_index_that_pandas_wrote_as_a_column_is_refused_by_name() -> None:
    frame = pd.DataFrame({"n": [1, 2]}, index=[5, 7])
    sink = io.BytesIO()
    frame.to_parquet(sink, engine="pyarrow")
    error = refusal("parquet", sink.getvalue(), n="int64")
    assert "not declared: '__index_level_0__'" in error.problem


def test_a_parquet_file_of_datasets_with_classes_and_arrays() -> None:
    features = datasets.Features(
        {
            "label": datasets.ClassLabel(names=["ham", "spam"]),
            "grid": datasets.Array2D(shape=(2, 2), dtype="float32"),
        }
    )
    rows = {"label": [1, None], "grid": [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]]}
    sink = io.BytesIO()
    datasets.Dataset.from_dict(rows, features=features).to_parquet(sink)
    assert b"huggingface" in pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema_arrow.metadata
    grid = {"list": {"list": "float32", "length": 2}, "length": 2}
    assert read("parquet", sink.getvalue(), label="int64", grid=grid).to_pydict() == rows


@pytest.mark.parametrize("key", ["huggingface", "pandas"])
@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_embedded_metadata_that_lies_changes_nothing(format: str, key: str) -> None:
    lies = {
        "huggingface": {"info": {"features": {"other": {"dtype": "float32", "_type": "Value"}}}},
        "pandas": {"index_columns": ["n"], "columns": [{"name": "n", "numpy_type": "float32"}]},
    }
    metadata = {key: json.dumps(lies[key])}
    table = pa.table({"n": pa.array([1, None], pa.int64())}).replace_schema_metadata(metadata)
    sink = io.BytesIO()
    if format == "parquet":
        pq.write_table(table, sink)
    else:
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    found = read(format, sink.getvalue(), n="int64")
    assert found.to_pydict() == {"n": [1, None]}
    assert found.schema == pa.schema([("n", pa.int64())])
    assert found.schema.metadata is None
