"""Parquet and Arrow parts: what decodes arrives exactly, what does not is refused by name."""

from __future__ import annotations

import datetime
import subprocess
import sys
import textwrap
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from binary_parts import batches, fields_of, ipc_file, ipc_stream, parquet, read, refused

from lithi_datasets.errors import PartDecodeError, SchemaMismatch, UsageError
from lithi_datasets.formats import FORMATS, reader_for
from lithi_datasets.formats.physical import BATCH_BYTES
from lithi_datasets.schema import declared_schema

if TYPE_CHECKING:
    from collections.abc import Callable

WRITERS: dict[str, tuple[str, Callable[..., bytes]]] = {
    "parquet": ("parquet", parquet),
    "ipc-file": ("arrow", ipc_file),
    "ipc-stream": ("arrow", ipc_stream),
}
every_writer = pytest.mark.parametrize("writer", WRITERS)

STRUCT = {"struct": [{"name": "a", "type": "int8"}, {"name": "b", "type": "string"}]}
VALUES: dict[str, tuple[Any, list[Any]]] = {
    "bool": ("bool", [True, None, False]),
    **{
        f"{sign}int{bits}": (
            f"{sign}int{bits}",
            [0 if sign else -(2 ** (bits - 1)), None, 2 ** (bits - (not sign)) - 1],
        )
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
    "float16": ("float16", [np.float16(1.5), None, np.float16(np.inf)]),
    "float32": ("float32", [1.5, None, float("-inf")]),
    "float64": ("float64", [1e300, None, -0.0]),
    **{kind: (kind, ["", None, "é\0"]) for kind in ("string", "large_string")},
    **{kind: (kind, [b"", None, b"\xff\0"]) for kind in ("binary", "large_binary")},
    **{kind: (kind, [datetime.date(1, 1, 1), None]) for kind in ("date32", "date64")},
    **{
        kind: (kind, [0, None, 86_399 * scale])
        for kind, scale in [
            ("time32[s]", 1),
            ("time32[ms]", 10**3),
            ("time64[us]", 10**6),
            ("time64[ns]", 10**9),
        ]
    },
    **{f"duration[{u}]": (f"duration[{u}]", [-(2**63) + 1, None]) for u in ("s", "ms", "us", "ns")},
    **{
        f"timestamp[{u}{z}]": (f"timestamp[{u}{z}]", [-1, None, 2**53 + 1])
        for u in ("ms", "us", "ns")
        for z in ("", ", tz=UTC", ", tz=+05:30")
    },
    "timestamp[s]": ("timestamp[s]", [-1, None, 2**40]),
    "decimal128": ("decimal128(38, 2)", [Decimal("-1.25"), None]),
    "decimal256": ("decimal256(76, 0)", [Decimal(10**75), None]),
    "list": ({"list": "int8"}, [[1, None], None, []]),
    "large_list": ({"large_list": "string"}, [["x", None], None, []]),
    "fixed-size list": ({"list": "float32", "length": 2}, [[1.5, None], None]),
    "struct": (STRUCT, [{"a": 1, "b": None}, None]),
    "list of struct": ({"list": STRUCT}, [[{"a": 1, "b": "x"}, None], None, []]),
    "fixed-size list of struct": ({"list": STRUCT, "length": 1}, [[{"a": 1, "b": "x"}], None]),
    "struct of fixed-size list": (
        {"struct": [{"name": "v", "type": {"list": {"list": "int16"}, "length": 2}}]},
        [{"v": [[1], None]}, None, {"v": None}],
    ),
}


def column_of(type: Any, values: list[Any]) -> pa.Array:
    kind = declared_schema(fields_of(x=type)).field("x").type
    if kind.id in {pa.time32("s").id, pa.time64("us").id, pa.duration("s").id}:
        integer = pa.int32() if kind.bit_width == 32 else pa.int64()
        return pa.array(values, integer).view(kind)
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).view(kind)
    return pa.array(values, kind)


@every_writer
@pytest.mark.parametrize("case", VALUES)
def test_every_type_arrives_exactly(writer: str, case: str) -> None:
    format, write = WRITERS[writer]
    type, values = VALUES[case]
    table = pa.table({"x": column_of(type, values)})

    arrived = read(format, write(table), x=type)

    assert arrived.schema.field("x").type == table.schema.field("x").type
    assert arrived.equals(table)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"", id="no byte"),
        pytest.param(b"PAR1", id="half a magic"),
        pytest.param(b"item_id,text\n1,a\n" * 9, id="a text file"),
        pytest.param(b"ARROW1\0\0" * 9, id="only the magic of IPC"),
        pytest.param(b"PAR1" + b"\xff" * 64 + b"PAR1", id="a footer longer than the file"),
        pytest.param(b"\xff\xff\xff\xff\xff\xff\xff\x7f", id="a message of 2 GiB"),
        pytest.param(b"FEA1" + b"\0" * 64, id="Feather 1"),
    ],
)
@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_bytes_of_another_kind_do_not_decode(format: str, raw: bytes) -> None:
    refused(PartDecodeError, format, raw, x="int64")


