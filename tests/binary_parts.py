"""Parts in Parquet and Arrow from a table, and back through the readers."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lithi_datasets.formats import ReadRequest, reader_for
from lithi_datasets.parts import PrivateBytes
from lithi_datasets.schema import declared_schema
from lithi_datasets.types import Field

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lithi_datasets.errors import LithiError

PART = "parts/part-00000.bin"


def fields_of(**types: Any) -> tuple[Field, ...]:
    return tuple(Field.model_validate({"name": n, "type": t}) for n, t in types.items())


def batches(
    format: str, raw: bytes, fields: tuple[Field, ...], batch_rows: int = 8192
) -> Iterator[pa.RecordBatch]:
    request = ReadRequest(fields, declared_schema(fields), PART, batch_rows=batch_rows)
    return reader_for(format)(PrivateBytes(raw), request)


def read(format: str, raw: bytes, **types: Any) -> pa.Table:
    fields = fields_of(**types)
    return pa.Table.from_batches(batches(format, raw, fields), declared_schema(fields))


def refused(error: type[LithiError], format: str, raw: bytes, **types: Any) -> LithiError:
    with pytest.raises(error) as caught:
        read(format, raw, **types)
    assert caught.value.path == PART
    return caught.value


def parquet(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def ipc_file(table: pa.Table, *, rows: int | None = None, **options: Any) -> bytes:
    return _ipc(pa.ipc.new_file, table, rows, options)


def ipc_stream(table: pa.Table, *, rows: int | None = None, **options: Any) -> bytes:
    return _ipc(pa.ipc.new_stream, table, rows, options)


def _ipc(
    new: Callable[..., Any], table: pa.Table, rows: int | None, options: dict[str, Any]
) -> bytes:
    sink = pa.BufferOutputStream()
    with new(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=rows)
    return bytes(sink.getvalue())
