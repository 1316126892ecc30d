"""Predictions, in whatever shape a loop leaves them, as Arrow tables of one schema."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from lithi_datasets.errors import UsageError

__all__ = ["one_schema", "prediction_tables"]

TABLE_ROWS = 65_536


def prediction_tables(predictions: Any, item_id_field: str) -> Iterator[pa.Table]:
    """Cut predictions into tables of at most `TABLE_ROWS` rows, dtypes as given.

    Args:
        predictions: an Arrow table, batch or reader, a `datasets.Dataset`, a dict of columns, or an
            iterator of those. A column is a list, a numpy array or a torch tensor of B rows;
            `[B, n]` becomes a fixed-size list.
        item_id_field: the column that has to be there, of strings.

    Raises:
        UsageError: what is given is none of these, its columns differ in length, or an id is no
            string; the column is named.
    """
    for found in _tables(predictions):
        table = found.replace_schema_metadata(None)  # the same rows give the same bytes
        if item_id_field not in table.column_names:
            raise UsageError(
                "Predictions need the item ids of their source.",
                path=item_id_field,
                expected=f"a column {item_id_field!r}",
                found=", ".join(map(repr, table.column_names)),
            )
        kind = table.schema.field(item_id_field).type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            first = table.column(item_id_field)[0].as_py() if table.num_rows else None
            raise UsageError(
                f"An item id is a string; the predictions have {first!r}.",
                path=item_id_field,
                expected="string",
                found=str(kind),
                remedy="Pass the ids as they came in the batches; don't convert them.",
            )
        for start in range(0, table.num_rows, TABLE_ROWS):
            yield table.slice(start, TABLE_ROWS)


def _tables(predictions: Any) -> Iterator[pa.Table]:
    if isinstance(predictions, pa.Table):
        yield predictions
    elif isinstance(predictions, pa.RecordBatch):
        yield pa.Table.from_batches([predictions])
    elif isinstance(predictions, Mapping):
        yield _table(predictions)
    elif hasattr(predictions, "with_format") and hasattr(predictions, "iter"):
        yield from predictions.with_format("arrow").iter(TABLE_ROWS)
    elif isinstance(predictions, Iterable) and not isinstance(predictions, (str, bytes)):
        for batch in predictions:
            if isinstance(batch, (pa.Table, pa.RecordBatch, Mapping)):
                yield from _tables(batch)
            else:
                raise _no_predictions(batch)
    else:
        raise _no_predictions(predictions)


def _no_predictions(found: object) -> UsageError:
    return UsageError(
        "These are no predictions.",
        expected="an Arrow table, a Dataset, a dict of columns, or an iterator of those",
        found=type(found).__name__,
    )


def _table(columns: Mapping[str, Any]) -> pa.Table:
    arrays = {str(name): _column(str(name), values) for name, values in columns.items()}
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise UsageError(
            "The columns of a batch of predictions differ in length.",
            expected="B rows in each column",
            found=", ".join(f"{name}: {length}" for name, length in lengths.items()),
        )
    return pa.table(arrays)


def _column(name: str, values: Any) -> pa.Array | pa.ChunkedArray:
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return values
    if isinstance(values, (list, tuple)):
        values = [_plain(name, value) for value in values]
        if values and all(isinstance(value, np.ndarray) for value in values):
            shapes = {(value.shape, value.dtype) for value in values}
            values = np.stack(values) if len(shapes) == 1 else values
    else:
        values = _plain(name, values)
    try:
        return _array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise UsageError(
            f"Predictions of column {name!r} have no Arrow type: {error}",
            path=name,
            expected="numbers, strings, bytes, times, or lists and dicts of those",
            found=type(values).__name__,
        ) from error


def _plain(name: str, value: Any) -> Any:
    """A torch tensor as a numpy array; everything else as it is."""
    if not hasattr(value, "detach"):
        return value
    try:
        return value.detach().cpu().numpy()
    except (TypeError, RuntimeError) as error:
        raise UsageError(
            f"Predictions of column {name!r} are of a dtype that Arrow does not have.",
            path=name,
            expected="a dtype that numpy has",
            found=str(value.dtype),
            remedy="Convert the tensor, for example with .float().",
        ) from error


def _array(values: Any) -> pa.Array:
    if not isinstance(values, np.ndarray) or values.ndim == 1:
        return pa.array(values)
    if values.ndim == 0:
        raise ValueError("a column has rows; this is one value")
    flat: pa.Array = pa.array(np.ascontiguousarray(values).reshape(-1))
    for size in reversed(values.shape[1:]):
        if size == 0:
            raise ValueError("an axis has no elements")
        flat = pa.FixedSizeListArray.from_arrays(flat, size)
    return flat


def one_schema(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Give every table the schema of the first, held back while a column is all null.

    Raises:
        UsageError: a later table has other columns or types, or a column is null to its end.
    """
    held: list[pa.Table] = []
    schema: pa.Schema = None
    for table in tables:
        schema = table.schema if schema is None else _merged(schema, table.schema)
        held.append(table)
        if not any(pa.types.is_null(field.type) for field in schema):
            yield from (each.select(schema.names).cast(schema) for each in held)
            held = []
    if held:
        lost = [field.name for field in schema if pa.types.is_null(field.type)]
        raise UsageError(
            f"Columns of the predictions hold nothing but nulls: {', '.join(lost)}.",
            path=lost[0],
            expected="a value, or an Arrow array of the type that is meant",
            found="nulls only",
            remedy="Pass such a column as pa.array(values, type).",
        )


def _merged(schema: pa.Schema, other: pa.Schema) -> pa.Schema:
    if set(schema.names) != set(other.names):
        raise UsageError(
            "A later batch of predictions has other columns than the first.",
            expected=", ".join(schema.names),
            found=", ".join(other.names),
        )
    fields = []
    for field in schema:
        kind = other.field(field.name).type
        if pa.types.is_null(field.type) or pa.types.is_null(kind) or kind == field.type:
            known = kind if pa.types.is_null(field.type) else field.type
            fields.append(pa.field(field.name, known, field.nullable))
        else:
            raise UsageError(
                f"A later batch of predictions has another type in column {field.name!r}.",
                path=field.name,
                expected=str(field.type),
                found=str(kind),
                remedy="Make every batch with the same dtypes.",
            )
    return pa.schema(fields)