@every_writer
def test_a_file_cut_anywhere_does_not_decode_or_lacks_rows(writer: str) -> None:
    format, write = WRITERS[writer]
    raw = write(pa.table({"x": pa.array(range(100)), "s": ["text"] * 100}))
    for length in range(0, len(raw), 7):
        try:
            rows = read(format, raw[:length], x="int64", s="string").num_rows
        except PartDecodeError:
            continue
        # An IPC stream may end between messages; the row count of the manifest finds that.
        assert writer == "ipc-stream", length
        assert rows in {0, 100}, length


def test_an_encrypted_parquet_file_does_not_decode() -> None:
    encryption = pytest.importorskip("pyarrow.parquet.encryption")

    class Kms(encryption.KmsClient):  # type: ignore[misc, name-defined]
        def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
            return key_bytes

        def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
            return wrapped_key

    factory = encryption.CryptoFactory(lambda _: Kms())
    table = pa.table({"x": [1, 2]})
    for plaintext_footer in (False, True):
        properties = factory.file_encryption_properties(
            encryption.KmsConnectionConfig(),
            encryption.EncryptionConfiguration(
                footer_key="k", column_keys={"k": ["x"]}, plaintext_footer=plaintext_footer
            ),
        )
        raw = parquet(table, encryption_properties=properties)
        refused(PartDecodeError, "parquet", raw, x="int64")


