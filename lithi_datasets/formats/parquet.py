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

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as patypes

from lithi_datasets.errors import SchemaMismatch
from lithi_datasets.formats.physical import BATCH_BYTES, declared_batches, decoding

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from lithi_datasets.formats import PartSource, ReadRequest

__all__ = ["read"]

_COARSER: Final = ("us", "s")


def read(source: PartSource, request: ReadRequest) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file; see `lithi_datasets.formats.Reader`."""
    with decoding(request.path):
        file = _open(source)
        schema = file.schema_arrow
        rows = _batch_rows(file.metadata, request.batch_rows)
        batches: Iterator[pa.RecordBatch] = file.iter_batches(rows, use_threads=False)
        if _has_int96(file):
            others = [
                _open(source, unit).iter_batches(rows, use_threads=False) for unit in _COARSER
            ]
            batches = _exact_int96(batches, others, request)
    yield from declared_batches(schema, batches, request)


def _open(source: PartSource, int96_unit: str | None = None) -> pq.ParquetFile:
    return pq.ParquetFile(
        source.arrow(),
        pre_buffer=False,
        page_checksum_verification=True,
        coerce_int96_timestamp_unit=int96_unit,
    )


def _batch_rows(metadata: pq.FileMetaData, most: int) -> int:
    """At most so many rows that a batch has about `BATCH_BYTES`, by what the row groups say."""
    wanted = most
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        if group.num_rows > 0 and group.total_byte_size > 0:
            wanted = min(wanted, BATCH_BYTES * group.num_rows // group.total_byte_size)
    return max(1, wanted)


def _has_int96(file: pq.ParquetFile) -> bool:
    columns = range(len(file.schema))
    return any(file.schema.column(index).physical_type == "INT96" for index in columns)


def _exact_int96(
    nanoseconds: Iterator[pa.RecordBatch],
    others: list[Iterator[pa.RecordBatch]],
    request: ReadRequest,
) -> Iterator[pa.RecordBatch]:
    """Batches in nanoseconds, each INT96 column in microseconds where only that is exact."""
    for batches in zip(nanoseconds, *others, strict=True):
        names = batches[0].schema.names
        readings = zip(*(batch.columns for batch in batches), strict=True)
        columns = [_exact(name, r, request) for name, r in zip(names, readings, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, names=names)


def _exact(name: str, readings: tuple[pa.Array, ...], request: ReadRequest) -> pa.Array:
    nano, micro, _ = readings
    if nano.type == micro.type:
        return nano
    triples = list(zip(*map(_moments, readings), strict=True))
    if all(bool(np.all(n // 10**9 == s)) for n, _, s in triples):
        return nano
    for n, u, s in triples:
        # n has wrapped modulo 2^64, and so does the product here.
        if not bool(np.all(u // 10**6 == s)) or not bool(np.all(u * np.int64(1000) == n)):
            raise SchemaMismatch(
                f"column {name!r} holds an INT96 timestamp that no unit can hold exactly",
                path=request.path,
                expected="a timestamp in the range of its unit",
                found="one out of the range of nanoseconds that is no whole microsecond, or out "
                "of the range of microseconds",
            )
    return micro


def _moments(array: pa.Array) -> list[npt.NDArray[np.int64]]:
    """The timestamps at every leaf, nulls as 0; equal leaves of two readings stand together."""
    type_ = array.type
    if patypes.is_timestamp(type_):
        return [pc.fill_null(array.view(pa.int64()), 0).to_numpy(zero_copy_only=False)]
    if patypes.is_struct(type_):
        fields = range(type_.num_fields)
        return [leaf for index in fields for leaf in _moments(array.field(index))]
    if patypes.is_nested(type_):
        return _moments(array.values)
    return []
