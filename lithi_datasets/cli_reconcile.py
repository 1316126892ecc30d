"""`lithi-datasets reconcile`: does what was read, or predicted, add up to the bundle?"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Annotated

import typer

from lithi_datasets import cli_views as views
from lithi_datasets.bundle import Bundle, open_bundle
from lithi_datasets.cli_options import AllowPartial, AsJson, CredentialRef, Pin, Source
from lithi_datasets.errors import UsageError
from lithi_datasets.ledger_files import TABLE_FORMATS, reconcile_states, reconcile_table
from lithi_datasets.ledger_report import Reconciliation
from lithi_datasets.manifest import STATUSES

__all__ = ["reconcile"]

LEDGER = "ledger"

FileFormat = Enum("FileFormat", {name: name for name in (LEDGER, *TABLE_FORMATS)})  # type: ignore[misc]
_DEFAULT = FileFormat(LEDGER)


def reconcile(
    source: Source,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="States of the ledgers of all ranks, or the files of a table of predictions.",
        ),
    ],
    format: Annotated[
        FileFormat, typer.Option(help="What the files are; a ledger's state is JSON.")
    ] = _DEFAULT,
    split: Annotated[
        str | None,
        typer.Option(help="Split that the table is of, or several joined by +; all if left out."),
    ] = None,
    status: Annotated[
        list[str] | None,
        typer.Option(help="Status that the table is of; may be repeated; all if left out."),
    ] = None,
    id_column: Annotated[
        str | None, typer.Option(help="Column of the table with the ids; the bundle's if left out.")
    ] = None,
    as_json: AsJson = False,
    allow_partial: AllowPartial = False,
    credential_ref: CredentialRef = None,
    snapshot: Pin = None,
) -> None:
    """Compare ledgers or predictions with a bundle: each row once, none missing, none foreign."""
    bundle = open_bundle(source, snapshot, allow_partial, credential_ref)
    if format.value != LEDGER:
        found = reconcile_table(
            bundle, files, format.value, split=split, statuses=status or None, id_column=id_column
        )
    elif split or status or id_column:
        raise UsageError(
            "A ledger's state says itself which rows it is of.",
            expected="--split, --status and --id-column with the --format of a table only",
        )
    else:
        found = reconcile_states(bundle, files)
    if as_json:
        snapshot_of = bundle.snapshot.as_dict()
        views.print_json({"source": source, "snapshot": snapshot_of, **found.as_dict()})
    else:
        _show(bundle, found)


def _show(bundle: Bundle, found: Reconciliation) -> None:
    read = {status: getattr(found, status) for status in STATUSES}
    facts = [
        (
            "reconciled",
            f"{found.rows:,} rows, each once: {_by_status(read)}",
        ),
        ("dropped", f"{found.dropped:,} rows, so that every batch was full"),
        ("excluded", _by_status(found.excluded) or "none"),
        ("pin", f"{bundle.snapshot.version_id}@{bundle.snapshot.content_sha256}"),
    ]
    for label, text in facts:
        typer.echo(f"{typer.style(f'{label:<11}', bold=True)}{views.printable(text)}")


def _by_status(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {status}" for status, count in counts.items())
