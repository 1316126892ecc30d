"""What a few bytes of a part may ask for: a null in a fixed-size list takes as much as the list.

A batch is cut so that its rows, by their declared types alone, take about as much as any other
batch. What is left is a single row, and that either fits into the machine or is an error of ours:
`MemoryError` where the system says so in time, and `check_room` where it would sooner end the
process.
"""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as patypes

from lithi_datasets.errors import PartDecodeError
from lithi_datasets.gather import row_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["beyond_memory", "check_room", "element_bytes", "holds_fixed_lists", "typed_bytes"]


def beyond_memory(path: str, needed: int | None = None) -> PartDecodeError:
    """The error for a record that is too much for this machine; `needed` is in bytes."""
    return PartDecodeError(
        "A part has a record that does not fit into this machine's memory once decoded.",
        path=path,
        expected=None if needed is None else f"at most {_room_bytes()} bytes",
        found=None if needed is None else f"about {needed} bytes",
        remedy="Read it where there is more memory, or ask its writer for shorter records.",
    )


def check_room(needed: int, path: str) -> None:
    """Refuse a record that takes more than half of this machine's memory, before trying.

    Raises:
        PartDecodeError: it does.
    """
    room = _room_bytes()
    if room is not None and needed > room:
        raise beyond_memory(path, needed)


@cache
def _room_bytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, OSError, ValueError):  # pragma: no cover - not on this system
        return None


def holds_fixed_lists(kind: pa.DataType) -> bool:
    """Whether a fixed-size list stands at any depth of the type."""
    if patypes.is_fixed_size_list(kind):
        return True
    fields = range(kind.num_fields) if patypes.is_nested(kind) else ()
    return any(holds_fixed_lists(kind.field(index).type) for index in fields)


def element_bytes(kind: pa.DataType) -> int:
    """Bytes of the widest element of a list of any length in the type, 0 without such a list."""
    if patypes.is_list(kind) or patypes.is_large_list(kind):
        return max(row_bytes(kind.value_type), element_bytes(kind.value_type))
    if patypes.is_fixed_size_list(kind):
        return element_bytes(kind.value_type)
    if patypes.is_struct(kind):
        return max(element_bytes(field.type) for field in kind)
    return 0


def typed_bytes(columns: Iterable[pa.Array], declared: Iterable[pa.DataType]) -> int:
    """Bytes that columns take once they are of the declared types, by these types alone.

    Only types that hold a fixed-size list count: what others take, their values tell.
    """
    pairs = zip(columns, declared, strict=True)
    return sum(_typed_bytes(array, kind) for array, kind in pairs if holds_fixed_lists(kind))


def _typed_bytes(array: pa.Array, declared: pa.DataType) -> int:
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _typed_bytes(array.storage, declared)
    if patypes.is_dictionary(kind) or patypes.is_run_end_encoded(kind):
        return len(array) * row_bytes(declared)
    if patypes.is_struct(kind):
        fields = [(array.field(field.name), field.type) for field in declared]
        return sum(_typed_bytes(values, of) for values, of in fields)
    if not patypes.is_nested(kind):
        return len(array) * row_bytes(declared)
    inner = 0
    if holds_fixed_lists(declared.value_type):
        inner = _typed_bytes(array.flatten(), declared.value_type)
    return max(inner, len(array) * row_bytes(declared))
