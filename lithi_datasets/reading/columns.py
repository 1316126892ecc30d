"""What lies in an Arrow column, as numpy arrays; no torch.

An Arrow type is *dense* if a batch of it is one array: bools, numbers and times, and fixed-size
lists of those. Everything here is driven by the type, reads the buffers as they lie, and copies
each value once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as patypes

from lithi_datasets.gather import Mask, dtype_of, raw

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "Column",
    "Dense",
    "dense",
    "fixed_shape",
    "is_plain",
    "is_ragged",
    "stored_type",
    "unbroken",
]


@dataclass(frozen=True)
class Dense:
    """A type whose batches are one array.

    Args:
        stored: how Arrow stores a value.
        output: how the array holds it: times, of 32 bits or 64, as int64.
        shape: of one row.
    """

    stored: np.dtype[Any]
    output: np.dtype[Any]
    shape: tuple[int, ...]


@lru_cache(maxsize=1024)
def dense(kind: pa.DataType) -> Dense | None:
    """How a column of this type lies in one array; None if it doesn't."""
    shape = fixed_shape(kind)
    for _ in shape:
        kind = kind.value_type
    if patypes.is_boolean(kind):
        return Dense(np.dtype(np.bool_), np.dtype(np.bool_), shape)
    if patypes.is_integer(kind) or patypes.is_floating(kind):
        return Dense(dtype_of(kind), dtype_of(kind), shape)
    if patypes.is_temporal(kind) and not patypes.is_interval(kind):
        return Dense(np.dtype(f"i{kind.bit_width // 8}"), np.dtype(np.int64), shape)
    return None


def fixed_shape(kind: pa.DataType) -> tuple[int, ...]:
    """The lengths of the fixed-size lists that the type begins with, outermost first."""
    shape = []
    while patypes.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        kind = kind.value_type
    return tuple(shape)


def unbroken(array: pa.Array, how: Dense) -> npt.NDArray[Any] | None:
    """The values of a dense array without nulls, in memory of their own: the short way.

    Returns:
        `[rows, *how.shape]`; None where it takes `Column.read` to tell: there may be nulls, or the
        values are bits.
    """
    buffers = array.buffers()
    data = buffers.pop()
    if data is None or how.stored.kind == "b" or any(buffers):
        return None
    first, shape = array.offset, (len(array), *how.shape)
    for length in how.shape:
        array = array.values  # the whole child, which may have an offset of its own
        first = first * length + array.offset
    values = np.ndarray(shape, how.stored, data, first * how.stored.itemsize)
    return values.astype(how.output)


def is_ragged(kind: pa.DataType) -> bool:
    """Whether the type is a list whose length varies."""
    return bool(patypes.is_list(kind) or patypes.is_large_list(kind))


@lru_cache(maxsize=1024)
def is_plain(kind: pa.DataType) -> bool:
    """Whether values of the type are Python values in any case: strings, binary, decimals."""
    return not (
        dense(kind)
        or patypes.is_nested(kind)
        or patypes.is_dictionary(kind)
        or isinstance(kind, pa.BaseExtensionType)
    )


def stored_type(kind: pa.DataType) -> pa.DataType:
    """What an extension type or a dictionary stands for; a bundle's own columns are neither."""
    if isinstance(kind, pa.BaseExtensionType):
        return stored_type(kind.storage_type)
    return kind.value_type if patypes.is_dictionary(kind) else kind