@pytest.mark.parametrize("compression", ["none", "zstd", "gzip"])
def test_a_corrupted_page_does_not_decode(compression: str) -> None:
    raw = bytearray(
        parquet(
            pa.table({"x": np.arange(1000)}),
            compression=compression,
            use_dictionary=False,
            write_page_checksum=True,
        )
    )
    raw[len(raw) // 3] ^= 0x10
    refused(PartDecodeError, "parquet", bytes(raw), x="int64")


@every_writer
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
@pytest.mark.parametrize("nested", [False, True])
def test_text_that_is_no_utf8_does_not_decode(writer: str, kind: pa.DataType, nested: bool) -> None:
    format, write = WRITERS[writer]
    bad = pa.array([b"fine", b"\xed\xa0\x80"], pa.binary()).cast(
        pa.large_binary() if kind == pa.large_string() else pa.binary()
    )
    column = pa.Array.from_buffers(kind, 2, bad.buffers())
    declared: Any = "string"
    if nested:
        column = pa.StructArray.from_arrays([column], names=["s"])
        declared = {"struct": [{"name": "s", "type": "string"}]}
    error = refused(PartDecodeError, format, write(pa.table({"x": column})), x=declared)
    assert "UTF8" in str(error)


def test_a_column_name_that_is_no_utf8_does_not_decode() -> None:
    for raw in (
        parquet(pa.table({"näme": [1]}), store_schema=False),
        ipc_stream(pa.table({"näme": [1]})),
    ):
        assert "näme".encode() in raw
        refused(
            PartDecodeError,
            "arrow" if raw[:4] != b"PAR1" else "parquet",
            raw.replace("näme".encode(), b"n\xff\xffme"),
            x="int64",
        )


@every_writer
def test_the_columns_are_checked_even_where_there_are_no_rows(writer: str) -> None:
    format, write = WRITERS[writer]
    table = pa.table({"x": pa.array([], pa.int64()), "y": pa.array([], pa.string())})
    raw = write(table)
    assert read(format, raw, x="int64", y="string").num_rows == 0
    refused(SchemaMismatch, format, raw, x="int64")
    refused(SchemaMismatch, format, raw, x="int64", y="string", z="string")
    refused(SchemaMismatch, format, raw, x="int64", y="int64")


@every_writer
def test_a_column_that_stands_twice_is_refused(writer: str) -> None:
    format, write = WRITERS[writer]
    raw = write(pa.table([pa.array([1]), pa.array([2])], names=["x", "x"]))
    assert "'x'" in str(refused(SchemaMismatch, format, raw, x="int64"))


@every_writer
def test_a_struct_field_that_stands_twice_is_refused(writer: str) -> None:
    format, write = WRITERS[writer]
    twice = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    declared = {"struct": [{"name": "a", "type": "int64"}]}
    refused(SchemaMismatch, format, write(pa.table({"x": twice})), x=declared)


@every_writer
@pytest.mark.parametrize("batch_rows", [1, 7, 1000])
def test_batches_hold_no_more_rows_than_asked_for(writer: str, batch_rows: int) -> None:
    format, write = WRITERS[writer]
    table = pa.table({"x": pa.array(range(50)), "s": pa.array(["a", None] * 25)})
    options = {"row_group_size": 9} if format == "parquet" else {"rows": 9}
    read_batches = list(
        batches(format, write(table, **options), fields_of(x="int64", s="string"), batch_rows)
    )
    assert max(batch.num_rows for batch in read_batches) <= batch_rows
    assert pa.Table.from_batches(read_batches).equals(table)


@every_writer
def test_batches_are_cut_where_values_are_large(writer: str) -> None:
    format, write = WRITERS[writer]
    # What 1,000 rows of this dictionary decode to is a thousand times the file.
    large = pa.DictionaryArray.from_arrays(
        pa.array([0] * 1000, pa.int32()), pa.array(["x" * 2**20])
    )
    raw = write(pa.table({"x": large}))
    first = next(batches(format, raw, fields_of(x="string")))
    assert 1 <= first.num_rows < 1000
    assert first.nbytes <= BATCH_BYTES + 2**21


MEGABYTE = "x" * 2**20
HIDDEN_SIZES: dict[str, tuple[Any, Callable[[], pa.Array]]] = {
    "a run": (
        "string",
        lambda: pa.RunEndEncodedArray.from_arrays(
            pa.array([10, 300], pa.int32()), pa.array(["", MEGABYTE])
        ),
    ),
    "overlapping list views": (
        {"list": "int64"},
        lambda: pa.ListViewArray.from_arrays([0] * 300, [2**17] * 300, np.zeros(2**17, np.int64)),
    ),
    "a dictionary in a fixed-size list in a struct": (
        {"struct": [{"name": "v", "type": {"list": "string", "length": 2}}]},
        lambda: pa.StructArray.from_arrays(
            [
                pa.FixedSizeListArray.from_arrays(
                    pa.DictionaryArray.from_arrays([0, 1] * 300, ["", MEGABYTE]), 2
                )
            ],
            names=["v"],
        ),
    ),
    "a dictionary of lists in a list": (
        {"list": {"list": "int64"}},
        lambda: pa.ListArray.from_arrays(
            np.arange(301, dtype=np.int32),
            pa.DictionaryArray.from_arrays([0] * 300, pa.array([[0] * 2**17])),
        ),
    ),
}


@pytest.mark.parametrize("case", HIDDEN_SIZES)
def test_batches_are_cut_by_what_they_decode_to(case: str) -> None:
    declared, column = HIDDEN_SIZES[case]
    raw = ipc_stream(pa.table({"x": column()}))
    assert len(raw) < 2**22
    iterator = batches("arrow", raw, fields_of(x=declared))
    first = next(iterator)
    assert 1 < first.num_rows < 300
    assert first.nbytes <= BATCH_BYTES + 2**21
    assert first.num_rows + sum(batch.num_rows for batch in iterator) == 300


def test_a_row_group_of_any_size_is_read_within_a_batch_of_memory() -> None:
    rows = 100_000
    values = pa.array(np.random.default_rng(1).random(rows * 32, dtype=np.float32))
    vectors = pa.FixedSizeListArray.from_arrays(values, 32)
    table = pa.table({"x": vectors, "id": pa.array(range(rows)).cast(pa.string())})
    raw = parquet(table, row_group_size=rows, compression="none", use_dictionary=False)
    declared = fields_of(x={"list": "float32", "length": 32}, id="string")
    del table, vectors, values
    before, most, seen = pa.total_allocated_bytes(), 0, 0
    for batch in batches("parquet", raw, declared, 1024):
        seen += batch.num_rows
        most = max(most, pa.total_allocated_bytes() - before)
    assert seen == rows
    assert len(raw) > 12 * 2**20
    assert most < 4 * 2**20


@every_writer
def test_an_iterator_that_is_dropped_half_read_ends_with_its_program(
    writer: str, tmp_path: Any
) -> None:
    format, write = WRITERS[writer]
    part = tmp_path / "part"
    options = {"row_group_size": 100} if format == "parquet" else {"rows": 100}
    part.write_bytes(write(pa.table({"x": np.arange(100_000)}), **options))
    program = f"""
        import pathlib
        from lithi_datasets.formats import ReadRequest, reader_for
        from lithi_datasets.parts import PrivateBytes
        from lithi_datasets.schema import declared_schema
        from lithi_datasets.types import Field
        fields = (Field(name="x", type="int64"),)
        request = ReadRequest(fields, declared_schema(fields), "p", batch_rows=10)
        source = PrivateBytes(pathlib.Path({str(part)!r}).read_bytes())
        iterator = reader_for({format!r})(source, request)
        print(next(iterator).num_rows)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    assert done.stdout == "10\n"


@every_writer
def test_times_out_of_range_below_a_null_are_no_values(writer: str) -> None:
    format, write = WRITERS[writer]
    times = pa.array([5, 6, -1, 10**7], pa.int32()).view(pa.time32("ms"))
    column = pa.FixedSizeListArray.from_arrays(times, 2, mask=pa.array([False, True]))
    arrived = read(format, write(pa.table({"x": column})), x={"list": "time32[ms]", "length": 2})
    assert arrived["x"].to_pylist() == [
        [datetime.time(microsecond=5000), datetime.time(microsecond=6000)],
        None,
    ]


def test_a_format_that_is_none_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="'orc'"):
        reader_for("orc")
    assert set(FORMATS) == {"parquet", "arrow", "jsonl", "csv"}
