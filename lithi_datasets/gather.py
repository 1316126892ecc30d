"""Arrow buffers as numpy arrays, and taking rows out of arrays of declared types.

pyarrow's own `take` lets 32-bit offsets wrap on older versions and has no kernel for some nested
types, so `gather` measures before it takes. It knows the types of spec, section 3, and no others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "MAX_OFFSET",
    "Indexes",
    "Mask",
    "TooLarge",
    "build",
    "dtype_of",
    "expand",
    "fits_offsets",
    "gather",
    "nulls",
    "offset_type",
    "raw",
    "row_bytes",
    "spans",
    "validity",
]

Mask = npt.NDArray[np.bool_]
Indexes = npt.NDArray[np.int64]

MAX_OFFSET = 2**31 - 1
"""What a plain `string`, `binary` (bytes) or `list` (elements) array can hold in all."""


class TooLarge(Exception):
    """An array of a plain type would hold more than its 32-bit offsets can count.

    Args:
        field: dotted path of the field.
        target: the plain type.
        total: bytes, or elements of a list.
    """

    def __init__(self, field: str, target: pa.DataType, total: int) -> None:
        super().__init__(field)
        self.field = field
        self.target = target
        self.total = total


def dtype_of(kind: pa.DataType) -> np.dtype[np.generic]:
    """The numpy type of an Arrow integer or float type."""
    # Not to_pandas_dtype(): on older versions of pyarrow it imports pandas.
    return np.dtype({"halffloat": "f2", "float": "f4", "double": "f8"}.get(str(kind), str(kind)))


def raw(array: pa.Array, dtype: npt.DTypeLike, extra: int = 0) -> npt.NDArray[np.generic]:
    """The array's fixed-width values as they lie in memory, null slots included, no copy.

    Args:
        array: of any type whose second buffer holds them.
        dtype: the numpy type of one value.
        extra: how many values follow the array's last slot (1 for offsets).
    """
    data = array.buffers()[1]
    item = np.dtype(dtype)
    count = len(array) + extra
    if data is None or data.size == 0 or count == 0:
        # Arrow leaves out the buffers of an empty array.
        return np.zeros(count, dtype=item)
    return np.frombuffer(data, dtype=item, count=count, offset=array.offset * item.itemsize)


def row_bytes(kind: pa.DataType) -> int:
    """Bytes that one value of a declared type takes by its type alone, null or not."""
    if pa.types.is_fixed_size_list(kind):
        # Where there are nulls, a slot needs an index as well while the list is made.
        return int(kind.list_size) * (8 + row_bytes(kind.value_type))
    if pa.types.is_struct(kind):
        return 1 + sum(row_bytes(field.type) for field in kind)
    if pa.types.is_primitive(kind) or pa.types.is_decimal(kind):
        return max(1, int(kind.bit_width) // 8)
    return 8


def nulls(array: pa.Array) -> Mask | None:
    """True for each null slot of an array with a validity bitmap; None if there is none."""
    if array.null_count == 0:
        return None
    mask: Mask = pc.is_null(array).to_numpy(zero_copy_only=False)
    return mask


def validity(array: pa.Array) -> pa.Buffer | None:
    """The validity bitmap as an array of offset 0 needs it; None without nulls."""
    if array.null_count == 0:
        return None
    if array.offset == 0:
        return array.buffers()[0]
    return pc.is_valid(array).buffers()[1]


def _bitmap(dead: Mask) -> pa.Buffer | None:
    return pa.array(~dead).buffers()[1] if dead.any() else None


def build(
    target: pa.DataType,
    length: int,
    valid: pa.Buffer | None,
    *data: npt.NDArray[np.generic] | pa.Buffer | None,
    children: Sequence[pa.Array] = (),
) -> pa.Array:
    """An array of exactly `target`, of offset 0, over the given buffers."""
    buffers = [
        pa.py_buffer(np.ascontiguousarray(each)) if isinstance(each, np.ndarray) else each
        for each in data
    ]
    return pa.Array.from_buffers(target, length, [valid, *buffers], children=list(children))


def _has_large_offsets(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_large_list(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_large_binary(kind)
    )


def _is_list_view(kind: pa.DataType) -> bool:
    # pyarrow before 16 has no such types.
    return any(
        getattr(pa.types, name, lambda _: False)(kind)
        for name in ("is_list_view", "is_large_list_view")
    )


def spans(array: pa.Array) -> tuple[Indexes, Indexes]:
    """Where each slot of a list, string or binary array lies in its values: starts and sizes."""
    if pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        starts = (np.arange(len(array), dtype=np.int64) + array.offset) * size
        return starts, np.full(len(array), size, dtype=np.int64)
    if _is_list_view(array.type):
        return (
            array.offsets.to_numpy().astype(np.int64),
            array.sizes.to_numpy().astype(np.int64),
        )
    width = np.int64 if _has_large_offsets(array.type) else np.int32
    offsets = raw(array, width, extra=1).astype(np.int64)
    return offsets[:-1], np.diff(offsets)


def fits_offsets(total: int, target: pa.DataType) -> bool:
    """Whether one array of the type can hold this many bytes or elements."""
    return _has_large_offsets(target) or total <= MAX_OFFSET


def offset_type(sizes: Indexes, target: pa.DataType, field: str) -> npt.NDArray[np.generic]:
    """The offsets of packed slots of these sizes, in the width of the target.

    Raises:
        TooLarge: they do not fit.
    """
    offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    total = int(offsets[-1])
    if not fits_offsets(total, target):
        raise TooLarge(field, target, total)
    return offsets if _has_large_offsets(target) else offsets.astype(np.int32)


def expand(starts: Indexes, sizes: Indexes) -> Indexes:
    """The index of every element of the spans, span after span."""
    shift = starts - (np.cumsum(sizes) - sizes)
    return np.repeat(shift, sizes) + np.arange(int(sizes.sum()))


def gather(array: pa.Array, indexes: Indexes, field: str) -> pa.Array:
    """The rows at `indexes`, -1 giving a null.

    Raises:
        TooLarge: a plain string, binary or list would overflow.
    """
    kind = array.type
    if pa.types.is_struct(kind):
        children = [
            gather(array.field(index), indexes, f"{field}.{kind.field(index).name}")
            for index in range(kind.num_fields)
        ]
        return build(kind, len(indexes), _bitmap(_dead(array, indexes)), children=children)
    if pa.types.is_fixed_size_list(kind):
        return _gather_fixed(array, indexes, field)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _gather_lists(array, indexes, field)
    dead = _dead(array, indexes)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        sizes = _sizes(spans(array)[1], indexes, dead)
        offset_type(sizes, kind, field)
    return array.take(pa.array(indexes, mask=dead))


def _dead(array: pa.Array, indexes: Indexes) -> Mask:
    """Which of the taken rows are null."""
    dead: Mask = indexes < 0
    missing = nulls(array)
    return dead if missing is None else dead | missing[indexes]


def _sizes(sizes: Indexes, indexes: Indexes, dead: Mask) -> Indexes:
    taken = np.zeros(len(indexes), dtype=np.int64)
    taken[~dead] = sizes[indexes[~dead]]
    return taken


def _gather_lists(array: pa.Array, indexes: Indexes, field: str) -> pa.Array:
    dead = _dead(array, indexes)
    starts, lengths = spans(array)
    sizes = _sizes(lengths, indexes, dead)
    offsets = offset_type(sizes, array.type, field)
    elements = expand(_sizes(starts, indexes, dead), sizes)
    child = gather(array.values, elements, f"{field}[]")
    return build(array.type, len(indexes), _bitmap(dead), offsets, children=[child])


def _gather_fixed(array: pa.Array, indexes: Indexes, field: str) -> pa.Array:
    dead = _dead(array, indexes)
    size = array.type.list_size
    values = array.values.slice(array.offset * size, len(array) * size)
    width = _byte_width(values.type)
    if width and values.null_count == 0 and width * size <= MAX_OFFSET:
        # Vectors, as embeddings are: whole rows move; an index for each number would weigh more.
        rows = raw(values, f"V{width}").view(f"V{width * size}")
        taken = np.zeros(len(indexes), dtype=rows.dtype)
        if len(rows):
            np.take(rows, np.where(dead, 0, indexes), out=taken, mode="clip")
            taken[dead] = np.void(width * size)
        child = build(values.type, len(indexes) * size, None, taken.view(np.uint8))
    else:
        elements = indexes[:, None] * size + np.arange(size)
        elements[dead] = -1
        child = gather(values, elements.reshape(-1), f"{field}[]")
    return build(array.type, len(indexes), _bitmap(dead), children=[child])


def _byte_width(kind: pa.DataType) -> int:
    """Bytes of one value of a type whose array is two buffers, 0 for bits and other layouts."""
    if pa.types.is_primitive(kind) or pa.types.is_decimal(kind):
        return int(kind.bit_width) // 8
    return 0
