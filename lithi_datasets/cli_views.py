"""What the command line prints: rich tables for people, JSON for machines.

Names in a manifest are other people's: they are printed as text, never as markup, and control
characters are escaped, so that a bundle can't steer the terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lithi_datasets.errors import BundlePartial, LithiError
from lithi_datasets.manifest import STATUSES, Counts, Snapshot

if TYPE_CHECKING:
    from lithi_datasets.audit import VerifyReport
    from lithi_datasets.bundle import Bundle
    from lithi_datasets.demo import DemoReport
    from lithi_datasets.manifest import Manifest
    from lithi_datasets.types import Field

__all__ = [
    "describe",
    "describe_error",
    "describe_verified",
    "print_json",
    "print_lines",
    "printable",
    "show_bundle",
    "show_demo",
    "show_verified",
]

SHOWN_ROWS = 20
"""Longest list that a table shows; `--json` gives all."""


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document, in ASCII; what JSON has no type for is printed as text."""
    sys.stdout.write(json.dumps(document, indent=2, default=str) + "\n")


def print_lines(lines: Iterable[str]) -> None:
    """Print lines byte for byte, in UTF-8, for another program; to a terminal without controls."""
    stream = getattr(sys.stdout, "buffer", None)
    if stream is None or sys.stdout.isatty():
        for line in lines:
            sys.stdout.write(printable(line) + "\n")
        return
    sys.stdout.flush()
    for line in lines:
        stream.write(line.encode() + b"\n")
    stream.flush()


def printable(text: str) -> str:
    """The text with its control characters escaped, line ends left."""
    return "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode()
        for char in text
    )


def describe(source: str, bundle: Bundle) -> dict[str, Any]:
    """What `inspect --json` prints."""
    manifest = bundle.manifest.model_dump(mode="json", by_alias=True, exclude_none=True)
    splits = {name: _split(bundle, name) for name in bundle.splits}
    return {"source": source, "splits": splits, "manifest": manifest}


def describe_verified(source: str, bundle: Bundle, report: VerifyReport) -> dict[str, Any]:
    """What `verify --json` prints."""
    return {
        "source": source,
        "snapshot": bundle.snapshot.as_dict(),
        "files": report.files,
        "rows": report.rows,
        "bytes": report.bytes,
        "statuses": report.statuses,
        "unbound": list(report.unbound),
    }


def describe_error(error: LithiError) -> dict[str, Any]:
    """What `--json` prints when a command is refused."""
    described = {
        "error": type(error).__name__,
        "problem": error.problem,
        "path": error.path,
        "expected": error.expected,
        "found": error.found,
        "remedy": error.remedy,
    }
    if isinstance(error, BundlePartial):
        described["next_action"] = error.next_action
    return described


def show_bundle(source: str, bundle: Bundle) -> None:
    """Print the tables of `inspect`."""
    manifest = bundle.manifest
    console = Console()
    _facts(
        console,
        [
            ("source", source),
            ("kind", manifest.bundle_kind),
            ("status", manifest.status),
            ("created", manifest.created_at or "not said"),
            ("item id", bundle.item_id_field),
            ("counts", _counts(bundle.counts)),
        ],
    )
    if manifest.next_action is not None:
        action = manifest.next_action
        _facts(console, [("next action", f"{action.action}: {action.message}")])
    _columns(console, manifest.table.fields)
    _files(console, manifest)
    _pin(console, bundle.snapshot)


def show_verified(source: str, bundle: Bundle, report: VerifyReport) -> None:
    """Print the tables of `verify`."""
    console = Console()
    _facts(
        console,
        [
            ("source", source),
            ("verified", f"{report.files:,} files, {report.rows:,} rows, {report.bytes:,} bytes"),
            ("statuses", _statuses(report.statuses)),
        ],
    )
    if report.unbound:
        _list(
            console,
            ("not bound by the manifest, not opened",),
            [(path,) for path in report.unbound],
        )
    _pin(console, bundle.snapshot)


