"""The rules of a manifest that span its members (spec, sections 1 to 5).

1. `next_action` goes with PARTIAL, and PARTIAL with outstanding items.
2. The item id field is a required string; reserved columns have their types.
3. Every sum holds: rows, items, statuses, of the parts and of the whole.
4. A part's format can hold the schema and the compression.
5. Paths name one file each, on every system; one list of outstanding items at most.

`check` raises for the first that is broken. It runs inside the model, so that no `Manifest` exists
that breaks one; each rule is linear in the number of parts, or one sort.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from lithi_datasets import paths
from lithi_datasets.types import ListOf, StructOf, violation

if TYPE_CHECKING:
    from lithi_datasets.manifest import Manifest
    from lithi_datasets.types import Field

__all__ = ["ID_LIST_ROLE", "STATUSES", "STATUS_FIELD", "check", "check_moment"]

STATUSES = ("accepted", "failed", "abstained")
STATUS_FIELD = "lithi_status"
ID_LIST_ROLE = "outstanding_items"

_MOMENT = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt]([0-9]{2}:[0-9]{2}):([0-9]{2})(?:\.[0-9]+)?"
    r"(?:[Zz]|([+-])([01][0-9]|2[0-3]):([0-5][0-9]))"
)
_LEAP_SECOND = 60
_TEXT_FORMATS = frozenset({"jsonl", "csv"})
# Name: (types, may be null); spec, section 3.
_RESERVED: dict[str, tuple[tuple[str, ...], bool]] = {
    STATUS_FIELD: (("string",), False),
    "lithi_confidence": (("float32", "float64"), True),
    "lithi_verification": (("string",), True),
}


def check(manifest: Manifest) -> None:
    """Raise a `types.violation` for the first rule that the manifest breaks."""
    for rule in _RULES:
        rule(manifest)


def check_moment(text: str) -> str:
    """Return an RFC 3339 timestamp as it is, or raise a `types.violation`.

    The date has to be real, the year at least 1. Second 60 is allowed where RFC 3339 allows it: as
    the last second, in UTC, of the last day of a month.
    """
    expected = "an RFC 3339 timestamp with an offset, of a real date"
    match = _MOMENT.fullmatch(text)
    if match is None:
        raise violation(expected, text)
    date, minute, second, sign, hours, minutes = match.groups()
    try:
        local = datetime.fromisoformat(f"{date}T{minute}")
        if int(second) < _LEAP_SECOND:
            return text
        offset = timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
        universal = local + offset if sign == "-" else local - offset
    except (ValueError, OverflowError):
        raise violation(expected, text) from None
    last_day = calendar.monthrange(universal.year, universal.month)[1]
    if int(second) > _LEAP_SECOND or universal != universal.replace(
        day=last_day, hour=23, minute=59
    ):
        raise violation(expected, text)
    return text


def _status(manifest: Manifest) -> None:
    partial = manifest.status == "PARTIAL"
    if partial and manifest.next_action is None:
        raise violation("a next action, as status is PARTIAL", None, ("next_action",))
    if not partial and manifest.next_action is not None:
        raise violation(
            "no next action, as status is COMPLETE", manifest.next_action.action, ("next_action",)
        )
    outstanding = manifest.counts.outstanding
    if partial != (outstanding > 0):
        expected = "above 0, as status is PARTIAL" if partial else "0, as status is COMPLETE"
        raise violation(expected, outstanding, ("counts", "outstanding"))


def _item_id(manifest: Manifest) -> None:
    name = manifest.item_id_field
    field = next((field for field in manifest.table.fields if field.name == name), None)
    if field is None:
        raise violation("the name of a field of the schema", name, ("item_id_field",))
    if field.type != "string" or field.nullable:
        raise violation(
            'the name of a field of type "string" with "nullable": false',
            f"{name}, {_described(field)}",
            ("item_id_field",),
        )


def _reserved_columns(manifest: Manifest) -> None:
    for index, field in enumerate(manifest.table.fields):
        types, nullable = _RESERVED.get(field.name, ((field.type,), field.nullable))
        if field.type not in types or field.nullable != nullable:
            required = "nullable" if nullable else "not nullable"
            raise violation(
                f"{field.name} of type {' or '.join(map(str, types))}, {required}",
                _described(field),
                ("schema", "fields", index, "nullable" if field.type in types else "type"),
            )
    if manifest.bundle_kind == "result" and not manifest.has_status:
        names = ", ".join(field.name for field in manifest.table.fields)
        raise violation(f"a field {STATUS_FIELD} in a result", names, ("schema", "fields"))


def _described(field: Field) -> str:
    if isinstance(field.type, str):
        kind = field.type
    elif isinstance(field.type, ListOf):
        kind = "list"
    else:
        kind = "struct" if isinstance(field.type, StructOf) else "large_list"
    return f"{kind}, {'nullable' if field.nullable else 'not nullable'}"


def _sums(manifest: Manifest) -> None:
    counts = manifest.counts
    in_parts = sum([part.rows for part in manifest.parts])
    if counts.rows != in_parts:
        raise violation(f"{in_parts}, the rows of the parts", counts.rows, ("counts", "rows"))
    with_status = counts.accepted + counts.failed + counts.abstained
    if counts.rows != with_status:
        expected = f"{with_status}, the sum of accepted, failed and abstained"
        raise violation(expected, counts.rows, ("counts", "rows"))
    if counts.items != counts.rows + counts.outstanding:
        expected = f"{counts.rows + counts.outstanding}, the sum of rows and outstanding"
        raise violation(expected, counts.items, ("counts", "items"))
    if not manifest.has_status and counts.accepted != counts.rows:
        expected = f"{counts.rows}, each row, as there is no {STATUS_FIELD}"
        raise violation(expected, counts.accepted, ("counts", "accepted"))


def _part_statuses(manifest: Manifest) -> None:
    told = [
        (part.rows, each.accepted, each.failed, each.abstained)
        for part in manifest.parts
        if (each := part.status_counts) is not None
    ]
    off = [
        rows for rows, accepted, failed, abstained in told if rows != accepted + failed + abstained
    ]
    if off or not manifest.has_status:
        _each_part_statuses(manifest)
    every = len(told) == len(manifest.parts)
    for column, status in enumerate(STATUSES, 1):
        total = sum([each[column] for each in told])
        stated = getattr(manifest.counts, status)
        if total > stated or (every and total != stated):
            expected = f"{'' if every else 'at least '}{total}, as the parts count"
            raise violation(expected, stated, ("counts", status))


def _each_part_statuses(manifest: Manifest) -> None:
    for index, part in enumerate(manifest.parts):
        counts = part.status_counts
        if counts is None:
            continue
        at = ("parts", index, "status_counts")
        total = counts.accepted + counts.failed + counts.abstained
        if total != part.rows:
            raise violation(f"counts that sum to the part's rows, {part.rows}", total, at)
        if not manifest.has_status and counts.accepted != part.rows:
            expected = f"{part.rows}, each row, as there is no {STATUS_FIELD}"
            raise violation(expected, counts.accepted, (*at, "accepted"))


def _formats(manifest: Manifest) -> None:
    compressed = [
        index for index, part in enumerate(manifest.parts) if part.compression is not None
    ]
    for index in compressed:
        part = manifest.parts[index]
        if part.format not in _TEXT_FORMATS:
            expected = f"no compression of a whole {part.format} file, only of jsonl and csv"
            raise violation(expected, part.compression, ("parts", index, "compression"))
    nested = next(
        (field for field in manifest.table.fields if not isinstance(field.type, str)), None
    )
    csv = next((i for i, part in enumerate(manifest.parts) if part.format == "csv"), None)
    if nested is not None and csv is not None:
        raise violation(
            "a format that can hold every field; csv holds no lists and structs",
            f"csv, with the field {nested.name} ({_described(nested)})",
            ("parts", csv, "format"),
        )


def _splits(manifest: Manifest) -> None:
    splits = [part.split for part in manifest.parts]
    if "all" in splits:
        at = ("parts", splits.index("all"), "split")
        raise violation('a split name other than "all"', "all", at)


def _attachments(manifest: Manifest) -> None:
    lists = [i for i, each in enumerate(manifest.attachments) if each.role == ID_LIST_ROLE]
    if len(lists) > 1:
        expected = f"one attachment with the role {ID_LIST_ROLE} at most"
        raise violation(expected, f"{len(lists)} of them", ("attachments", lists[1], "role"))


def _paths(manifest: Manifest) -> None:
    bound = [part.path for part in manifest.parts]
    count = len(bound)
    bound += [attachment.path for attachment in manifest.attachments]
    fault = paths.first_fault(bound)
    if fault is not None:
        in_parts = fault.index < count
        at = ("parts", fault.index) if in_parts else ("attachments", fault.index - count)
        raise violation(fault.expected, fault.found, (*at, "path"))


_RULES: tuple[Callable[[Manifest], None], ...] = (
    _status,
    _item_id,
    _reserved_columns,
    _sums,
    _part_statuses,
    _formats,
    _splits,
    _attachments,
    _paths,
)
