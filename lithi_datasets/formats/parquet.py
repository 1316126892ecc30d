"""Parquet parts.

What the embedded schema may say. Writers based on Arrow store their own schema beside Parquet's
(`ARROW:schema`), and pyarrow restores the types from it. That is a part's *physical* type, as with
any writer: a duration is an int64 without it, a dictionary a string. The declared type is the
manifest's alone, and conversion holds the one against the other; a file whose embedded schema
claims another type than the manifest is refused, not believed. Every other metadata
(`huggingface`, `pandas`, of columns) is never looked at.

Timestamps stored as INT96 (Spark, Hive, Impala) count nanoseconds in a day, and the day; pyarrow
wraps around silently where that leaves its unit. Here they are read in nanoseconds, or in
microseconds where that alone is exact, or refused.

Memory is bounded by the stored bytes, one page of each column and one batch; a row group of any
size is read piece by piece. Nothing runs in threads, so an iterator that is dropped half read ends
there.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as patypes

from lithi_datasets.errors import SchemaMismatch
from lithi_datasets.formats.memory import check_room, element_bytes, holds_fixed_lists
from lithi_datasets.formats.physical import BATCH_BYTES, declared_batches, decoding
from lithi_datasets.gather import row_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from lithi_datasets.formats import PartSource, ReadRequest

    Integers = npt.NDArray[np.int64]
    Triple = tuple[Integers, Integers, Integers]

__all__ = ["read"]

_ARROW_MAJOR: Final = int(pa.__version__.split(".")[0])
_CREATOR: Final = re.compile(r"parquet-cpp(?:-arrow)? version ([0-9]+)")


def read(source: PartSource, request: ReadRequest) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file; see `lithi_datasets.formats.Reader`."""
    with decoding(request.path):
        file = _open(source)
        bare = None
        if _ARROW_MAJOR < 26 and any(map(holds_fixed_lists, file.schema_arrow.types)):
            # Older readers refuse null rows of an embedded fixed-size list (apache/arrow#35692).
            bare = _bare_metadata(source)
        rows = _batch_rows(file, request)
        units = ("ns", "us", "s") if _has_int96(file) else ("ns",)
        readings = [
            _open(source, unit, bare or file.metadata).iter_batches(rows, use_threads=False)
            for unit in units
        ]
        batches = readings[0] if len(units) == 1 else _exact_int96(file, readings, request)
        schema = file.schema_arrow
        if bare is not None:
            schema = _with_durations(_open(source, metadata=bare).schema_arrow, schema)
            batches = (_viewed(batch, schema) for batch in batches)
    yield from declared_batches(schema, batches, request)


def _open(
    source: PartSource, int96_unit: str = "ns", metadata: pq.FileMetaData | None = None
) -> pq.ParquetFile:
    return pq.ParquetFile(
        source.arrow(),
        metadata=metadata,
        pre_buffer=False,
        page_checksum_verification=True,
        coerce_int96_timestamp_unit=int96_unit,
    )


