"""Rows that `datasets` carries as Python values, without their Arrow types.

Where a stream can't pass Arrow on, its rows are dictionaries: of Python values that are still to be
formatted, of values that were formatted before, or of what a `map` returned. Here they become what
`lithi_datasets.reading.tensors` makes of the Arrow column, or an error.
"""

from __future__ import annotations

from datetime import datetime, time, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as patypes
import torch

from lithi_datasets.errors import UsageError
from lithi_datasets.reading.columns import dense, stored_type
from lithi_datasets.reading.tensors import StructColumn, is_ragged_row, refuse_null, row_values

__all__ = ["to_batch_values", "to_row_value"]

_NOT_ARROW = (pa.ArrowException, TypeError, ValueError, OverflowError)


def to_row_value(name: str, value: Any, kind: pa.DataType | None) -> Any:
    """What stands in a row for a Python value.

    Args:
        name: of the column.
        value: of a kind that Arrow takes, or formatted before.
        kind: the column's type; None where it is not known: then Arrow's inference decides, and
            what it doesn't take stays as it is.

    Raises:
        UsageError: the value isn't of the type, holds a null inside what would be a tensor, or may
            have lost its nanoseconds.
    """
    if kind is None:
        return _untyped(name, value)
    value = _plain(value, stored_type(kind))
    if value is None:
        return None
    if _has_nanoseconds(kind) and _holds_times(value):
        raise UsageError(
            f"This version of datasets hands the column {name!r} on without its nanoseconds.",
            path=name,
            found=str(kind),
            remedy="Use a newer datasets, torch_loader, or the dataset that isn't a stream.",
        )
    try:
        array = pa.array([value], kind)
    except _NOT_ARROW as error:
        raise UsageError(
            f"A value of the column {name!r} is not of the column's type.",
            path=name,
            expected=str(kind),
            found=repr(value)[:200],
            remedy="Let map return values of the features that it declares.",
        ) from error
    return row_values(name, array)[0]


def to_batch_values(name: str, rows: list[Any], kind: pa.DataType | None) -> Any:
    """What stands in a batch for a column of formatted rows.

    Args:
        name: of the column.
        rows: what `to_row_value` and `row_values` give.
        kind: the column's type; None where it is not known, and the rows alone tell: a list that
            `map` returned is ragged, a tensor has one shape in every row, and a column whose rows
            are all null is a list of None.

    Raises:
        UsageError: a null where the result is a tensor or a struct, or rows of several dtypes or
            shapes.
    """
    kind = None if kind is None else stored_type(kind)
    present = [row for row in rows if row is not None]
    fields = list(kind) if kind is not None and patypes.is_struct(kind) else []
    solid = bool(fields) or (kind is not None and dense(kind) is not None)
    if not present and not solid:
        return rows
    tensors = all(isinstance(row, torch.Tensor) for row in present)
    if not tensors and not _same_fields(present):
        return rows
    if tensors and not solid and (kind is not None or any(map(is_ragged_row, present))):
        return rows
    if len(present) < len(rows):
        refuse_null(name, row=next(i for i, row in enumerate(rows) if row is None))
    if tensors:
        return _stack(name, rows)
    kinds = {field.name: field.type for field in fields}
    return StructColumn(
        {
            field: to_batch_values(
                f"{name}.{field}", [row[field] for row in rows], kinds.get(field)
            )
            for field in rows[0]
        }
    )


def _stack(name: str, rows: list[torch.Tensor]) -> torch.Tensor:
    found = {(row.dtype, tuple(row.shape)) for row in rows}
    if len(found) > 1:
        raise UsageError(
            f"The rows of the column {name!r} don't make one tensor.",
            path=name,
            expected="one dtype and one shape",
            found=", ".join(sorted(f"{dtype}{list(shape)}" for dtype, shape in found)),
            remedy="Let map return lists where lengths vary, or declare its result by features=.",
        )
    return torch.stack(rows)


def _same_fields(rows: list[Any]) -> bool:
    return all(isinstance(row, dict) and row.keys() == rows[0].keys() for row in rows)


def _untyped(name: str, value: Any) -> Any:
    """A value of which only itself is known."""
    if value is None or isinstance(value, (torch.Tensor, str, bytes)):
        return value
    if isinstance(value, dict):
        return type(value)({key: _untyped(f"{name}.{key}", each) for key, each in value.items()})
    if isinstance(value, (np.ndarray, np.generic)):
        return _from_numpy(name, value)
    if isinstance(value, (list, tuple)) and _holds_arrays(value):
        return [_untyped(f"{name}[]", each) for each in value]
    try:
        array = pa.array([value])
    except _NOT_ARROW:
        return value
    return row_values(name, array)[0]


def _from_numpy(name: str, value: np.ndarray[Any, Any] | np.generic) -> Any:
    if value.dtype.kind in "mM":
        value = value.astype(np.int64)
    if value.dtype.kind not in "biuf":
        return _untyped(name, value.tolist())
    return torch.from_numpy(np.array(value, dtype=value.dtype.newbyteorder("=")))


def _holds_arrays(value: Any) -> bool:
    # Arrow would take a tensor for a list of numbers, and lose its dtype.
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return any(map(_holds_arrays, value))
    return isinstance(value, (torch.Tensor, np.ndarray, np.generic))


def _plain(value: Any, kind: pa.DataType | None) -> Any:
    """A value that may have been formatted before as a plain one; times are integers then."""
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, dict):
        fields = kind if isinstance(kind, pa.StructType) else ()
        kinds = {field.name: field.type for field in fields}
        return {key: _plain(each, kinds.get(key)) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        inner = getattr(kind, "value_type", None)
        return [_plain(each, inner) for each in value]
    # Older versions of pyarrow take no other value for a half.
    return np.float16(value) if kind == pa.float16() and isinstance(value, float) else value


def _holds_times(value: Any) -> bool:
    if isinstance(value, (list, dict)):
        return any(map(_holds_times, value.values() if isinstance(value, dict) else value))
    return isinstance(value, (datetime, time, timedelta))


def _has_nanoseconds(kind: pa.DataType) -> bool:
    kind = stored_type(kind)
    if patypes.is_nested(kind):
        return any(_has_nanoseconds(kind.field(i).type) for i in range(kind.num_fields))
    return getattr(kind, "unit", None) == "ns"