def show_demo(report: DemoReport) -> None:
    """Print the tables of `demo`."""
    console = Console()
    _facts(
        console,
        [("verified", f"{report.files:,} files, {report.rows:,} rows, {report.bytes:,} bytes")],
    )
    _list(
        console,
        ("reader", "rows", *STATUSES),
        [
            (reader.rank, reader.rows, *(reader.statuses[status] for status in STATUSES))
            for reader in report.readers
        ],
    )
    losses = [*(reader.losses for reader in report.readers), report.losses]
    _list(
        console,
        ("loss, epoch", *(f"reader {reader.rank}" for reader in report.readers), "all"),
        [
            (epoch, *(f"{loss:.3f}" for loss in row))
            for epoch, row in enumerate(zip(*losses, strict=True), start=1)
        ],
    )
    accuracy = (
        f"{report.accuracy:.1%} of the {report.test_rows} test rows, against a person's reading"
    )
    loop = report.loop
    counted = loop.reconciled
    by_status = {status: counted[status] for status in STATUSES}
    ledger = f"{counted['rows']:,} rows of train, each once: {_statuses(by_status)}"
    _facts(console, [("accuracy", accuracy), ("reconciled", ledger)])
    chain = [
        ("checkpoint", loop.checkpoint),
        ("predicted", loop.staged),
        ("derived", loop.derived_from),
    ]
    _facts(console, [(label, _at(Snapshot.coerce(snapshot))) for label, snapshot in chain])
    _pin(console, Snapshot.coerce(report.snapshot))


def _columns(console: Console, fields: Iterable[Field]) -> None:
    head = ("column", "type", "nullable", "class names")
    rows: list[tuple[object, ...]] = [
        (
            field.name,
            _type(field.model_dump(by_alias=True, exclude_none=True)["type"]),
            "yes" if field.nullable else "no",
            ", ".join(field.class_names or ()),
        )
        for field in fields
    ]
    _list(console, head, rows)


def _files(console: Console, manifest: Manifest) -> None:
    _list(
        console,
        ("part", "split", "format", "rows", "bytes"),
        [
            (part.path, part.split, _format(part.format, part.compression), part.rows, part.bytes)
            for part in manifest.parts
        ],
    )
    if manifest.attachments:
        _list(
            console,
            ("attachment", "role", "bytes"),
            [(entry.path, entry.role, entry.bytes) for entry in manifest.attachments],
        )


def _facts(console: Console, facts: Iterable[tuple[str, str]]) -> None:
    for label, value in facts:
        # Lines that may be copied are left to the terminal to wrap.
        console.print(Text.assemble((f"{label:<11}", "bold"), printable(value)), soft_wrap=True)


def show_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print labels and values, one a line."""
    _facts(Console(), facts)


def _list(console: Console, head: tuple[str, ...], rows: list[tuple[object, ...]]) -> None:
    table = Table(title_justify="left", header_style="bold")
    for index, name in enumerate(head):
        numbers = bool(rows) and all(isinstance(row[index], int) for row in rows)
        table.add_column(name, overflow="fold", justify="right" if numbers else "left")
    for row in rows[:SHOWN_ROWS]:
        table.add_row(*(Text(_cell(value)) for value in row))
    console.print(table)
    if len(rows) > SHOWN_ROWS:
        console.print(f"… and {len(rows) - SHOWN_ROWS:,} more; --json lists all", soft_wrap=True)


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else printable(str(value))


def _pin(console: Console, snapshot: Snapshot) -> None:
    _facts(console, [("pin", _at(snapshot))])


def _at(snapshot: Snapshot) -> str:
    return f"{snapshot.version_id}@{snapshot.content_sha256}"


def _split(bundle: Bundle, name: str) -> dict[str, int]:
    parts = [bundle.parts[index] for index in bundle.splits[name]]
    return {"parts": len(parts), "rows": sum(part.rows for part in parts)}


def _counts(counts: Counts) -> str:
    rows = {status: getattr(counts, status) for status in STATUSES}
    text = f"{counts.items:,} items, {counts.rows:,} rows: {_statuses(rows)}"
    return f"{text}; {counts.outstanding:,} outstanding"


def _statuses(rows: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {status}" for status, count in rows.items())


def _format(name: str, compression: str | None) -> str:
    return name if compression is None else f"{name} ({compression})"


def _type(declared: Any) -> str:
    """A declared type in one line, as the manifest writes it."""
    return declared if isinstance(declared, str) else json.dumps(declared, ensure_ascii=False)
