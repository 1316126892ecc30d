"""What the values of a part must be, once they are in the declared types (spec, sections 3 and 6).

The rules, each at any depth where such a field can stand:

- a null in a field that is not nullable is `NullInRequiredField`. List elements may be null. What
  an enclosing null hides is not a value: neither it nor its nulls count;
- with `class_names` a value is in [0, their number);
- a time is within its day, a `date64` a whole day, a decimal within its precision: Arrow's storage
  can hold more than these types mean. Timestamps, durations and `date32` mean every integer that
  they can hold;
- `lithi_status` is one of the three statuses, `lithi_confidence` in [0, 1] and not NaN, an item id
  neither empty nor with CR or LF.

All but the first are `SchemaMismatch`. What comes out has the types of `schema.output_schema`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as patypes

from lithi_datasets.errors import NullInRequiredField, SchemaMismatch
from lithi_datasets.manifest import STATUSES
from lithi_datasets.schema import declared_schema, output_schema
from lithi_datasets.types import Field, StructOf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy.typing as npt

    from lithi_datasets.types import Type

    Mask = npt.NDArray[np.bool_]

__all__ = ["RowChecker"]

_STATUS: Final = "lithi_status"
_CONFIDENCE: Final = "lithi_confidence"
_SHOWN: Final = 100


class RowChecker:
    """Checks the batches of one part, in their order, and counts.

    Args:
        fields: the declared fields, in column order.
        item_id_field: name of the id column.
        path: the part's path in the manifest, for messages.

    Attributes:
        rows: how many rows were checked so far.
        statuses: how many of them are `accepted`, `failed`, `abstained`. In a table without a
            `lithi_status` column each row counts as accepted (spec, section 4).
    """

    def __init__(self, fields: Iterable[Field], item_id_field: str, path: str) -> None:
        fields = tuple(fields)
        self.rows = 0
        self.statuses = dict.fromkeys(STATUSES, 0)
        self._path = path
        self._item_id_field = item_id_field
        self._output = output_schema(fields)
        self._names = [field.name for field in fields]
        types = zip(fields, declared_schema(fields).types, self._output.types, strict=True)
        self._rules = [_field_rule(field, field.name, *pair) for field, *pair in types]

    def check(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch in the output schema.

        Args:
            batch: in the declared schema, as a format reader yields it.

        Raises:
            NullInRequiredField: a required field is null.
            SchemaMismatch: a value is outside its set or range.
        """
        try:
            columns = [
                column if rule.idle else rule.apply(column, _ALL)
                for column, rule in zip(batch.columns, self._rules, strict=True)
            ]
            statuses = self._check_meaning(dict(zip(self._names, columns, strict=True)))
        except _Refused as refused:
            raise self._error(refused) from None
        for status in STATUSES:
            self.statuses[status] += statuses.get(status, 0)
        self.rows += batch.num_rows
        return pa.RecordBatch.from_arrays(columns, schema=self._output)

    def _check_meaning(self, columns: dict[str, pa.Array]) -> dict[str, int]:
        """Check the columns that the format gives a meaning; returns the rows of each status."""
        ids = columns[self._item_id_field]
        _check_ids(ids, self._item_id_field)
        if _CONFIDENCE in columns:
            _check_confidences(columns[_CONFIDENCE])
        if _STATUS not in columns:
            return {STATUSES[0]: len(ids)}
        return _count_statuses(columns[_STATUS])

    def _error(self, refused: _Refused) -> NullInRequiredField | SchemaMismatch:
        error = NullInRequiredField if refused.is_null else SchemaMismatch
        return error(
            f"field {refused.where!r}, row {self.rows + refused.row} (from 0): {refused.problem}",
            path=self._path,
            expected=refused.expected,
            found=refused.found,
        )


class _Refused(Exception):
    """A value breaks a rule; `row` counts from the start of the batch."""

    def __init__(
        self,
        where: str,
        row: int,
        problem: str,
        *,
        expected: str,
        found: str,
        is_null: bool = False,
    ) -> None:
        super().__init__(problem)
        self.where = where
        self.row = row
        self.problem = problem
        self.expected = expected
        self.found = found
        self.is_null = is_null


@dataclass(frozen=True)
class _Slots:
    """What the slots of an array are, seen from the rows of the batch.

    Attributes:
        live: bool[slots], False where an enclosing null hides the slot; None where none does.
        row_of: the row that a slot belongs to.
    """

    live: Mask | None
    row_of: Callable[[int], int]

    def first(self, bad: Mask) -> int | None:
        """The first of the slots that are bad and not hidden."""
        found = np.flatnonzero(bad if self.live is None else bad & self.live)
        return int(found[0]) if len(found) else None

    def inside(self, array: pa.Array) -> Mask | None:
        """Which slots of `array` hold something, where not all do."""
        if not array.null_count:
            return self.live
        valid = _valid(array)
        return valid if self.live is None else valid & self.live


