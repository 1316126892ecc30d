"""Reading and checking every file that a manifest binds, and what spans them."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pyarrow as pa

from lithi_datasets import uniqueness
from lithi_datasets.errors import (
    DuplicateItemId,
    PartDecodeError,
    RowCountMismatch,
    StatusCountMismatch,
)
from lithi_datasets.manifest import MANIFEST_NAME, STATUSES, Attachment, Manifest
from lithi_datasets.parts import PartRules, fetch, scan_part

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from lithi_datasets.storage import Location

__all__ = [
    "OUTSTANDING_ROLE",
    "VerifyReport",
    "add_statuses",
    "check_attachments",
    "check_status_totals",
    "located_ids",
    "outstanding_ids",
    "verify_files",
]

OUTSTANDING_ROLE = "outstanding_items"


@dataclass(frozen=True)
class VerifyReport:
    """What `Bundle.verify` looked at.

    Attributes:
        files: bound files that were read and checked, parts and attachments.
        rows: rows that were decoded and checked.
        bytes: bytes that were read.
        statuses: rows by status.
        unbound: relative paths of files found beside them that the manifest does not bind; none was
            opened. Always empty over HTTP, which has no listing.
    """

    files: int
    rows: int
    bytes: int
    statuses: dict[str, int]
    unbound: tuple[str, ...]


@dataclass
class _Tally:
    statuses: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STATUSES, 0))
    rows: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        add_statuses(self.statuses, batch)


def add_statuses(totals: dict[str, int], batch: pa.RecordBatch) -> None:
    """Count the rows of a checked batch by status, into `totals`."""
    if "lithi_status" not in batch.schema.names:
        totals["accepted"] += batch.num_rows
        return
    for entry in batch.column("lithi_status").value_counts().to_pylist():
        totals[entry["values"]] += entry["counts"]


def verify_files(
    location: Location, manifest: Manifest, rules: PartRules, *, progress: bool = False
) -> VerifyReport:
    """Check all files of a bundle; see `Bundle.verify`."""
    tally = _Tally()
    seed = uniqueness.new_seed()
    advance = _progress(manifest) if progress else None
    with tempfile.TemporaryDirectory(prefix="lithi-verify-") as folder:
        hashes = Path(folder) / "ids"
        with hashes.open("wb") as sink:
            for part in manifest.parts:
                for batch in scan_part(location, part, rules):
                    tally.add(batch)
                    _append(sink, batch, rules, seed)
                if advance:
                    next(advance)
            for ids in check_attachments(location, manifest):
                sink.write(uniqueness.hash_ids(ids, seed).tobytes())
                if advance:
                    next(advance)
        check_status_totals(manifest, tally.statuses)
        suspects = uniqueness.duplicate_hashes([hashes])
        uniqueness.refuse_duplicates(suspects, seed, lambda: located_ids(location, manifest, rules))
    if advance:
        advance.close()
    bound = [*manifest.parts, *manifest.attachments]
    return VerifyReport(
        files=len(bound),
        rows=tally.rows,
        bytes=sum(entry.bytes for entry in bound),
        statuses=tally.statuses,
        unbound=_unbound(location, manifest),
    )


def _append(sink: IO[bytes], batch: pa.RecordBatch, rules: PartRules, seed: int) -> None:
    sink.write(uniqueness.hash_ids(batch.column(rules.item_id_field), seed).tobytes())


def check_status_totals(manifest: Manifest, found: dict[str, int]) -> None:
    """Compare the rows by status with the manifest's counts.

    Raises:
        StatusCountMismatch: they differ.
    """
    expected = {status: getattr(manifest.counts, status) for status in STATUSES}
    if found != expected:
        raise StatusCountMismatch(
            "The statuses in the bundle are not those that the manifest counts.",
            path="$.counts",
            expected=expected,
            found=found,
        )


def outstanding_ids(location: Location, attachment: Attachment, expected: int) -> list[str]:
    """The ids in the bound list of outstanding items, in file order.

    Raises:
        PartDecodeError: it is not UTF-8, or a line is empty.
        RowCountMismatch: it does not hold `expected` ids.
        DuplicateItemId: an id stands twice in it.
    """
    raw = fetch(location, attachment).stream().read()
    try:
        lines = raw.decode("utf-8").replace("\r\n", "\n").split("\n")
    except UnicodeDecodeError as error:
        raise PartDecodeError(
            "The list of outstanding items is not UTF-8 text.",
            path=attachment.path,
            expected="UTF-8, one id a line",
            found=str(error),
        ) from error
    if lines[-1] == "":
        lines.pop()
    for number, line in enumerate(lines, start=1):
        if not line or "\r" in line:
            raise PartDecodeError(
                "The list of outstanding items holds a line that is no item id.",
                path=f"{attachment.path} line {number}",
                expected="one id a line",
                found=repr(line),
            )
    if len(lines) != expected:
        raise RowCountMismatch(
            "The list of outstanding items does not hold what the manifest counts.",
            path=attachment.path,
            expected=f"{expected} ids",
            found=f"{len(lines)} ids",
        )
    _refuse_repeats(lines, attachment.path)
    return lines


def _refuse_repeats(lines: list[str], path: str) -> None:
    if len(set(lines)) == len(lines):
        return
    seen: dict[str, int] = {}
    repeated = []
    for number, line in enumerate(lines, start=1):
        if line in seen:
            repeated.append(f"{line!r} at lines {seen[line]} and {number}")
        seen.setdefault(line, number)
    raise DuplicateItemId(
        "Item ids stand more than once in the list of outstanding items.",
        path=path,
        expected="each outstanding id once",
        found="; ".join(repeated[:5]),
    )


def check_attachments(location: Location, manifest: Manifest) -> Iterator[pa.Array]:
    """Verify the attachments one by one.

    Yields the item ids in each as `large_string[n]`: none but in the list of outstanding items.

    Raises what `outstanding_ids` and `parts.fetch` raise.
    """
    for attachment in manifest.attachments:
        if attachment.role == OUTSTANDING_ROLE:
            ids = outstanding_ids(location, attachment, manifest.counts.outstanding)
        else:
            fetch(location, attachment)
            ids = []
        yield pa.array(ids, pa.large_string())


def located_ids(
    location: Location, manifest: Manifest, rules: PartRules
) -> Iterator[uniqueness.Located]:
    """All ids again with where they are: those of the rows, then those of the outstanding items."""
    for part in manifest.parts:
        row = 0
        for batch in scan_part(location, part, rules):
            yield part.path, row, batch.column(rules.item_id_field)
            row += batch.num_rows
    for attachment in manifest.attachments:
        if attachment.role == OUTSTANDING_ROLE:
            ids = outstanding_ids(location, attachment, manifest.counts.outstanding)
            yield f"{attachment.path} (outstanding)", 0, pa.array(ids, pa.large_string())


def _unbound(location: Location, manifest: Manifest) -> tuple[str, ...]:
    bound = {MANIFEST_NAME, *(entry.path for entry in (*manifest.parts, *manifest.attachments))}
    return tuple(sorted(path for path in location.list_files() if path not in bound))


def _progress(manifest: Manifest) -> Generator[None, None, None]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("verifying"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    bound = [*manifest.parts, *manifest.attachments]
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("verify", total=sum(entry.bytes for entry in bound))
        for entry in bound:
            yield
            bar.advance(task, entry.bytes)
        yield
