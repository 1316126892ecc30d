"""The matrix as a table for people: a row for each type or refusal, a column for each format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from lithi_datasets.conformance import Cell

__all__ = ["COLUMNS", "summary"]

COLUMNS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "parquet": ("parquet",),
        "arrow file": ("arrow file",),
        "arrow stream": ("arrow stream",),
        "jsonl, gzip, zstd": ("jsonl", "jsonl gzip", "jsonl zstd"),
        "csv, gzip, zstd": ("csv", "csv gzip", "csv zstd"),
    }
)
"""The columns of the published table: writings that are the same but for their compression."""


def summary(cells: Iterable[Cell]) -> dict[str, dict[str, str]]:
    """Type or refusal → column of `COLUMNS` → what was found, in the order of the cells.

    The writings of a column are shown as one where they agree; shapes that differ are named.
    """
    rows: dict[str, dict[str, dict[str, list[str]]]] = {}
    for cell in cells:
        column = next(name for name, formats in COLUMNS.items() if cell.format in formats)
        found = rows.setdefault(cell.type, {}).setdefault(column, {}).setdefault(cell.shape, [])
        if cell.found not in found:
            found.append(cell.found)
    return {
        name: {column: _shown(shapes) for column, shapes in row.items()}
        for name, row in rows.items()
    }


def _shown(shapes: Mapping[str, Sequence[str]]) -> str:
    found = {shape: "/".join(outcomes) for shape, outcomes in shapes.items()}
    first = next(iter(found.values()))
    others = [f"{shape}: {outcome}" for shape, outcome in found.items() if outcome != first]
    return "; ".join([first, *others])
