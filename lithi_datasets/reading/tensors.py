"""Arrow columns as torch tensors: one kind of result for each Arrow type, whatever the values are.

| type | in a batch of B rows | in a row |
| --- | --- | --- |
| bool, integers, floats, class labels | tensor `[B]` of that dtype | tensor `[]` |
| date, time, timestamp, duration | tensor `int64[B]` in the declared unit (`date32`: days) | `[]` |
| fixed-size list of the above | tensor `[B, n]`, nested `[B, n, m]` | tensor `[n]`, `[n, m]` |
| list of the above | list of B tensors `[k]`, `[k, n]` | tensor `[k]`, `[k, n]` |
| struct | `StructColumn`: a dict of such columns | dict |
| list of anything else | list of B lists, of rows of that type | list |
| string, binary, decimal | list of B Python values | value |

A ragged list is a list of tensors, not values with offsets: that is what `pad_sequence`,
`pack_sequence` and `torch.nested` take, and its elements are what the rows are.

Nulls. In a row, and in what is a Python list, a null is None. A tensor has no null, and its dtype
never depends on the values; so in a batch a null is a `UsageError` where the result is a tensor or
a struct, unless the caller asks for masks, and a null inside the tensor of a ragged list or of a
row always is.

Every tensor owns its memory: it can be written to, and outlives the Arrow data.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.types as patypes
import torch

from lithi_datasets.errors import UsageError
from lithi_datasets.reading.columns import (
    Column,
    Dense,
    dense,
    fixed_shape,
    is_plain,
    is_ragged,
    stored_type,
    unbroken,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lithi_datasets.gather import Mask

__all__ = [
    "BatchMaker",
    "StructColumn",
    "batch_values",
    "is_ragged_row",
    "mask_name",
    "masked_columns",
    "refuse_mask_collisions",
    "refuse_null",
    "row_values",
    "to_tensors",
]

_RAGGED = "_lithi_ragged"


class StructColumn(dict[str, Any]):
    """The struct column of a batch: a dict of its fields' columns, and the sequence of its rows.

    `datasets` and torch take a batch apart by `len(column)` and `column[i]`; so `len` is the number
    of rows, an index gives a row as a dict, a slice a `StructColumn`. In all else it is a dict.
    """

    def __len__(self) -> int:
        return next((len(column) for column in self.values()), 0)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return super().__getitem__(key)
        picked = {name: column[key] for name, column in self.items()}
        return StructColumn(picked) if isinstance(key, slice) else picked


def mask_name(name: str) -> str:
    """The key of a column's mask: `<name>__valid`."""
    return f"{name}__valid"


def masked_columns(schema: pa.Schema, nullable: Iterable[str]) -> frozenset[str]:
    """Which columns come with a mask of their own in a batch with masks.

    Args:
        schema: of the batches.
        nullable: the columns that are declared nullable.
    """
    wanted = frozenset(nullable)
    kinds = {field.name: stored_type(field.type) for field in schema if field.name in wanted}
    return frozenset(name for name, kind in kinds.items() if dense(kind) or fixed_shape(kind))


def refuse_mask_collisions(names: Iterable[str], masks: Iterable[str]) -> None:
    """Refuse declared names that are also the key of a mask.

    Args:
        names: the names of all columns.
        masks: the columns that come with a mask, as `masked_columns` gives them.

    Raises:
        UsageError: a column is called as the mask of another.
    """
    declared = frozenset(names)
    for name in sorted(masks):
        if mask_name(name) in declared:
            _refuse_collision(mask_name(name))


