"""The columns of a batch of predictions as Arrow arrays: exactly, or refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, time
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as patypes

from lithi_datasets.errors import UsageError

__all__ = ["arrow_columns", "decoded", "with_leaves"]

_MASK = "__valid"
_TYPED = "Pass the column as an array of one dtype, or as pa.array(values, type)."
_SAME_KIND: dict[type, object] = {
    np.bool_: bool,
    np.bytes_: bytes,
    np.float64: float,
    np.int64: int,
    np.str_: str,
    tuple: list,
    np.ndarray: list,
}
_ABSENT = ("NoneType", "NAType", "NaTType")  # the last two are those of pandas


def arrow_columns(batch: Mapping[str, Any], at: str = "") -> dict[str, pa.Array | pa.ChunkedArray]:
    """Every column of a batch, in memory of its own.

    What `torch_loader` yields comes back as the column that it was: a `<name>__valid` beside an
    array of the same shape becomes the nulls of that column, a dict of columns a struct.

    Args:
        batch: column → list, array, tensor or Arrow array of B rows.
        at: dotted path of the struct that these are the fields of, with the dot.

    Raises:
        UsageError: a column, named by its path, has no Arrow type or would lose something in it.
    """
    values = {name: _unwrapped(_named(name, at), column) for name, column in batch.items()}
    masks = {name + _MASK for name in values if _is_masked(values, name)}
    arrays = {}
    for name, column in values.items():
        if name in masks:
            continue
        valid = values[name + _MASK] if name + _MASK in masks else None
        arrays[name] = _column(at + name, column, valid)
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise UsageError(
            "The columns of a batch of predictions differ in length.",
            path=at.rstrip(".") or None,
            expected="B rows in each column",
            found=", ".join(f"{name}: {length}" for name, length in lengths.items()),
        )
    return arrays


def _named(name: object, at: str) -> str:
    try:
        if not isinstance(name, str):
            raise TypeError
        name.encode()
    except (TypeError, UnicodeEncodeError):
        raise UsageError(
            "A column of predictions has no usable name.", expected="Unicode text", found=repr(name)
        ) from None
    return at + name


def _unwrapped(path: str, value: Any) -> Any:
    """A torch tensor as a numpy array, a plain pandas series too; everything else as it is."""
    if isinstance(getattr(value, "dtype", None), np.dtype) and hasattr(value, "to_numpy"):
        return value.to_numpy()
    if not hasattr(value, "detach"):
        return value
    try:
        return value.detach().cpu().resolve_conj().resolve_neg().numpy()
    except (TypeError, RuntimeError, NotImplementedError) as error:
        raise UsageError(
            f"Predictions of column {path!r} are of a kind of tensor that Arrow does not have.",
            path=path,
            expected="a dense tensor with values, of a dtype that numpy has",
            found=f"{value.dtype}, {value.layout}, on {value.device}",
            remedy="Convert the tensor, for example with .float() or .to_dense().",
        ) from error


def _is_masked(values: Mapping[str, Any], name: str) -> bool:
    """Whether an array has its mask beside it, as in a batch of `torch_loader`."""
    column, valid = values[name], values.get(name + _MASK)
    return (
        isinstance(valid, np.ndarray)
        and isinstance(column, np.ndarray)
        and valid.dtype == np.bool_
        and valid.ndim > 0
        and valid.shape == column.shape
    )


def _column(path: str, values: Any, valid: Any) -> pa.Array | pa.ChunkedArray:
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return values
    try:
        if isinstance(values, Mapping):
            return _struct(path, values)
        if isinstance(values, np.ndarray) and values.dtype != np.object_:
            return _array(values) if valid is None else _masked(values, valid)
        if type(values).__module__.startswith("pandas."):
            return pa.array(values)
        return _listed(path, values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(
            f"Predictions of column {path!r} have no Arrow type: {error}",
            path=path,
            expected="numbers, strings, bytes, times, or lists and dicts of those",
            found=type(values).__name__,
            remedy=_TYPED,
        ) from error


def _struct(path: str, fields: Mapping[str, Any]) -> pa.Array:
    arrays = arrow_columns(fields, f"{path}.")
    if not arrays:
        raise ValueError("a struct has at least one field")
    plain = [a.combine_chunks() if isinstance(a, pa.ChunkedArray) else a for a in arrays.values()]
    return pa.StructArray.from_arrays(plain, names=list(arrays))


def _array(values: Any) -> pa.Array:
    """An array `[B]`, or `[B, n, …]` as fixed-size lists; masked elements are nulls."""
    if values.ndim == 0:
        raise ValueError("a column has rows; this is one value")
    # Copied in any case: a loop may fill one buffer again and again.
    kind = values.dtype.newbyteorder("=")
    data = np.array(np.ma.getdata(values), dtype=kind, order="C", copy=True).reshape(-1)
    mask = np.ma.getmaskarray(values).reshape(-1) if np.ma.isMaskedArray(values) else None
    flat = pa.array(data, mask=mask)
    for size in reversed(values.shape[1:]):
        if size == 0:
            raise ValueError("an axis has no elements")
        flat = pa.FixedSizeListArray.from_arrays(flat, size)
    return flat


def _masked(values: Any, valid: Any) -> pa.Array:
    """An array with the mask of a loader, in which a null list is a row of False."""
    array = _array(np.ma.masked_array(values, mask=~valid))
    if values.ndim == 1 or not len(values):
        return array
    lost = pa.array(~valid.reshape(len(valid), -1).any(axis=1))
    return pc.if_else(lost, pa.scalar(None, array.type), array)


def _listed(path: str, values: Any) -> pa.Array:
    no_rows = isinstance(values, (str, bytes, bytearray, memoryview, set, frozenset))
    if no_rows or not isinstance(values, Iterable):
        raise UsageError(
            f"Predictions of column {path!r} are no column.",
            path=path,
            expected="a list, array or tensor of B rows",
            found=type(values).__name__,
            remedy="Pass batches of columns: {name: [value of each row]}.",
        )
    rows = [_unwrapped(path, value) for value in values]
    arrays = [row for row in rows if isinstance(row, np.ndarray)]
    masked = any(map(np.ma.isMaskedArray, arrays))
    if arrays and len(arrays) == len(rows) and len({(a.shape, a.dtype) for a in arrays}) == 1:
        return _array(np.ma.stack(arrays) if masked else np.stack(arrays))
    if masked:
        raise ValueError("masked arrays of several lengths; pass lists with None")
    rows = [row[()] if isinstance(row, np.ndarray) and row.ndim == 0 else row for row in rows]
    _refuse_mixed(path, rows)
    return pa.array(rows)


def _refuse_mixed(path: str, values: Iterable[Any], inside: Iterable[object] = ()) -> None:
    """Refuse values of several kinds, which Arrow would make one of without a word.

    Of a date and a time it keeps the date, of instants with and without a zone the wall clock.

    Args:
        path: dotted path, for messages.
        values: rows, or items of rows.
        inside: kinds that are there besides.

    Raises:
        UsageError: there are several kinds, other than integers and floats (whose exactness Arrow
            checks), or a kind of which something would be lost.
    """
    rows = list(values)
    types = {one for one in set(map(type, rows)) if one.__name__ not in _ABSENT}
    zoned = {one for one in types if issubclass(one, datetime)}
    kinds = {_SAME_KIND.get(one, one) for one in types - zoned} | set(inside)
    if zoned:
        zones = {row.tzinfo is not None for row in rows if type(row) in zoned}
        kinds |= {"datetime with a zone" if zone else "datetime without" for zone in zones}
    if time in kinds and any(type(row) is time and row.tzinfo is not None for row in rows):
        kinds.add("time with a zone")
    if kinds & {set, frozenset} or (len(kinds) > 1 and kinds != {int, float}):
        raise UsageError(
            f"Predictions of column {path!r} hold values that no one type keeps.",
            path=path,
            expected="values of one kind",
            found=", ".join(sorted(getattr(kind, "__name__", str(kind)) for kind in kinds)),
            remedy=_TYPED,
        )
    if list in kinds:
        _refuse_mixed_items(path, rows)
    if dict in kinds:
        structs = [row for row in rows if type(row) is dict]
        for name in dict.fromkeys(chain.from_iterable(structs)):
            _refuse_mixed(f"{path}.{name}", [row.get(name) for row in structs])


def _refuse_mixed_items(path: str, rows: list[Any]) -> None:
    lists = [row for row in rows if type(row) in (list, tuple)]
    arrays = [row for row in rows if isinstance(row, np.ndarray)]
    lists += [array.tolist() for array in arrays if array.dtype == np.object_ or array.ndim > 1]
    inside = {array.dtype.type for array in arrays if array.dtype != np.object_ and array.ndim == 1}
    kinds = [_SAME_KIND.get(kind, kind) for kind in inside]
    _refuse_mixed(f"{path}[]", chain.from_iterable(lists), kinds)


def decoded(path: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The values that a dictionary, run-end or view encoding stands for, at any depth.

    Raises:
        UsageError: this version of pyarrow can't decode it.
    """
    try:
        if patypes.is_run_end_encoded(column.type):
            chunks = [pc.run_end_decode(chunk) for chunk in column.chunks]
            column = pa.chunked_array(chunks, column.type.value_type)
        plain = _plain_type(column.type)
        return column if plain == column.type else column.cast(plain)
    except (pa.ArrowException, ValueError) as error:
        raise UsageError(
            f"Column {path!r} of the predictions can't be decoded: {error}",
            path=path,
            expected="plain values",
            found=str(column.type),
            remedy=_TYPED,
        ) from error


def _plain_type(kind: pa.DataType) -> pa.DataType:
    return with_leaves(kind, _plain_leaf)


def _plain_leaf(kind: pa.DataType) -> pa.DataType:
    if patypes.is_dictionary(kind) or patypes.is_run_end_encoded(kind):
        return _plain_type(kind.value_type)
    if patypes.is_string_view(kind) or patypes.is_binary_view(kind):
        return pa.string() if patypes.is_string_view(kind) else pa.binary()
    return kind


def with_leaves(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """A type, each type in it that is neither a struct nor a list changed."""
    if patypes.is_struct(kind):
        return pa.struct([field.with_type(with_leaves(field.type, change)) for field in kind])
    lists = (patypes.is_list, patypes.is_large_list, patypes.is_fixed_size_list)
    if not any(is_one(kind) for is_one in lists):
        return change(kind)
    item = kind.value_field.with_type(with_leaves(kind.value_type, change))
    if patypes.is_fixed_size_list(kind):
        return pa.list_(item, kind.list_size)
    return pa.large_list(item) if patypes.is_large_list(kind) else pa.list_(item)
