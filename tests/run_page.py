"""Runs the blocks of one documentation page in order, as a reader would; used by test_docs.py.

    python run_page.py < blocks.json > outputs.json

A block is `{"kind": "python" | "console", "code": str, "page": str, "line": int}`. The python
blocks of a page share their names. The output is a list: what each block printed; the first block
that fails ends it with `{"error": text}`.
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import traceback
from typing import Any


def run_python(code: str, page: str, line: int, names: dict[str, Any]) -> str:
    printed = io.StringIO()
    # Blank lines first, so that a traceback names the line of the page.
    program = compile("\n" * line + code, page, "exec")
    with contextlib.redirect_stdout(printed):
        exec(program, names)
    return printed.getvalue()


def run_console(code: str) -> str:
    """What a terminal would show: each command after its `$ `, and what it printed."""
    shown = []
    for line in code.splitlines():
        if not line.startswith("$ "):
            continue
        done = subprocess.run(
            ["bash", "-c", line[2:]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        shown.append(f"{line}\n{done.stdout}")
    return "".join(shown)


def run_block(block: dict[str, Any], names: dict[str, Any]) -> str:
    if block["kind"] == "python":
        return run_python(block["code"], block["page"], block["line"], names)
    return run_console(block["code"])


def main() -> None:
    outputs: list[str | dict[str, str]] = []
    names: dict[str, Any] = {"__name__": "__main__"}
    try:
        for block in json.load(sys.stdin):
            outputs.append(run_block(block, names))  # noqa: PERF401 - what ran is kept
    except BaseException:
        outputs.append({"error": traceback.format_exc()})
    json.dump(outputs, sys.stdout)


if __name__ == "__main__":
    main()
