"""The sample: a real result bundle of 1,797 handwritten digits, which ships with the package.

`digits/logs/run.txt` in it tells how it was made; `docs/sample.md` describes its columns.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["path"]


def path() -> Path:
    """The folder of the sample bundle; never write into it."""
    return Path(__file__).parent / "digits"
