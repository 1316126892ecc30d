"""The commands `outstanding` and `diff`: from a PARTIAL bundle to its successor."""

from __future__ import annotations

from typing import Annotated

import typer

from lithi_datasets import cli_views as views
from lithi_datasets.bundle import open_bundle
from lithi_datasets.cli_options import AsJson, CredentialRef, Source
from lithi_datasets.outstanding import BundleDiff, diff_bundles

__all__ = ["diff", "outstanding"]

_SHOWN = 20


def outstanding(
    source: Source,
    staged_input: Annotated[
        str | None,
        typer.Option(help="The bundle that was submitted; needed where no list is bound."),
    ] = None,
    as_json: AsJson = False,
    credential_ref: CredentialRef = None,
) -> None:
    """Print the ids of the items without a row, one a line, ready to be submitted again."""
    bundle = open_bundle(source, allow_partial=True, credential_ref=credential_ref)
    ids = bundle.outstanding_items(staged_input)
    if as_json:
        views.print_json({"snapshot": bundle.snapshot.as_dict(), "outstanding": ids})
        return
    views.print_lines(ids)


def diff(
    old: Annotated[str, typer.Argument(help="The older bundle.")],
    new: Annotated[str, typer.Argument(help="The newer bundle.")],
    as_json: AsJson = False,
    credential_ref: CredentialRef = None,
) -> None:
    """Compare two results of the same items: added, changed in status, lost."""
    bundles = [
        open_bundle(one, allow_partial=True, credential_ref=credential_ref) for one in (old, new)
    ]
    found = diff_bundles(*bundles)
    if as_json:
        views.print_json(found.as_dict())
    else:
        _show(found)


def _show(found: BundleDiff) -> None:
    replaces = "it says that it replaces the old one" if found.supersedes else "no successor of it"
    facts = [("old", found.old["version_id"]), ("new", f"{found.new['version_id']} ({replaces})")]
    facts += [(name, f"{len(getattr(found, name)):,}") for name in ("added", "changed", "lost")]
    views.show_facts([*facts, ("unchanged", f"{found.unchanged:,}")])
    for sign, rows in (
        ("+", found.added),
        ("~", [f"{item}: {before} → {after}" for item, before, after in found.changed]),
        ("-", found.lost),
    ):
        for row in rows[:_SHOWN]:
            typer.echo(views.printable(f"{sign} {row}"))
        if len(rows) > _SHOWN:
            typer.echo(f"{sign} … {len(rows) - _SHOWN:,} more; --json has all")