_ALL: Final = _Slots(None, int)


@dataclass(frozen=True)
class _Rule:
    """What one field has to be, and how it is made from the declared to the output type.

    Attributes:
        where: dotted path from the column, `[]` for the elements of a list.
        nullable: whether nulls are allowed.
        declared: its type in the declared schema.
        output: its type in the output schema.
        classes: how many classes the field has; None where it is no class label.
        children: the rules of a struct's fields, in their order, or of a list's elements.
    """

    where: str
    nullable: bool
    declared: pa.DataType
    output: pa.DataType
    classes: int | None = None
    children: tuple[_Rule, ...] = ()

    @cached_property
    def idle(self) -> bool:
        """Whether there is nothing to check and nothing to make."""
        return (
            self.nullable
            and self.classes is None
            and not _has_range(self.declared)
            and all(child.idle for child in self.children)
        )

    def apply(self, array: pa.Array, slots: _Slots) -> pa.Array:
        """The array in the output type, checked in all slots that are not hidden."""
        if not self.nullable and array.null_count:
            self._refuse_nulls(array, slots)
        if self.classes is not None:
            self._refuse_classes(array, slots, self.classes)
            # What an enclosing null hides may be out of range, so the cast is not a checked one.
            return array.cast(pa.int64(), safe=False)
        if _has_range(self.declared):
            self._refuse_out_of_range(array, slots)
        if not self.children or all(child.idle for child in self.children):
            return array
        if patypes.is_struct(self.declared):
            return self._struct(array, slots)
        if patypes.is_fixed_size_list(self.declared):
            return self._fixed_size_list(array, slots)
        return self._list(array, slots)

    def _struct(self, array: pa.Array, slots: _Slots) -> pa.Array:
        inner = _Slots(slots.inside(array), slots.row_of)
        children = [rule.apply(array.field(i), inner) for i, rule in enumerate(self.children)]
        return pa.StructArray.from_arrays(children, fields=list(self.output), mask=_nulls(array))

    def _fixed_size_list(self, array: pa.Array, slots: _Slots) -> pa.Array:
        size = self.declared.list_size
        live = slots.inside(array)
        inner = _Slots(
            None if live is None else np.repeat(live, size),
            lambda slot: slots.row_of(slot // size),
        )
        elements = array.values.slice(array.offset * size, len(array) * size)
        elements = self.children[0].apply(elements, inner)
        return pa.FixedSizeListArray.from_arrays(elements, type=self.output, mask=_nulls(array))

    def _list(self, array: pa.Array, slots: _Slots) -> pa.Array:
        starts = array.offsets.to_numpy()
        first = starts[0] if len(starts) else 0
        ends = starts - first
        live = slots.inside(array)
        if live is not None:
            live = np.repeat(live, np.diff(ends))
        inner = _Slots(
            None if live is None or bool(live.all()) else live,
            lambda slot: slots.row_of(int(np.searchsorted(ends, slot, side="right")) - 1),
        )
        elements = array.values.slice(int(first), int(ends[-1]) if len(ends) else 0)
        elements = self.children[0].apply(elements, inner)
        kind = pa.LargeListArray if patypes.is_large_list(self.output) else pa.ListArray
        return kind.from_arrays(pa.array(ends), elements, type=self.output, mask=_nulls(array))

    def _refuse_nulls(self, array: pa.Array, slots: _Slots) -> None:
        slot = slots.first(~_valid(array))
        if slot is not None:
            raise _Refused(
                self.where,
                slots.row_of(slot),
                "null in a field that is not nullable",
                expected="a value",
                found="null",
                is_null=True,
            )

    def _refuse_classes(self, array: pa.Array, slots: _Slots, classes: int) -> None:
        bounds = pc.min_max(array)
        least, most = bounds["min"].as_py(), bounds["max"].as_py()
        if least is None or (least >= 0 and most < classes):
            return
        values = array.fill_null(0).to_numpy()
        slot = slots.first((values < 0) | (values >= classes))
        if slot is not None:
            raise _Refused(
                self.where,
                slots.row_of(slot),
                "the value is none of the classes",
                expected=f"an integer in [0, {classes})",
                found=str(values[slot]),
            )

    def _refuse_out_of_range(self, array: pa.Array, slots: _Slots) -> None:
        if _is_valid(array):
            return
        live = slots.live
        seen = np.arange(len(array)) if live is None else np.flatnonzero(live)
        values = array if live is None else array.take(pa.array(seen))
        if _is_valid(values):
            return
        slot = int(seen[_first_invalid(values)])
        raise _Refused(
            self.where,
            slots.row_of(slot),
            "the value is outside the range of its type",
            expected=_range_of(self.declared),
            found=_raw(array, slot),
        )


def _field_rule(field: Field, where: str, declared: pa.DataType, output: pa.DataType) -> _Rule:
    classes = None if field.class_names is None else len(field.class_names)
    children = _child_rules(field.type, where, declared, output)
    return _Rule(where, field.nullable, declared, output, classes, children)


def _child_rules(
    type: Type, where: str, declared: pa.DataType, output: pa.DataType
) -> tuple[_Rule, ...]:
    if isinstance(type, str):
        return ()
    if isinstance(type, StructOf):
        types = zip(type.fields, declared, output, strict=True)
        return tuple(
            _field_rule(field, f"{where}.{field.name}", own.type, out.type)
            for field, own, out in types
        )
    inner = (f"{where}[]", declared.value_type, output.value_type)
    element, own, out = inner
    return (_Rule(element, True, own, out, children=_child_rules(type.item, *inner)),)


def _check_ids(ids: pa.Array, where: str) -> None:
    if not len(ids):
        return
    _, offsets, content = ids.buffers()
    # Counted from the array: a buffer may be longer, and of a size that is no multiple of four.
    starts = np.frombuffer(offsets, dtype=np.int32, count=len(ids) + 1, offset=4 * ids.offset)
    text = b"" if content is None else content[int(starts[0]) : int(starts[-1])].to_pybytes()
    found = [position for mark in (b"\r", b"\n") if (position := text.find(mark)) >= 0]
    rows = np.flatnonzero(np.diff(starts) == 0).tolist()[:1]
    # The last offset at or before a character is that of the id it stands in.
    rows += [int(np.searchsorted(starts, at + starts[0], side="right")) - 1 for at in found]
    if rows:
        row = min(rows)
        raise _Refused(
            where,
            row,
            "the item id is empty, or holds a line break",
            expected="at least one character, no CR and no LF",
            found=_shown(ids[row].as_py()),
        )


def _check_confidences(confidences: pa.Array) -> None:
    values = confidences.fill_null(0).to_numpy()
    slot = _ALL.first(~((values >= 0) & (values <= 1)))
    if slot is not None:
        raise _Refused(
            _CONFIDENCE,
            slot,
            "the value is no confidence",
            expected="a number in [0, 1], or null",
            found=str(values[slot]),
        )


def _count_statuses(statuses: pa.Array) -> dict[str, int]:
    indexes = pc.index_in(statuses, value_set=pa.array(STATUSES))
    if indexes.null_count:
        row = int(np.flatnonzero(~_valid(indexes))[0])
        raise _Refused(
            _STATUS,
            row,
            "the value is no status",
            expected=" or ".join(STATUSES),
            found=_shown(statuses[row].as_py()),
        )
    counts = np.bincount(indexes.to_numpy(), minlength=len(STATUSES))
    return dict(zip(STATUSES, counts.tolist(), strict=True))


def _valid(array: pa.Array) -> Mask:
    valid: Mask = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _nulls(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _has_range(type: pa.DataType) -> bool:
    return bool(patypes.is_time(type) or patypes.is_date64(type) or patypes.is_decimal(type))


def _range_of(type: pa.DataType) -> str:
    if patypes.is_time(type):
        return f"{type} within a day"
    if patypes.is_date64(type):
        return "date64 at a whole day (milliseconds divisible by 86400000)"
    return f"{type}: at most {type.precision} digits"


def _is_valid(array: pa.Array) -> bool:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _first_invalid(array: pa.Array) -> int:
    """Index of the first value that is out of range, in an array that holds one."""
    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        if _is_valid(array.slice(low, middle - low)):
            low = middle
        else:
            high = middle
    return low


def _raw(array: pa.Array, slot: int) -> str:
    """A value that Python's own type may be unable to hold: for times and dates, what is stored."""
    if patypes.is_decimal(array.type):
        return str(array[slot])
    stored = pa.int32() if patypes.is_time32(array.type) else pa.int64()
    return f"{array.view(stored)[slot].as_py()} as stored"


def _shown(text: str) -> str:
    shown = repr(text[:_SHOWN])
    return shown if len(text) <= _SHOWN else f"{shown}… ({len(text)} characters)"
