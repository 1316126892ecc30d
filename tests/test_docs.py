"""Every block of the documentation is run, and shows what it prints, or says why it is not run.

A page is read from top to bottom, in an empty folder with an empty HOME:

- ```python blocks of a page share their names; a ```text block right after one is what it prints;
- ```console blocks hold commands after `$ `, and below each what it prints, if anything is shown;
- a block that can't be run has `<!-- not run: reason -->` on the line before it.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from lithi_datasets.cli import app

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
LANGUAGES = {"python", "console", "text", "json"}
RUN = {"python", "console"}

_BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]+) -->\n)?```(?P<kind>[^\n]*)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """One fenced block; `line` is that of its fence, `shown` the output that the page shows."""

    kind: str
    code: str
    line: int
    reason: str | None
    shown: str | None

    @property
    def expected(self) -> str | None:
        """What running it must print, None where the page shows nothing."""
        if self.kind == "python":
            return self.shown
        commands = [line for line in self.code.splitlines() if line.startswith("$ ")]
        return None if commands == self.code.splitlines() else self.code


def blocks_of(text: str) -> list[Block]:
    found = list(_BLOCK.finditer(text))
    blocks = []
    for match, after in itertools.zip_longest(found, found[1:]):
        follows = after is not None and text[match.end() : after.start()].strip() == ""
        shown = after["code"] if after is not None and follows and after["kind"] == "text" else None
        line = text.count("\n", 0, match.start("kind")) + 1
        blocks.append(Block(match["kind"], match["code"], line, match["reason"], shown))
    return blocks


def _environment(home: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("LANG", "LC_ALL") if name in os.environ}
    return {
        **kept,
        "HOME": str(home),
        "HF_HOME": str(home / "hf"),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "error",
        "PYTHONUTF8": "1",
        "COLUMNS": "100",
    }


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_the_blocks_of_a_page_print_what_it_shows(page: Path, tmp_path: Path) -> None:
    blocks = [
        block
        for block in blocks_of(page.read_text(encoding="utf-8"))
        if block.kind in RUN and block.reason is None
    ]
    if not blocks:
        return
    folder = tmp_path / "work"
    folder.mkdir()
    name = _name(page)
    program = [{"kind": b.kind, "code": b.code, "page": name, "line": b.line} for b in blocks]
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("run_page.py"))],
        input=json.dumps(program),
        capture_output=True,
        text=True,
        cwd=folder,
        env=_environment(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    for block, printed in zip(blocks, json.loads(done.stdout), strict=False):
        where = f"{name}:{block.line}"
        assert isinstance(printed, str), f"{where}: {printed['error']}"
        if block.expected is not None:
            assert printed == block.expected, where


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_block_names_its_language(page: Path) -> None:
    blocks = blocks_of(page.read_text(encoding="utf-8"))
    assert {block.kind for block in blocks} <= LANGUAGES
    assert all(block.kind in RUN for block in blocks if block.reason is not None)


def test_every_command_of_the_help_is_in_the_docs() -> None:
    assert "$ lithi-datasets --help\n" in (ROOT / "README.md").read_text(encoding="utf-8")
    shown = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for command in app.registered_commands:
        name = command.name or getattr(command.callback, "__name__", "")
        assert f"$ lithi-datasets {name} --help\n" in shown


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_a_page_with_a_wrong_output_or_a_failing_block_is_noticed() -> None:
    text = (
        "```python\nprint(1)\n```\n\n```text\n2\n```\n<!-- not run: no -->\n```console\n$ x\n```\n"
    )
    python, shown, console = blocks_of(text)
    assert (python.expected, shown.kind, python.line) == ("2\n", "text", 1)
    assert (console.reason, console.expected) == ("no", None)
