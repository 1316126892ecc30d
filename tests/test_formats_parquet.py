"""What Parquet alone has: embedded schemas, INT96, encryption, row groups (spec, section 6)."""

from __future__ import annotations

import io
import json
import struct
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from binary_parts import ipc_file, ipc_stream, parquet, read, refused

from lithi_datasets.errors import SchemaMismatch

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("embedded", [True, False])
def test_embedded_metadata_does_not_speak_for_the_columns(embedded: bool) -> None:
    lies = {
        "huggingface": json.dumps(
            {"info": {"features": {"x": {"dtype": "string", "_type": "Value"}}}}
        ),
        "pandas": json.dumps({"index_columns": ["x"], "columns": []}),
    }
    field = pa.field("x", pa.int32(), metadata={"PARQUET:field_id": "7", "unit": "m"})
    table = pa.table([pa.array([1, None], pa.int32())], schema=pa.schema([field], lies))
    for format, raw in (
        ("parquet", parquet(table, store_schema=embedded)),
        ("arrow", ipc_file(table)),
    ):
        arrived = read(format, raw, x="int64")
        assert arrived.schema.metadata is None
        assert arrived.schema.field("x").metadata is None
        assert arrived["x"].to_pylist() == [1, None]


def test_a_duration_needs_the_embedded_arrow_schema_and_is_never_guessed() -> None:
    table = pa.table({"x": pa.array([1], pa.duration("ms"))})
    assert read("parquet", parquet(table), x="duration[ms]").equals(table)
    bare = parquet(table, store_schema=False)
    refused(SchemaMismatch, "parquet", bare, x="duration[ms]")
    assert read("parquet", bare, x="int64")["x"].to_pylist() == [1]
    refused(SchemaMismatch, "parquet", parquet(table), x="int64")


def test_json_and_uuid_annotations_are_read_as_what_they_store() -> None:
    text = pa.array(['{"a": 1}'], pa.string())
    # Arrow knows the type since version 19; before, there is nothing to take off.
    column = pa.ExtensionArray.from_storage(pa.json_(), text) if hasattr(pa, "json_") else text
    table = pa.table({"x": column})
    for format, raw in (("parquet", parquet(table)), ("arrow", ipc_stream(table))):
        assert read(format, raw, x="string")["x"].to_pylist() == ['{"a": 1}']


def test_null_fixed_size_lists_beside_durations_need_no_new_arrow_version() -> None:
    kind = pa.list_(pa.float32(), 2)
    table = pa.table(
        {
            "x": pa.array([[1.0, None], [3.0, 4.0], None], kind),
            "s": pa.array([{"v": [n, None]} for n in (1.0, 2.0, 3.0)], pa.struct([("v", kind)])),
            "d": pa.array([1, None, -1], pa.duration("us")),
            "ARROW:schema": pa.array([1, 2, 3], pa.int8()),
        }
    )
    types: dict[str, Any] = {
        "x": {"list": "float32", "length": 2},
        "s": {"struct": [{"name": "v", "type": {"list": "float32", "length": 2}}]},
        "d": "duration[us]",
        "ARROW:schema": "int8",
    }
    assert read("parquet", parquet(table), **types).equals(table)


def int96(values: list[int | None], unit: str, wrap: Callable[[pa.Array], pa.Array]) -> bytes:
    moments = wrap(pa.array(values, pa.int64()).view(pa.timestamp(unit)))
    return parquet(pa.table({"x": moments}), use_deprecated_int96_timestamps=True)


YEAR_9999_US = 253_402_300_799_999_999
YEAR_1_US = -62_135_596_800_000_000


def plain(array: pa.Array) -> pa.Array:
    return array


def listed(array: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays([0, 1, len(array)], array)


@pytest.mark.parametrize("wrap", [plain, listed])
def test_int96_timestamps_beyond_nanoseconds_arrive_in_microseconds(
    wrap: Callable[[pa.Array], pa.Array],
) -> None:
    values = [YEAR_9999_US, None, YEAR_1_US, 0, 1]
    raw = int96(values, "us", wrap)
    declared: Any = "timestamp[us]" if wrap is plain else {"list": "timestamp[us]"}
    arrived = read("parquet", raw, x=declared)
    assert arrived["x"].to_pylist() == wrap(pa.array(values).view(pa.timestamp("us"))).to_pylist()
    # pyarrow alone wraps around without a word.
    alone = pq.read_table(io.BytesIO(raw))["x"].combine_chunks()
    assert (alone if wrap is plain else alone.flatten())[0].value != YEAR_9999_US * 1000


def test_int96_timestamps_in_range_keep_their_nanoseconds() -> None:
    values = [1, None, -1, 2**63 - 1, -(2**63)]
    raw = int96(values, "ns", plain)
    arrived = read("parquet", raw, x="timestamp[ns]")
    assert arrived["x"].combine_chunks().view(pa.int64()).to_pylist() == values
    refused(SchemaMismatch, "parquet", raw, x="timestamp[us]")


def test_an_int96_timestamp_that_no_unit_holds_is_refused() -> None:
    raw = int96([0, YEAR_9999_US], "us", plain)
    # Eight bytes of nanoseconds in the day, then the day: make it a day of 999 ns more.
    day = struct.pack("<i", 2_440_588 + YEAR_9999_US // 86_400_000_000)
    assert raw.count(day) >= 1
    at = raw.index(day) - 8
    (nanoseconds,) = struct.unpack_from("<q", raw, at)
    patched = raw[:at] + struct.pack("<q", nanoseconds + 999) + raw[at + 8 :]
    assert "INT96" in str(refused(SchemaMismatch, "parquet", patched, x="timestamp[us]"))


def before_1970(values: list[int], stored: list[tuple[int, int]], creator: bytes) -> bytes:
    """INT96 as the writer called `creator` stores it: nanoseconds in the day, and the day."""
    moments = pa.array(values, pa.int64()).view(pa.timestamp("ns"))
    raw = parquet(
        pa.table({"x": moments}),
        use_deprecated_int96_timestamps=True,
        compression="none",
        use_dictionary=False,
        write_statistics=False,
    )
    own = f"parquet-cpp-arrow version {pa.__version__}".encode()
    assert raw.count(own) == 1
    at = raw.index(struct.pack("<qi", 7, 2_440_588))
    patched = b"".join(struct.pack("<qi", *pair) for pair in [(7, 2_440_588), *stored])
    raw = raw[:at] + patched + raw[at + len(patched) :]
    return raw.replace(own, creator.ljust(len(own)))


def test_int96_timestamps_before_1970_of_older_arrow_versions_are_read() -> None:
    values = [7, -1, -86_400 * 10**9 - 5]
    stored = [(-1, 2_440_588), (-5, 2_440_587)]
    raw = before_1970(values, stored, b"parquet-cpp-arrow version 9.0.0")
    arrived = read("parquet", raw, x="timestamp[ns]")
    assert arrived["x"].combine_chunks().view(pa.int64()).to_pylist() == values
    # Of any other writer such nanoseconds mean nothing.
    refused(SchemaMismatch, "parquet", before_1970(values, stored, b"other"), x="timestamp[ns]")


def test_an_int96_timestamp_of_two_meanings_is_refused() -> None:
    # 616 ns before 1970 as older versions stored it, or a whole microsecond in 2554.
    values, stored = [7, -616], [(-616, 2_440_588)]
    raw = before_1970(values, stored, b"parquet-cpp-arrow version 9.0.0")
    assert "two meanings" in str(refused(SchemaMismatch, "parquet", raw, x="timestamp[ns]"))