class BatchMaker:
    """Makes tensors of batches of one schema, as `to_tensors` does.

    What depends on the schema alone is found out once: for a batch of a few hundred rows that is
    half of the work.

    Args:
        schema: of the batches.
        masks: names of the columns that may hold nulls; None for no masks at all.

    Raises:
        UsageError: a column is called as another, or as the mask of another; it names the column.
    """

    def __init__(self, schema: pa.Schema, *, masks: frozenset[str] | None) -> None:
        self.schema, self._masks = schema, masks
        masked = masked_columns(schema, masks or ())
        refuse_mask_collisions(schema.names, masked)
        for name in schema.names:
            if len(schema.get_all_field_indices(name)) > 1:
                _refuse_collision(name)
        self._columns = tuple(
            (field.name, is_plain(field.type), dense(field.type), field.name in masked)
            for field in schema
        )

    def __call__(self, batch: pa.RecordBatch | pa.Table) -> dict[str, Any]:
        """B rows as tensors; see `to_tensors`.

        Raises:
            UsageError: a null where the result is a tensor without a mask, or inside a ragged list.
        """
        out: dict[str, Any] = {}
        chunked = not isinstance(batch, pa.RecordBatch)
        for (name, plain, how, masked), data in zip(self._columns, batch.columns, strict=True):
            array = data.chunk(0) if chunked and data.num_chunks == 1 else data
            if plain:
                out[name] = array.to_pylist()
                continue
            values = None
            if how is not None and isinstance(array, pa.Array):
                values = unbroken(array, how)
            if values is None:
                _put(out, name, Column.of_data(name, array), self._masks)
                continue
            out[name] = torch.from_numpy(values)
            if masked:
                out[mask_name(name)] = torch.from_numpy(np.ones(values.shape, np.bool_))
        return out


def to_tensors(batch: pa.RecordBatch | pa.Table, *, masks: frozenset[str] | None) -> dict[str, Any]:
    """A batch as tensors, of the kinds that the module's table says.

    With masks, each named column of numbers, bools, times or class labels, and each named
    fixed-size list, is followed by `<name>__valid`: bool, of the values' shape (`bool[B]`,
    `bool[B, n]`, a null list a row of False), in every batch. Where it is False the value is 0.
    A struct has no mask of its own: its fields have theirs inside it, all of them if the struct is
    named, else those that are named by their path (`"box.left"`).

    Args:
        batch: B rows, 0 or more, in one chunk or many.
        masks: names of the columns that may hold nulls; None for no masks at all.

    Raises:
        UsageError: a null where the result is a tensor without a mask, or inside a ragged list; a
            column is called as the mask of another. It names the column.
    """
    return BatchMaker(batch.schema, masks=masks)(batch)


def batch_values(name: str, data: pa.Array | pa.ChunkedArray) -> Any:
    """One column as it stands in a batch without masks; see `to_tensors`."""
    out: dict[str, Any] = {}
    _put(out, name, Column.of_data(name, data), None)
    return out[name]


def row_values(name: str, data: pa.Array | pa.ChunkedArray) -> list[Any]:
    """One column as the list of what stands in its rows; a null is None.

    Raises:
        UsageError: a null inside what is a tensor in the row, naming the column.
    """
    return _rows(Column.of_data(name, data), own=True)


def is_ragged_row(row: torch.Tensor) -> bool:
    """Whether `row_values` made this tensor of a list whose length varies from row to row."""
    return getattr(row, _RAGGED, False)


def _put(
    out: dict[str, Any],
    name: str,
    column: Column,
    masks: frozenset[str] | None,
    *,
    inherited: bool = False,
) -> None:
    """Add a column to a batch, and its mask if it comes with one."""
    if name in out:
        _refuse_collision(column.path)
    masked = inherited or (masks is not None and column.path in masks)
    if how := dense(column.kind):
        values, valid = column.read(how)
        out[name] = torch.from_numpy(values)
        if masked:
            _put_mask(
                out, name, column, np.ones(values.shape, np.bool_) if valid is None else valid
            )
        elif valid is not None:
            refuse_null(column.path, row=_first_row(valid), with_masks=masks is not None)
    elif patypes.is_struct(column.kind):
        if not masked and (lost := column.null_rows()):
            refuse_null(column.path, row=lost[0], with_masks=masks is not None)
        out[name] = StructColumn()
        for field, child in column.fields():
            _put(out[name], field, child, masks, inherited=masked)
    else:
        out[name] = _rows(column)
        if masked and fixed_shape(column.kind):
            _put_mask(out, name, column, column.validity())


