"""The commands `conformance` and `schema`."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from lithi_datasets import conformance as matrix
from lithi_datasets.cli_views import print_json
from lithi_datasets.conformance_summary import COLUMNS, summary
from lithi_datasets.manifest import Manifest

__all__ = ["conformance", "manifest_schema", "schema"]

_FAILED = 1


def conformance(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    formats: Annotated[
        list[str] | None,
        typer.Option("--format", help="Only this column; may be given more than once."),
    ] = None,
) -> None:
    """Check every type in every format on the installed versions."""
    cells = matrix.run(formats)
    wrong = [cell for cell in cells if not cell.ok]
    if as_json:
        print_json(_described(cells))
    else:
        _show(cells, wrong)
    if wrong:
        raise typer.Exit(_FAILED)


def schema() -> None:
    """Print the JSON Schema of a manifest."""
    typer.echo(manifest_schema(), nl=False)


def manifest_schema() -> str:
    """The JSON Schema of `result-manifest.json`, as it is published: the same text each time."""
    return json.dumps(Manifest.model_json_schema(), indent=2, sort_keys=True) + "\n"


def _described(cells: list[matrix.Cell]) -> dict[str, Any]:
    return {
        "level": matrix.LEVEL,
        "not_claimed": list(matrix.NOT_CLAIMED),
        "versions": matrix.versions(),
        "ok": all(cell.ok for cell in cells),
        "cells": [cell.as_dict() for cell in cells],
    }


def _show(cells: list[matrix.Cell], wrong: list[matrix.Cell]) -> None:
    console = Console()
    found = ", ".join(f"{name} {version}" for name, version in matrix.versions().items())
    console.print(f"{matrix.LEVEL}, with {found}", markup=False, highlight=False)
    rows = summary(cells)
    shown = [column for column in COLUMNS if any(column in row for row in rows.values())]
    table = Table("type", *shown, box=None, pad_edge=False)
    for name, row in rows.items():
        # A type name such as date32[s] is no markup.
        table.add_row(
            *(cell.replace("[", r"\[") for cell in (name, *(row.get(c, "-") for c in shown)))
        )
    console.print(table)
    for cell in wrong:
        what = f"{cell.format}, {cell.type}, {cell.shape}: {cell.found}, not {cell.published}"
        console.print(f"{what}\n{cell.detail}", markup=False, highlight=False)
    total = f"{len(cells)} cells, {len(wrong)} not as published"
    console.print(total, markup=False, highlight=False)
