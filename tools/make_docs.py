"""Makes the generated pages: docs/conformance.md and docs/manifest.schema.json.

    python tools/make_docs.py [folder]        # by default docs/

The matrix is run first; nothing is written where a cell is not what is published.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from lithi_datasets import conformance
from lithi_datasets.cli_conformance import manifest_schema
from lithi_datasets.conformance import Cell
from lithi_datasets.conformance_cases import CASES
from lithi_datasets.conformance_refusals import REFUSALS
from lithi_datasets.conformance_summary import COLUMNS, summary

DOCS = Path(__file__).parent.parent / "docs"

HEAD = """# Conformance

<!-- Made by tools/make_docs.py from the results of the matrix; a test fails when it is stale. -->

The level is `{level}`: a result bundle in [format 1](bundle-format.md) is imported as this
page says. What the level does not claim: {not_claimed}.

`lithi-datasets conformance` runs every cell on your own versions and prints it; `--json` prints a
document. Each cell is also a test of the project. It writes a table of hard values without the
package's readers, reads it through the one verified reader, and compares type and values, and the
`datasets` feature. Parquet and Arrow are written by pyarrow from the table, and once more by
Polars, DuckDB and fastparquet, each for the types that it has; JSON lines and CSV are texts that
were written by hand.

The exact values are those of `lithi.load` and of `with_format("arrow")`. `with_format(None)` is the
format of `datasets` with Python's own values, which are coarser: `time64[ns]` is cut to
microseconds, and a duration beyond Python's is an `OverflowError`.

## Types

`exact` means that every value arrived, in the declared type. It holds for a field that is required,
for one that is nullable and has nulls, and for the type nested in a struct, alone and as a list,
with nulls at each depth; where these differ, the cell says so. A name such as `ManifestInvalid` is
the error that refuses the field, and its message names it. Nothing is ever cast in silence.

"""

REFUSED = """
## What is refused

The slips that other readers pass over, in each format that can hold them. Every message names the
part, and the field or, where the bytes do not decode, the line. `—` means that the format can't
hold it: the text of a CSV cell has no type of its own, JSON has no NaN, and a key that is absent
from a JSON object is a null.

"""

TAIL = """
## On datasets before 4.0

On datasets 3.6 everything above holds but for these, which have no feature there and are refused by
name:

"""


def conformance_page(cells: Sequence[Cell], old: Sequence[Cell]) -> str:
    """The page from the cells of datasets 4 and newer, and of older ones."""
    text = HEAD.format(level=conformance.LEVEL, not_claimed="; ".join(conformance.NOT_CLAIMED))
    rows = summary(cells)
    arrows = {case.name: str(case.arrow) for case in CASES}
    features = {case.name: conformance.feature_kind(case) for case in CASES}
    text += _table(
        ["type", "Arrow", "feature", *COLUMNS],
        (
            [_code(c.name), _code(arrows[c.name]), _code(features[c.name]), *_row(rows[c.name])]
            for c in CASES
        ),
    )
    refused = ([refusal.name, *_row(rows[refusal.name])] for refusal in REFUSALS)
    text += REFUSED + _table(["slip", *COLUMNS], refused)
    before = summary(old)
    less = [name for name in before if before[name] != rows[name]]
    return (
        text
        + TAIL
        + _table(["type", *COLUMNS], ([_code(name), *_row(before[name])] for name in less))
    )


def _row(found: dict[str, str]) -> list[str]:
    return [_outcome(found.get(column, "—")) for column in COLUMNS]


def _outcome(found: str) -> str:
    words = found.replace(";", " ;").split(" ")
    return " ".join(_code(word) if word[:1].isupper() else word for word in words).replace(
        " ;", ";"
    )


def _code(text: str) -> str:
    return f"`{text}`"


def _table(head: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    names = list(head)
    lines = [names, ["---"] * len(names), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def published_page() -> str:
    """The page as it is published, without a run."""
    return conformance_page(
        conformance.published_cells(old_datasets=False),
        conformance.published_cells(old_datasets=True),
    )


def main(arguments: Sequence[str]) -> int:
    """Write the pages; 1 where a cell is not what is published."""
    folder = Path(arguments[0]) if arguments else DOCS
    if conformance.features_of_old_datasets():
        print("The pages are made with datasets 4.0 or newer.", file=sys.stderr)
        return 1
    cells = conformance.run()
    wrong = [cell for cell in cells if not cell.ok]
    for cell in wrong:
        print(f"{cell}", file=sys.stderr)
    if wrong:
        return 1
    page = conformance_page(cells, conformance.published_cells(old_datasets=True))
    (folder / "conformance.md").write_text(page, encoding="utf-8")
    (folder / "manifest.schema.json").write_text(manifest_schema(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