def _batch_rows(file: pq.ParquetFile, request: ReadRequest) -> int:
    """At most so many rows that a batch has about `BATCH_BYTES`, by what the row groups say.

    Raises:
        PartDecodeError: a row, by its own types alone, is more than this machine holds.
    """
    metadata, wanted = file.metadata, request.batch_rows
    wide = [kind for kind in file.schema_arrow.types if holds_fixed_lists(kind)]
    row, element = sum(map(row_bytes, wide)), sum(map(element_bytes, wide))
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        columns = range(group.num_columns if element else 0)
        values = max((group.column(column).num_values for column in columns), default=0)
        # What the rows take by their types does not show in the file where they are null.
        typed = row * group.num_rows + element * values
        if group.num_rows > 0 and max(typed, group.total_byte_size) > 0:
            check_room(typed // group.num_rows, request.path)
            largest = max(typed, group.total_byte_size)
            wanted = min(wanted, BATCH_BYTES * group.num_rows // largest)
    return max(1, wanted)


def _bare_metadata(source: PartSource) -> pq.FileMetaData:
    """The footer without the embedded schema: the key's last occurrence is spelt differently."""
    bytes_ = source.arrow()
    length = int.from_bytes(bytes_.read_at(4, source.size - 8), "little")
    footer = bytes_.read_at(length, source.size - 8 - length)
    before, _, after = footer.rpartition(b"ARROW:schema")
    bare = before + b"arrow.schema" + after
    return pq.read_metadata(
        pa.BufferReader(b"PAR1" + bare + length.to_bytes(4, "little") + b"PAR1")
    )


def _with_durations(bare: pa.Schema, embedded: pa.Schema) -> pa.Schema:
    """The bare schema, but for top-level durations, which Parquet itself has no type for."""
    fields = zip(bare, embedded, strict=True)
    return pa.schema([own if patypes.is_duration(own.type) else field for field, own in fields])


def _viewed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        column.view(type_) if patypes.is_duration(type_) else column
        for column, type_ in zip(batch.columns, schema.types, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=schema.names)


def _has_int96(file: pq.ParquetFile) -> bool:
    columns = range(len(file.schema))
    return any(file.schema.column(index).physical_type == "INT96" for index in columns)


def _exact_int96(
    file: pq.ParquetFile, readings: list[Iterator[pa.RecordBatch]], request: ReadRequest
) -> Iterator[pa.RecordBatch]:
    """Batches in nanoseconds, each INT96 column in microseconds where only that is exact.

    Args:
        file: to know its writer.
        readings: the same rows in nanoseconds, microseconds and seconds.
        request: for messages.
    """
    creator = _CREATOR.match(file.metadata.created_by or "")
    # Before 23, Arrow wrote moments before 1970 with a negative number of nanoseconds.
    signed = creator is not None and int(creator[1]) < 23
    for batches in zip(*readings, strict=True):
        names, columns = batches[0].schema.names, []
        by_column = zip(*(batch.columns for batch in batches), strict=True)
        for name, reading in zip(names, by_column, strict=True):
            column = _exact(reading, signed=signed)
            if column is None:
                raise SchemaMismatch(
                    f"column {name!r} holds an INT96 timestamp that no unit holds for certain",
                    path=request.path,
                    expected="a timestamp in the range of its unit",
                    found="one that is out of the range of nanoseconds and no whole microsecond, "
                    "out of the range of microseconds, or of two meanings",
                    remedy="The writer of the bundle has to write timestamps as 64-bit integers.",
                )
            columns.append(column)
        yield pa.RecordBatch.from_arrays(columns, names=names)


def _exact(reading: tuple[pa.Array, ...], *, signed: bool) -> pa.Array | None:
    """The reading that is exact, or None: one value in nanoseconds, microseconds and seconds.

    The reading in nanoseconds is the true one modulo 2^64. The others take the nanoseconds in the
    day as unsigned, so a negative number of them shows as 2^64 more.
    """
    nano, micro, _ = reading
    if nano.type == micro.type:
        return nano
    triples: list[Triple] = list(zip(*map(_moments, reading), strict=True))
    in_range = [n // 10**9 == s for n, _, s in triples]
    if all(bool(ok.all()) for ok in in_range):
        return nano
    # Either in 2262 to 2554, or before 1970 with a negative number of nanoseconds. Those of whole
    # microseconds, or of any number but one in a thousand, do not divide evenly once unsigned.
    either = [(n < 0) & (n.view(np.uint64) // 10**9 == s.view(np.uint64)) for n, _, s in triples]
    even = [u * np.int64(1000) == n for n, u, _ in triples]
    if signed and all(bool((a | b).all()) for a, b in zip(in_range, either, strict=True)):
        uncertain = any(bool((a & b).any()) for a, b in zip(either, even, strict=True))
        return None if uncertain else nano
    exact = all(bool((u // 10**6 == s).all()) for _, u, s in triples)
    return micro if exact and all(bool(ok.all()) for ok in even) else None


def _moments(array: pa.Array) -> list[Integers]:
    """The timestamps at every leaf, nulls as 0; equal leaves of two readings stand together."""
    type_ = array.type
    if patypes.is_timestamp(type_):
        return [pc.fill_null(array.view(pa.int64()), 0).to_numpy(zero_copy_only=False)]
    if patypes.is_struct(type_):
        fields = range(type_.num_fields)
        return [leaf for index in fields for leaf in _moments(array.field(index))]
    return _moments(array.values) if patypes.is_nested(type_) else []
