"""The paths that a manifest may bind (spec, section 5): the same rules on every system.

A manifest is written on one system and read on another, so a path has to name one file, inside the
bundle, on all of them: POSIX, Windows, case-insensitive and normalising file systems, object stores
and URLs. Every rule is checked on the text alone, before any storage is touched.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from lithi_datasets.limits import MAX_PATH_BYTES

__all__ = ["MANIFEST_NAME", "PATH_PATTERN", "PathFault", "first_fault", "path_fault"]

MANIFEST_NAME = "result-manifest.json"

# Text and not code points in a class, as `PATH_PATTERN` is published in the JSON Schema.
_CONTROL = r"\u0000-\u001f\u007f-\u009f"
_SEGMENT = rf"(?![^/]*[. ](?:/|$))[^/\\:{_CONTROL}]+"
# In Python `$` matches before a newline at the end too.
PATH_PATTERN = rf"^{_SEGMENT}(?:/{_SEGMENT})*$(?!\n)"
"""What of the rules one ECMA-262 expression can say."""

_RESERVED = re.compile(
    r"(?:con|prn|aux|nul|conin\$|conout\$|(?:com|lpt)[0-9¹²³]) *(?:\.|$)", re.IGNORECASE | re.ASCII
)
# Nearly every path of a real manifest is of this kind, and breaks no rule but, maybe, the length.
_PLAIN_SEGMENT = r"(?!(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:[./]|$))[a-z0-9_-]+(?:\.[a-z0-9_-]+)*"
_PLAIN = re.compile(rf"{_PLAIN_SEGMENT}(?:/{_PLAIN_SEGMENT})*", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True)
class PathFault:
    """A path that breaks a rule.

    Args:
        index: which of the paths.
        expected: the rule.
        found: the path, or the two that do not go together.
    """

    index: int
    expected: str
    found: str


def path_fault(path: str) -> str | None:
    """Return the rule that a path breaks by itself, or None."""
    if not path or len(path.encode("utf-8", "surrogatepass")) > MAX_PATH_BYTES:
        return f"a path of 1 to {MAX_PATH_BYTES} bytes of UTF-8"
    for broken, rule in (
        (path.startswith("/"), "a relative path"),
        ("\\" in path, "a path without backslashes"),
        (":" in path, "a path without colons"),
        (_is_unprintable(path), "a path without control characters"),
        (not unicodedata.is_normalized("NFC", path), "a path in Unicode NFC"),
    ):
        if broken:
            return rule
    return next(filter(None, map(_segment_fault, path.split("/"))), None)


def _is_unprintable(path: str) -> bool:
    # Cc: C0, DEL and C1; Cs: a lone surrogate, which only a caller in Python can bring.
    return any(unicodedata.category(character) in {"Cc", "Cs"} for character in path)


def _segment_fault(segment: str) -> str | None:
    if not segment:
        return "a path without empty segments"
    if segment in {".", ".."}:
        return 'a path without "." and ".." segments'
    if segment[-1] in ". ":
        return "a path without segments that end in a dot or a space"
    if _RESERVED.match(segment):
        return "a path without names that Windows reserves"
    return None


def first_fault(paths: Sequence[str]) -> PathFault | None:
    """Return the first rule that the paths of one manifest break, each or together, or None.

    Args:
        paths: of all parts and attachments; they share one namespace.

    100,000 paths cost one pass of a regular expression and one sort.
    """
    if not all(map(_PLAIN.fullmatch, paths)) or max(map(len, paths), default=0) > MAX_PATH_BYTES:
        for index, path in enumerate(paths):
            expected = path_fault(path)
            if expected is not None:
                return PathFault(index, expected, path)
    return _collision(paths)


def _folded(paths: Sequence[str]) -> list[str]:
    """Make equal what some file system takes for equal, with NUL after each segment.

    NUL is in no path and sorts before every other character: what is in a folder, and what equals
    it, follows it at once in a sorted list, and starts with it.
    """
    # One text instead of many is folded fast, and a newline, in no path either, joins nothing.
    folded = "\n".join(paths).casefold()
    if not folded.isascii():
        folded = unicodedata.normalize("NFC", folded)
    return (folded.replace("/", "\0").replace("\n", "\0\n") + "\0").split("\n")


def _collision(paths: Sequence[str]) -> PathFault | None:
    manifest, *folded = _folded([MANIFEST_NAME, *paths])
    ordered = sorted([manifest, *folded])
    if not any(map(str.startswith, ordered[1:], ordered)):
        return None
    outer, inner = next(pair for pair in pairwise(ordered) if pair[1].startswith(pair[0]))
    if manifest in {outer, inner}:
        index = folded.index(inner if outer == manifest else outer)
        return PathFault(index, f"a path other than {MANIFEST_NAME}, in any case", paths[index])
    first = folded.index(outer)
    second = folded.index(inner, first + 1 if outer == inner else 0)
    if outer == inner:
        expected = "paths that differ after Unicode NFC and case-folding"
    else:
        expected = "a path that is not a folder of another"
    later, earlier = max(first, second), min(first, second)
    return PathFault(later, expected, f"{paths[later]} beside {paths[earlier]}")
