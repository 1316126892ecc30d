"""What the binary formats share: from a file's own record batches to the declared schema.

`declared_batches` is the order of things: the schema first (so that a file without rows is checked
too), then each batch validated before anything computes on it, cut to size, converted. Arrow's
readers trust what they read: offsets, dictionary indices and UTF-8 are taken as they stand, and a
kernel that runs over broken ones reads outside its buffers. So validation stands here, before
conversion, and what is broken is a `PartDecodeError`.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as patypes

from lithi_datasets.conversion import convert_batch, convert_batches
from lithi_datasets.errors import LithiError, PartDecodeError
from lithi_datasets.formats.memory import check_room, typed_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from lithi_datasets.formats import ReadRequest

__all__ = ["BATCH_BYTES", "declared_batches", "decoding"]

BATCH_BYTES: Final = 128 * 2**20
"""About how much of a batch is converted at once, in bytes of decoded values; one row may be more.

Rows are cut to it, so that 8,192 texts of a megabyte neither fill the memory nor the 2 GiB that an
array of plain `string` can hold."""


@contextmanager
def decoding(path: str) -> Iterator[None]:
    """Around calls of pyarrow that decode the part's bytes: what they raise is `PartDecodeError`.

    Which exceptions a broken file brings out of pyarrow is not a closed list (its own ones,
    OSError, UnicodeDecodeError in names, OverflowError, …). `MemoryError` is not the file's fault.
    """
    try:
        yield
    except (LithiError, MemoryError):
        raise
    except Exception as error:
        problem = "the part does not decode"
        raise PartDecodeError(problem, path=path, found=_one_line(error)) from error


def declared_batches(
    schema: pa.Schema, batches: Iterator[pa.RecordBatch], request: ReadRequest
) -> Iterator[pa.RecordBatch]:
    """The batches of a file, validated and in the declared schema.

    Args:
        schema: the file's own schema.
        batches: its batches, of any number of rows; drawing one may raise what pyarrow raises.
        request: what is declared, and the most rows in one batch.

    Raises:
        PartDecodeError: a batch can't be drawn, or is not what Arrow's format allows.
        SchemaMismatch: the columns or their values are not what is declared.
    """
    with decoding(request.path):
        _read_names(schema)
        nothing = [pa.nulls(0, field.type) for field in schema]
        empty = pa.RecordBatch.from_arrays(nothing, schema=schema)
    convert_batch(empty, request.declared, path=request.path)
    first_row = 0
    while True:
        with decoding(request.path):
            batch = next(batches, None)
            if batch is None:
                return
            _validate(batch)
        for start in range(0, batch.num_rows, request.batch_rows):
            for piece in _cut(batch.slice(start, request.batch_rows), request):
                yield from convert_batches(
                    piece, request.declared, path=request.path, first_row=first_row
                )
                first_row += piece.num_rows


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"


def _read_names(schema: pa.Schema) -> None:
    """Read every name at every depth: one that is no UTF-8 raises here and nowhere later."""
    todo = list(schema)
    while todo:
        field = todo.pop()
        if not isinstance(field.name, str):
            raise TypeError("a field has no name")
        type_ = field.type
        if isinstance(type_, pa.BaseExtensionType):
            todo.append(field.with_type(type_.storage_type))
        elif patypes.is_dictionary(type_) or patypes.is_run_end_encoded(type_):
            todo.append(field.with_type(type_.value_type))
        elif patypes.is_nested(type_):
            todo.extend(type_.field(index) for index in range(type_.num_fields))


def _validate(batch: pa.RecordBatch) -> None:
    """Raise where a batch breaks Arrow's format; values that are merely out of range may pass.

    `validate(full=True)` also refuses times of day, dates and decimals out of range, even below a
    null, where they are not values. Those are left to `lithi_datasets.checks`, which knows.
    """
    try:
        batch.validate(full=True)
    except (pa.ArrowException, ValueError):
        # Only this makes it safe to take the columns apart.
        batch.validate()
        for column in batch.columns:
            _storage(column).validate(full=True)


def _storage(array: pa.Array) -> pa.Array:
    """The same array with leaves whose values have a range seen as the plain bits they are."""
    type_ = array.type
    if isinstance(type_, pa.BaseExtensionType):
        return _storage(array.storage)
    if patypes.is_struct(type_):
        # Without the validity of the struct, which is not what can be wrong after validate().
        children = [_storage(array.field(index)) for index in range(type_.num_fields)]
        return pa.StructArray.from_arrays(children, names=[str(i) for i in range(len(children))])
    if patypes.is_dictionary(type_):
        values = _storage(array.dictionary)
        return pa.DictionaryArray.from_arrays(array.indices, values, safe=True)
    if patypes.is_run_end_encoded(type_):
        # The run ends of an array that validate(full=True) refused may still be the broken part.
        return pa.RunEndEncodedArray.from_arrays(array.run_ends, _storage(array.values))
    if patypes.is_nested(type_):
        return _list_storage(array)
    plain = _plain_type(type_)
    if plain is None:
        return array
    return pa.Array.from_buffers(plain, len(array), array.buffers(), offset=array.offset)


def _list_storage(array: pa.Array) -> pa.Array:
    type_, child = array.type, _storage(array.values)
    if patypes.is_fixed_size_list(type_):
        rebuilt, own = pa.list_(child.type, type_.list_size), 1
    elif patypes.is_list(type_):
        rebuilt, own = pa.list_(child.type), 2
    elif patypes.is_large_list(type_):
        rebuilt, own = pa.large_list(child.type), 2
    elif patypes.is_list_view(type_):
        rebuilt, own = pa.list_view(child.type), 3
    elif patypes.is_large_list_view(type_):
        rebuilt, own = pa.large_list_view(child.type), 3
    else:
        return array
    buffers = array.buffers()[:own]
    return pa.Array.from_buffers(
        rebuilt, len(array), buffers, offset=array.offset, children=[child]
    )


def _plain_type(type: pa.DataType) -> pa.DataType | None:
    if patypes.is_time32(type):
        return pa.int32()
    if patypes.is_time64(type) or patypes.is_date64(type):
        return pa.int64()
    if patypes.is_decimal(type):
        return pa.binary(type.byte_width)
    return None


def _cut(batch: pa.RecordBatch, request: ReadRequest) -> Iterator[pa.RecordBatch]:
    """The batch in pieces of about `BATCH_BYTES`, or the batch itself, which is the usual case.

    Raises:
        PartDecodeError: one row alone is more than this machine holds.
    """
    declared = request.declared
    typed = typed_bytes([batch.column(name) for name in declared.names], declared.types)
    if batch.num_rows < 2:
        check_room(typed, request.path)
    elif max(typed, sum(map(_decoded_bytes, batch.columns))) > BATCH_BYTES:
        half = batch.num_rows // 2
        yield from _cut(batch.slice(0, half), request)
        yield from _cut(batch.slice(half), request)
        return
    yield batch


def _decoded_bytes(array: pa.Array) -> int:
    """About how many bytes the values take once dictionaries, runs and views are resolved."""
    type_ = array.type
    if isinstance(type_, pa.BaseExtensionType):
        return _decoded_bytes(array.storage)
    if patypes.is_dictionary(type_):
        indices = array.indices.drop_null().to_numpy(zero_copy_only=False)
        return int(_value_bytes(array.dictionary)[indices].sum())
    if patypes.is_run_end_encoded(type_):
        first, runs = array.find_physical_offset(), array.find_physical_length()
        ends = array.run_ends.slice(first, runs).to_numpy() - array.offset
        lengths = np.diff(np.minimum(ends, len(array)), prepend=0)
        return int((lengths * _value_bytes(array.values.slice(first, runs))).sum())
    if patypes.is_string_view(type_) or patypes.is_binary_view(type_):
        return int(_value_bytes(array).sum())
    return _nested_bytes(array) if patypes.is_nested(type_) else int(array.nbytes)


def _nested_bytes(array: pa.Array) -> int:
    type_ = array.type
    if patypes.is_struct(type_):
        return sum(_decoded_bytes(array.field(index)) for index in range(type_.num_fields))
    if _is_offset_list(type_):
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return int(array.offsets.nbytes) + _decoded_bytes(array.values.slice(first, last - first))
    if patypes.is_fixed_size_list(type_):
        size = type_.list_size
        return _decoded_bytes(array.values.slice(array.offset * size, len(array) * size))
    if patypes.is_list_view(type_) or patypes.is_large_list_view(type_):
        # Views may overlap, so the elements are counted as often as they are seen.
        mean = _decoded_bytes(array.values) / max(1, len(array.values))
        return int((pc.sum(array.sizes).as_py() or 0) * mean)
    return int(array.nbytes)


def _value_bytes(array: pa.Array) -> npt.NDArray[np.int64]:
    """Bytes of each value; for nested ones the bytes of all, which is never too few."""
    type_ = array.type
    if patypes.is_string_view(type_) or patypes.is_binary_view(type_):
        # A view is 16 bytes of which the first four are the length.
        first, count = 16 * array.offset, 4 * len(array)
        views = np.frombuffer(array.buffers()[1] or b"", dtype="<i4", count=count, offset=first)
        lengths = views[::4].astype(np.int64)
        valid: npt.NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
        return np.where(valid, lengths, 0)
    if any(is_(type_) for is_ in _BINARY):
        sizes: npt.NDArray[np.int64] = pc.binary_length(array).fill_null(0).to_numpy()
        return sizes.astype(np.int64)
    fixed = patypes.is_primitive(type_) or patypes.is_decimal(type_)
    width = (type_.bit_width + 7) // 8 if fixed else _decoded_bytes(array)
    return np.full(len(array), width, dtype=np.int64)


_BINARY: Final = (
    patypes.is_string,
    patypes.is_binary,
    patypes.is_large_string,
    patypes.is_large_binary,
)


def _is_offset_list(type: pa.DataType) -> bool:
    return bool(patypes.is_list(type) or patypes.is_large_list(type))
