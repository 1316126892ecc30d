"""Predictions, in whatever shape a loop leaves them, as Arrow tables of one schema."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.types as patypes

from lithi_datasets.errors import UsageError
from lithi_datasets.prediction_columns import arrow_columns, decoded

__all__ = ["label_names", "merged", "one_schema", "prediction_tables"]

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
        names = found.column_names
        if names.count(item_id_field) != 1:
            raise UsageError(
                "Predictions need the item ids of their source.",
                path=item_id_field,
                expected=f"a column {item_id_field!r}",
                found=", ".join(map(repr, names)),
            )
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise UsageError(
                f"A column of the predictions stands twice: {twice!r}.",
                path=twice,
                expected="each name once",
                found=", ".join(map(repr, names)),
            )
        # A table without rows says of which types the others would be.
        for start in range(0, max(found.num_rows, 1), TABLE_ROWS):
            yield _plain(found.slice(start, TABLE_ROWS), item_id_field)


def _plain(table: pa.Table, item_id_field: str) -> pa.Table:
    fields, columns = [], []
    for field, found in zip(table.schema, table.columns, strict=True):
        column = decoded(field.name, found)
        if field.name == item_id_field:
            column = _ids(item_id_field, column)
        columns.append(column)
        fields.append(pa.field(field.name, column.type, field.nullable))
    # Metadata is left out: the same rows give the same bytes.
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _ids(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    if patypes.is_null(kind) or patypes.is_string(kind) or patypes.is_large_string(kind):
        if not column.null_count:
            return column.cast(pa.string())
        raise UsageError(
            "A prediction has no item id.", path=name, expected="a string", found="null"
        )
    first = column[0].as_py() if len(column) else None
    raise UsageError(
        f"An item id is a string; the predictions have {first!r}.",
        path=name,
        expected="string",
        found=str(kind),
        remedy="Pass the ids as they came in the batches; don't convert them.",
    )


def _tables(predictions: Any) -> Iterator[pa.Table]:
    if isinstance(predictions, pa.Table):
        yield predictions
    elif isinstance(predictions, pa.RecordBatch):
        yield pa.Table.from_batches([predictions])
    elif isinstance(predictions, Mapping):
        yield pa.table(arrow_columns(predictions))
    elif _is_dataset(predictions):
        yield from predictions.with_format("arrow").iter(TABLE_ROWS)
    elif isinstance(predictions, Iterable) and not isinstance(predictions, (str, bytes)):
        for batch in predictions:
            if isinstance(batch, (pa.Table, pa.RecordBatch, Mapping)):
                yield from _tables(batch)
            else:
                raise _no_predictions(batch)
    else:
        raise _no_predictions(predictions)


def _is_dataset(predictions: Any) -> bool:
    return hasattr(predictions, "with_format") and hasattr(predictions, "iter")


def _no_predictions(found: object) -> UsageError:
    return UsageError(
        "These are no predictions.",
        expected="an Arrow table, a Dataset, a dict of columns, or an iterator of those",
        found=type(found).__name__,
    )


def label_names(predictions: Any) -> dict[str, list[str]]:
    """The class names that a `datasets.Dataset` has for its columns; nothing else has any."""
    features = predictions.features if _is_dataset(predictions) else None
    return {
        name: list(feature.names)
        for name, feature in (features or {}).items()
        if isinstance(getattr(feature, "names", None), (list, tuple))
    }


def one_schema(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Give every table the schema of all, held back while a type is not known for its nulls.

    A table without rows is passed over, unless there is no other.

    Raises:
        UsageError: a later table has other columns or types, or a column is null to its end.
    """
    held: list[pa.Table] = []
    schema: pa.Schema = None
    empty: pa.Table = None
    for table in tables:
        if not table.num_rows:
            empty = table if empty is None else empty
            continue
        schema = table.schema if schema is None else merged(schema, table.schema)
        held.append(table)
        if not any(_is_open(field.type) for field in schema):
            yield from (_conformed(each, schema) for each in held)
            held = []
    if schema is None and empty is not None:
        schema, held = empty.schema, [empty]
    lost = [field.name for field in schema or () if _is_open(field.type)]
    if lost:
        raise UsageError(
            f"Columns of the predictions hold nothing but nulls: {', '.join(lost)}.",
            path=lost[0],
            expected="a value, or an Arrow array of the type that is meant",
            found="nulls only",
            remedy="Pass such a column as pa.array(values, type).",
        )
    yield from held


def _conformed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    for field in schema:
        if not field.nullable and table.column(field.name).null_count:
            raise UsageError(
                f"Column {field.name!r} of the predictions holds a null.",
                path=field.name,
                expected="no null, as the schema of the first batch says",
                found="null",
                remedy="Declare the column nullable in every batch.",
            )
    return table.select(schema.names).cast(schema)


def _is_open(kind: pa.DataType) -> bool:
    """Whether there is a null type in a type: no value has said yet what it is of."""
    if patypes.is_null(kind):
        return True
    return any(_is_open(field.type) for field in _children(kind))


def _children(kind: pa.DataType) -> list[pa.Field]:
    if patypes.is_struct(kind):
        return list(kind)
    return [kind.value_field] if _is_list(kind) else []


def _shape(kind: pa.DataType) -> tuple[Any, ...]:
    """What two nested types have in common that differ in the types of their fields only."""
    names = [field.name for field in kind] if patypes.is_struct(kind) else []
    return kind.id, names, kind.list_size if patypes.is_fixed_size_list(kind) else None


def _is_list(kind: pa.DataType) -> bool:
    some = patypes.is_list(kind) or patypes.is_large_list(kind)
    return bool(some or patypes.is_fixed_size_list(kind))


def merged(schema: pa.Schema, other: pa.Schema) -> pa.Schema:
    """The schema of two tables of predictions.

    Raises:
        UsageError: they have other columns, or other types in one of them.
    """
    if set(schema.names) != set(other.names):
        raise UsageError(
            "A later batch of predictions has other columns than the first.",
            expected=", ".join(schema.names),
            found=", ".join(other.names),
        )
    fields = []
    for field in schema:
        kind = other.field(field.name).type
        known = _merged_type(field.type, kind)
        if known is None:
            raise UsageError(
                f"A later batch of predictions has another type in column {field.name!r}.",
                path=field.name,
                expected=str(field.type),
                found=str(kind),
                remedy="Make every batch with the same dtypes: arrays, or pa.array(values, type).",
            )
        fields.append(pa.field(field.name, known, field.nullable))
    return pa.schema(fields)


def _merged_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type of both, where they differ in nothing but null types; else None."""
    if one == other or patypes.is_null(other):
        return one
    if patypes.is_null(one):
        return other
    mine, theirs = _children(one), _children(other)
    types = [_merged_type(a.type, b.type) for a, b in zip(mine, theirs, strict=False)]
    if not mine or None in types or _shape(one) != _shape(other):
        return None
    fields = [field.with_type(kind) for field, kind in zip(mine, types, strict=True)]
    if patypes.is_struct(one):
        return pa.struct(fields)
    if patypes.is_fixed_size_list(one):
        return pa.list_(fields[0], one.list_size)
    return pa.large_list(fields[0]) if patypes.is_large_list(one) else pa.list_(fields[0])
