"""From the physical types of a part to the declared ones, where every value converts exactly.

These are the rules (spec, section 6); a pair of types that is not listed is `SchemaMismatch`:

- columns and struct fields are matched by name; a missing, an extra and a repeated one is refused;
- an encoding is taken off at any depth: dictionary (nulls in its indices or among its entries),
  run-end, string and binary view, list view;
- plain and `large_` strings, binaries and lists stand for each other. What would pass the 2 GiB of
  a plain one is refused, naming the `large_` type;
- a list of any layout may be a fixed-size list where every list has the length. A fixed-size list
  is not a list of another length, nor a variable one;
- an integer type may be one that holds every value of it, a float type a wider one, a decimal one
  of the same scale and at least the precision, whatever the widths of their storage;
- dates, times, timestamps and durations change their unit where every value stays exact and in
  range; the zone of a zoned timestamp may be another (the instant is kept), never added or dropped.

Two decisions on what the text leaves open. An extension type counts as what it stores: its name is
field metadata, which is ignored, and whether Arrow even sees it depends on what was imported.
The type `null` is refused: all its values are null, but what they would be is a guess.

Values that an enclosing null hides, and dictionary entries that no row refers to, are neither
checked nor read. Nulls in required fields and the ranges of values are the subject of
`lithi_datasets.checks`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lithi_datasets.casts import (
    CastDecimal,
    FromView,
    Keep,
    Relabel,
    Reoffset,
    Rescale,
    Step,
    ValueRefused,
    Where,
    Widen,
)
from lithi_datasets.errors import PartDecodeError, SchemaMismatch
from lithi_datasets.gather import TooLarge, dtype_of
from lithi_datasets.nested import Dictionary, FixedLists, Lists, RunEnds, Storage, Structs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["convert_batch", "convert_batches"]

_NAMED = 10
_KEEP = Keep()
# Arrow's own names where the manifest has others.
_MANIFEST_NAMES = {
    str(pa.float16()): "float16",
    str(pa.float32()): "float32",
    str(pa.float64()): "float64",
    str(pa.date32()): "date32",
    str(pa.date64()): "date64",
}
_LARGE = {pa.string(): "large_string", pa.binary(): "large_binary"}
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY_MS = 86_400_000


def convert_batch(
    batch: pa.RecordBatch, declared: pa.Schema, *, path: str, first_row: int | None = None
) -> pa.RecordBatch:
    """The batch in the declared schema, every value the same (rules: the module's docstring).

    No copy of a column whose type is the declared one already. Nullability is not looked at.

    Args:
        batch: valid in Arrow's sense; its metadata is ignored.
        declared: Arrow types as `schema.declared_schema` makes them.
        path: of the part, for messages.
        first_row: number of the batch's first row in the part, from 0; without it messages count
            from the start of the batch.

    Raises:
        SchemaMismatch: naming the part, the field, the declared and the found type, and for a
            value the first row that holds one.
        PartDecodeError: the batch is not valid after all.

    """
    try:
        return _convert(batch, declared, path, first_row)
    except TooLarge as large:
        raise _too_large(large, path) from None


def convert_batches(
    batch: pa.RecordBatch, declared: pa.Schema, *, path: str, first_row: int | None = None
) -> Iterator[pa.RecordBatch]:
    """As `convert_batch`, in pieces where plain strings, binaries or lists would pass 2 GiB.

    Only a single row that is too large by itself is refused, then.
    """
    pending = [(batch, first_row)]
    while pending:
        piece, first = pending.pop()
        try:
            converted = _convert(piece, declared, path, first)
        except TooLarge as large:
            if piece.num_rows <= 1:
                raise _too_large(large, path) from None
            half = piece.num_rows // 2
            pending.append((piece.slice(half), None if first is None else first + half))
            pending.append((piece.slice(0, half), first))
            continue
        yield converted


def _convert(
    batch: pa.RecordBatch, declared: pa.Schema, path: str, first_row: int | None
) -> pa.RecordBatch:
    try:
        steps = _plan(_Schemas(batch.schema, declared))
        columns = [step.apply(batch.column(index), None) for index, step in steps]
        return pa.RecordBatch.from_arrays(columns, schema=declared)
    except _TypeRefused as refused:
        raise SchemaMismatch(
            refused.problem, path=path, expected=refused.expected, found=refused.found
        ) from None
    except ValueRefused as refused:
        raise _value_mismatch(refused, path, first_row) from None
    except MemoryError:
        raise
    except (pa.ArrowException, IndexError, ValueError) as error:
        raise PartDecodeError(
            f"the part holds a batch that is not valid Arrow data: {error}", path=path
        ) from error


def _value_mismatch(refused: ValueRefused, path: str, first_row: int | None) -> SchemaMismatch:
    row, what = refused.first()
    place = f"row {row} of a batch" if first_row is None else f"row {first_row + row}"
    return SchemaMismatch(
        f"field {refused.where.field!r}, {place} (from 0): {what}",
        path=path,
        expected=_name(refused.where.declared),
        found=_name(refused.where.found),
    )


def _too_large(large: TooLarge, path: str) -> SchemaMismatch:
    instead = _LARGE.get(large.target, "large_list")
    unit = "elements" if instead == "large_list" else "bytes"
    return SchemaMismatch(
        f"field {large.field!r}: {large.total} {unit} are more than a plain "
        f"{instead.removeprefix('large_')} can hold",
        path=path,
        expected=f"{instead} for so much data",
        found=_name(large.target),
        remedy=f"The writer of the bundle has to declare {instead}.",
    )


class _TypeRefused(Exception):
    """Two types, or two sets of fields, between which there is no exact conversion."""

    def __init__(self, problem: str, expected: str, found: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.expected = expected
        self.found = found


@dataclass(frozen=True, eq=False)
class _Schemas:
    """A pair of schemas as a key; a part's batches share one, so its plan is made once.

    Arrow's own equality and hash pass over the names of list elements and over field metadata,
    which decide whether a column can be kept as it is.
    """

    physical: pa.Schema
    declared: pa.Schema

    def __hash__(self) -> int:
        return hash((tuple(self.physical.names), tuple(self.declared.names)))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Schemas)
            and self.physical.equals(other.physical, check_metadata=True)
            and self.declared.equals(other.declared, check_metadata=True)
        )


@lru_cache(maxsize=32)
def _plan(schemas: _Schemas) -> tuple[tuple[int, Step], ...]:
    return _by_name(list(schemas.declared), list(schemas.physical), "")


def _by_name(
    declared: Sequence[pa.Field], physical: Sequence[pa.Field], parent: str
) -> tuple[tuple[int, Step], ...]:
    """For each declared field the index of the physical one, and its step."""
    indexes = {field.name: index for index, field in enumerate(physical)}
    names = {field.name for field in declared}
    repeated = [name for name, count in Counter(f.name for f in physical).items() if count > 1]
    complaints = [
        f"{label}: {_listed(wrong)}"
        for label, wrong in (
            ("missing", [field.name for field in declared if field.name not in indexes]),
            ("not declared", [name for name in indexes if name not in names]),
            ("there more than once", repeated),
        )
        if wrong
    ]
    if complaints:
        what = f"the fields of struct {parent!r}" if parent else "the columns"
        raise _TypeRefused(
            f"{what} are not the declared ones; {'; '.join(complaints)}",
            _listed([field.name for field in declared]),
            _listed([field.name for field in physical]) or "no field",
        )
    prefix = f"{parent}." if parent else ""
    return tuple(
        (index, _step(physical[index].type, field.type, prefix + field.name))
        for field in declared
        for index in (indexes[field.name],)
    )


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = [f"and {len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return ", ".join([*(repr(name) for name in names[:_NAMED]), *more])


def _step(
    source: pa.DataType, target: pa.DataType, field: str, found: pa.DataType | None = None
) -> Step:
    """The step between two types; it holds the rules for encodings and nested types.

    `found` is the type that messages name, where `source` was under an encoding.
    """
    if source.equals(target, check_metadata=True):
        return _KEEP
    where = Where(field, target, source if found is None else found)
    if isinstance(source, pa.BaseExtensionType):
        return Storage(_step(source.storage_type, target, field, where.found))
    if pa.types.is_dictionary(source):
        return Dictionary(_step(source.value_type, target, field, where.found), where)
    if pa.types.is_run_end_encoded(source):
        return RunEnds(_step(source.value_type, target, field, where.found), where)
    step: Step | None
    if pa.types.is_struct(target) and pa.types.is_struct(source):
        step = Structs(target, _by_name(list(target), list(source), field))
    elif _is_any_list(target) and _is_any_list(source):
        step = _list_step(source, target, where)
    else:
        step = (
            _binary_step(source, target, where)
            or _number_step(source, target, where)
            or _moment_step(source, target, where)
        )
    if step is None:
        raise _TypeRefused(
            f"field {field!r} has a type that does not convert exactly to the declared one"
            f"{_reason(source, target)}",
            _name(target),
            _name(where.found),
        )
    return step


def _is_any_list(kind: pa.DataType) -> bool:
    # pyarrow before 16 has no list views.
    return any(
        getattr(pa.types, f"is_{name}", lambda _: False)(kind)
        for name in ("list", "large_list", "fixed_size_list", "list_view", "large_list_view")
    )


def _list_step(source: pa.DataType, target: pa.DataType, where: Where) -> Step | None:
    fixed = pa.types.is_fixed_size_list(source)
    if fixed and not (pa.types.is_fixed_size_list(target) and source.list_size == target.list_size):
        return None
    child = _step(source.value_type, target.value_type, f"{where.field}[]")
    return (FixedLists if pa.types.is_fixed_size_list(target) else Lists)(target, child, where)


def _binary_family(kind: pa.DataType) -> tuple[str, str] | None:
    """What the bytes are, and how they lie."""
    families = {
        "string": ("text", "offsets"),
        "large_string": ("text", "offsets"),
        "string_view": ("text", "views"),
        "binary": ("bytes", "offsets"),
        "large_binary": ("bytes", "offsets"),
        "binary_view": ("bytes", "views"),
    }
    return families.get(str(kind))


def _binary_step(source: pa.DataType, target: pa.DataType, where: Where) -> Step | None:
    found, declared = _binary_family(source), _binary_family(target)
    if found is None or declared is None or found[0] != declared[0]:
        return None
    return FromView(target, where) if found[1] == "views" else Reoffset(target, where)


def _number_step(source: pa.DataType, target: pa.DataType, where: Where) -> Step | None:
    if pa.types.is_decimal(source) and pa.types.is_decimal(target):
        wide_enough = source.scale == target.scale and source.precision <= target.precision
        return CastDecimal(target, where) if wide_enough else None
    integers = pa.types.is_integer(source) and pa.types.is_integer(target)
    if not integers and not (pa.types.is_floating(source) and pa.types.is_floating(target)):
        return None
    found, declared = dtype_of(source), dtype_of(target)
    # numpy calls uint64 to float64 safe, so the kinds have to be equal above.
    return Widen(target, found, declared) if np.can_cast(found, declared, "safe") else None


def _clock(kind: pa.DataType) -> tuple[str, int, npt.DTypeLike] | None:
    """What is counted, how often in a second (dates: in a day), and in which integer."""
    if pa.types.is_date(kind):
        return ("date", 1, np.int32) if kind == pa.date32() else ("date", _DAY_MS, np.int64)
    if pa.types.is_time(kind):
        width = np.int32 if pa.types.is_time32(kind) else np.int64
        return "time", _PER_SECOND[kind.unit], width
    if pa.types.is_duration(kind):
        return "duration", _PER_SECOND[kind.unit], np.int64
    if pa.types.is_timestamp(kind):
        name = "timestamp" if kind.tz is None else "zoned timestamp"
        return name, _PER_SECOND[kind.unit], np.int64
    return None


def _moment_step(source: pa.DataType, target: pa.DataType, where: Where) -> Step | None:
    found, declared = _clock(source), _clock(target)
    if found is None or declared is None or found[0] != declared[0]:
        return None
    if found[1] == declared[1]:
        return Relabel(target)
    return Rescale(
        target,
        where,
        found[2],
        declared[2],
        times=max(declared[1] // found[1], 1),
        divisor=max(found[1] // declared[1], 1),
    )


def _reason(source: pa.DataType, target: pa.DataType) -> str:
    if pa.types.is_null(source):
        return ": its writer wrote it without a type, which is not guessed"
    if pa.types.is_timestamp(source) and pa.types.is_timestamp(target):
        return f": a zone would be {'added' if source.tz is None else 'dropped'}"
    if pa.types.is_fixed_size_list(source) and pa.types.is_fixed_size_list(target):
        return ": the lists have another length"
    return ""


def _name(kind: pa.DataType) -> str:
    return _MANIFEST_NAMES.get(str(kind), str(kind))