@dataclass(slots=True)
class Column:
    """A column, or what lies inside one.

    Args:
        path: what errors call it: `"box.left"`, `"tags[]"`.
        kind: its type; neither an extension type nor a dictionary.
        chunks: its rows, none or many arrays.
    """

    path: str
    kind: pa.DataType
    chunks: Sequence[pa.Array]

    @classmethod
    def of(cls, path: str, kind: pa.DataType, chunks: Sequence[pa.Array]) -> Column:
        """A column of any type."""
        if isinstance(kind, pa.BaseExtensionType):
            return cls.of(path, kind.storage_type, [chunk.storage for chunk in chunks])
        if patypes.is_dictionary(kind):
            return cls.of(path, kind.value_type, [chunk.dictionary_decode() for chunk in chunks])
        return cls(path, kind, chunks)

    @classmethod
    def of_data(cls, path: str, data: pa.Array | pa.ChunkedArray) -> Column:
        """A column of a table or of a record batch."""
        return cls.of(path, data.type, getattr(data, "chunks", [data]))

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return sum(map(len, self.chunks))

    def null_rows(self) -> list[int]:
        """The rows that are null, ascending."""
        found: list[int] = []
        first = 0
        for chunk in self.chunks:
            if chunk.null_count:
                found += (np.flatnonzero(~_unpacked(chunk, 0)) + first).tolist()
            first += len(chunk)
        return found

    def read(self, how: Dense) -> tuple[npt.NDArray[Any], Mask | None]:
        """A dense column's values, in memory of their own.

        Returns:
            values: `[rows, *how.shape]`, 0 where there is none.
            valid: where there is one, of the same shape; None if everywhere.
        """
        leaves = [_leaf(chunk, how.shape) for chunk in self.chunks]
        packed = how.stored.kind == "b"
        parts = [_unpacked(leaf, 1) if packed else raw(leaf, how.stored) for leaf, _ in leaves]
        if len(parts) == 1:
            values = parts[0].astype(how.output)
        else:
            values = np.concatenate([np.empty(0, how.stored), *parts]).astype(
                how.output, copy=False
            )
        valid = _joined(leaves)
        if valid is not None:
            values[~valid] = 0
            valid = valid.reshape(-1, *how.shape)
        return values.reshape(-1, *how.shape), valid

    def validity(self) -> Mask | None:
        """Which values there are, `[rows, *fixed_shape(kind)]`; None if all."""
        shape = fixed_shape(self.kind)
        valid = _joined([_leaf(chunk, shape) for chunk in self.chunks])
        return None if valid is None else valid.reshape(-1, *shape)

    def fields(self) -> Iterator[tuple[str, Column]]:
        """A struct's fields by name, each null where the struct is."""
        parts = [chunk.flatten() for chunk in self.chunks]
        for i, field in enumerate(self.kind):
            path = f"{self.path}.{field.name}"
            yield field.name, Column.of(path, field.type, [fields[i] for fields in parts])

    def lists(self) -> Iterator[tuple[Column, npt.NDArray[np.int64]]]:
        """A list column's elements, chunk by chunk, and how many each row has, a null one none."""
        for chunk in self.chunks:
            # flatten() leaves out what lies under a null list.
            yield (
                Column.of(f"{self.path}[]", self.kind.value_type, [chunk.flatten()]),
                _lengths(chunk),
            )


def _leaf(array: pa.Array, shape: tuple[int, ...]) -> tuple[pa.Array, Mask | None]:
    """What lies inside fixed-size lists, and which of it is there; None if all."""
    known = _narrowed(None, array)
    for length in shape:
        # `values` is the whole child; its slots under a null list hold anything.
        array = array.values.slice(array.offset * length, len(array) * length)
        known = _narrowed(None if known is None else np.repeat(known, length), array)
    return array, known


def _joined(leaves: Sequence[tuple[pa.Array, Mask | None]]) -> Mask | None:
    """Which values of all chunks there are; None if all."""
    if all(known is None for _, known in leaves):
        return None
    return np.concatenate(
        [np.ones(len(leaf), np.bool_) if known is None else known for leaf, known in leaves]
    )


def _narrowed(known: Mask | None, array: pa.Array) -> Mask | None:
    if array.null_count == 0:
        return known
    valid = _unpacked(array, 0)
    return valid if known is None else known & valid


def _unpacked(array: pa.Array, buffer: int) -> Mask:
    """A buffer of bits, which Arrow packs: 0 is the validity, 1 the values of a bool array."""
    data = array.buffers()[buffer]
    if data is None or not len(array):
        return np.zeros(len(array), dtype=np.bool_)
    first, skipped = divmod(array.offset, 8)
    packed = np.frombuffer(data, np.uint8, (skipped + len(array) + 7) // 8, first)
    return np.unpackbits(packed, bitorder="little")[skipped : skipped + len(array)].view(np.bool_)


def _lengths(array: pa.Array) -> npt.NDArray[np.int64]:
    if patypes.is_fixed_size_list(array.type):
        lengths = np.full(len(array), array.type.list_size, dtype=np.int64)
    else:
        width = "i8" if patypes.is_large_list(array.type) else "i4"
        offsets = raw(array, width, extra=1).astype(np.int64)
        lengths = offsets[1:] - offsets[:-1]
    if array.null_count:
        lengths[~_unpacked(array, 0)] = 0
    return lengths