def _put_mask(out: dict[str, Any], name: str, column: Column, valid: Mask | None) -> None:
    if mask_name(name) in out:
        _refuse_collision(mask_name(column.path))
    if valid is None:
        valid = np.ones((column.rows, *fixed_shape(column.kind)), np.bool_)
    out[mask_name(name)] = torch.from_numpy(valid)


def _rows(column: Column, *, own: bool = False) -> list[Any]:
    """What stands in each row.

    Args:
        column: any column.
        own: each row has memory of its own, so that keeping it doesn't keep the others, and tells
            whether it is ragged; else rows may be views of one batch.
    """
    if how := dense(column.kind):
        return _tensor_rows(column, how, own=own)
    rows: list[Any]
    if patypes.is_struct(column.kind):
        children = {name: _rows(child, own=own) for name, child in column.fields()}
        rows = [
            dict(zip(children, row, strict=True)) for row in zip(*children.values(), strict=True)
        ]
    elif is_ragged(column.kind) or patypes.is_fixed_size_list(column.kind):
        rows = _list_rows(column, own=own)
    else:
        return [*chain.from_iterable(chunk.to_pylist() for chunk in column.chunks)]
    for row in column.null_rows():
        rows[row] = None
    return rows


def _tensor_rows(column: Column, how: Dense, *, own: bool) -> list[Any]:
    values, valid = column.read(how)
    rows: list[Any] = list(torch.from_numpy(values).unbind(0))
    if own and len(rows) > 1:
        rows = [row.clone() for row in rows]
    if valid is None:
        return rows
    lost = column.null_rows()
    valid[lost] = True
    if not valid.all():
        refuse_null(column.path, row=_first_row(valid), inside=True)
    for index in lost:
        rows[index] = None
    return rows


def _list_rows(column: Column, *, own: bool) -> list[Any]:
    rows: list[Any] = []
    for items, lengths in column.lists():
        ends = np.cumsum(lengths)
        if how := dense(items.kind):
            values, valid = items.read(how)
            if valid is not None:
                row = len(rows) + int(np.searchsorted(ends, _first_row(valid), side="right"))
                refuse_null(column.path, row=row, inside=True)
            parts = torch.split(torch.from_numpy(values), lengths.tolist()) if len(lengths) else ()
            rows += map(_owned_ragged, parts) if own else parts
        else:
            inner = _rows(items, own=own)
            starts = (ends - lengths).tolist()
            rows += [inner[start:end] for start, end in zip(starts, ends.tolist(), strict=True)]
    return rows


def _owned_ragged(row: torch.Tensor) -> torch.Tensor:
    row = row.clone()
    setattr(row, _RAGGED, True)
    return row


def _first_row(valid: Mask) -> int:
    """The first row of `valid` that isn't all True."""
    return int(np.argmin(valid.reshape(len(valid), -1).all(axis=1)))


def refuse_null(
    column: str, *, row: int, inside: bool = False, with_masks: bool = False
) -> NoReturn:
    """Raise the error for a null that a tensor would have to hold.

    Args:
        column: dotted path of the column.
        row: of the batch, from 0.
        inside: the null is an element of a tensor that is there.
        with_masks: the batch has masks, but this column has none.
    """
    if inside:
        problem = "A null inside a list has no place in a tensor"
        remedy = (
            "A batch of torch_loader has a mask for a fixed-size list that is declared nullable."
        )
    elif with_masks:
        problem = "A null in a column that is declared without nulls has no place in a tensor"
        remedy = "A column that is declared nullable comes with a mask."
    else:
        problem = "A null has no place in a tensor, whose dtype never depends on the values"
        remedy = "Leave such rows out with statuses=, or read with torch_loader, which adds a mask."
    raise UsageError(
        f"{problem}: column {column!r}.",
        path=column,
        found=f"a null in row {row} of the batch",
        remedy=f"{remedy} with_format(None) gives Python values; columns= leaves the column out.",
    )


def _refuse_collision(path: str) -> NoReturn:
    raise UsageError(
        f"The column {path!r} is called as the mask of another column.",
        path=path,
        expected="a column's name that isn't another one's with __valid after it",
        remedy="Leave one of the two out with columns=, or rename it with rename_column.",
    )
