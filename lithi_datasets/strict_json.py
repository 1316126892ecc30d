"""JSON as a manifest is allowed to be (spec, section 1), and its canonical form (section 2).

`json.loads` alone takes the last of two equal names, `NaN`, `1e400`, lone surrogates and integers
of any length. Here the C parser still does the work, with hooks that only say that something is
wrong; where it lies is looked for afterwards, in `json_faults`, so only a refused manifest pays.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, NoReturn

import rfc8785

from lithi_datasets.errors import ManifestInvalid, UsageError
from lithi_datasets.json_faults import explain, json_path, shown
from lithi_datasets.limits import MAX_INTEGER, Limits

__all__ = ["Document", "canonical", "json_path", "loads", "read", "shown"]

_BOM = b"\xef\xbb\xbf"
_CONTAINERS = frozenset({dict, list, tuple})
_KINDS = _CONTAINERS | {str, int, bool, type(None), float}
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_ASTRAL = re.compile("[\U00010000-\U0010ffff]")
# The numbers on which Python's repr and ECMAScript's Number::toString agree: both print the
# shortest digits that read back, and with a fraction and no exponent there is one way to set them.
_SAME_IN_ECMASCRIPT = re.compile(r"-?(?:0|[1-9][0-9]*)\.[0-9]*[1-9]")
_ENCODER = json.JSONEncoder(
    ensure_ascii=False,
    check_circular=False,
    allow_nan=False,
    sort_keys=True,
    separators=(",", ":"),
)


@dataclass(frozen=True)
class Document:
    """A parsed document.

    Args:
        value: of dicts, lists, strings, ints, floats, booleans and None.
        plain: whether the C encoder writes its canonical form; False where that is not known.
    """

    value: Any
    plain: bool


class _RefusedError(Exception):
    """Says that a rule is broken, not where; it never leaves this module."""


def loads(raw: bytes, *, path: str, limits: Limits) -> Any:
    """Return the value of a strict JSON document (spec, section 1).

    Args:
        raw: UTF-8, with or without one BOM.
        path: name of the file, for messages.
        limits: its `manifest_bytes` is checked before anything is parsed.

    Raises:
        ManifestInvalid: a rule is broken; `path` of the error is the JSON path.
    """
    return read(raw, path=path, limits=limits).value


def read(raw: bytes, *, path: str, limits: Limits) -> Document:
    """Do the same as `loads`, and tell what `canonical` would otherwise have to find out."""
    text = _decoded(raw, path, limits)
    odd_floats = False

    def real(token: str) -> float:
        nonlocal odd_floats
        value = float(token)
        if not math.isfinite(value):
            raise _RefusedError
        odd_floats = odd_floats or not _SAME_IN_ECMASCRIPT.fullmatch(repr(value))
        return value

    try:
        value = json.loads(
            text, object_pairs_hook=_members, parse_float=real, parse_constant=_constant
        )
        astral_names = _check_levels(
            value,
            limits,
            surrogates=_SURROGATE_ESCAPE.search(text) is not None,
            ascii_only=text.isascii(),
        )
    except (_RefusedError, ValueError, RecursionError) as error:
        raise explain(text, error, path=path, limits=limits) from error
    return Document(value, plain=not (odd_floats or astral_names))


def canonical(document: Any, *, plain: bool = False) -> bytes:
    """Return the RFC 8785 (JCS) form of a JSON value, as UTF-8.

    The C encoder writes it where it provably equals JCS: names are strings without characters
    beyond U+FFFF (then the order of UTF-16 units is that of code points), and each float prints in
    ECMAScript as in Python. Each member of an object is judged by itself; what is not plain goes
    through `rfc8785`.

    Args:
        document: of dicts, lists, tuples, strings, ints, floats, booleans and None.
        plain: that the C encoder will do is known, from `read`.

    Raises:
        ManifestInvalid: the value has no canonical form (NaN, a large integer, a name or a
            value that is not of JSON, nesting without end).
    """
    try:
        if plain or _is_plain(document):
            return _ENCODER.encode(document).encode()
        if type(document) is dict and all(type(name) is str for name in document):
            members = sorted(document.items(), key=lambda member: member[0].encode("utf-16-be"))
            return b"{%b}" % b",".join(
                b"%b:%b" % (rfc8785.dumps(name), _canonical_member(value))
                for name, value in members
            )
        return rfc8785.dumps(document)
    except (ValueError, TypeError, RecursionError) as error:
        raise ManifestInvalid(
            "The manifest has no canonical form",
            path="$",
            expected="objects, lists, strings, finite numbers, booleans and null",
            found=shown(str(error)),
        ) from error


def _decoded(raw: bytes, path: str, limits: Limits) -> str:
    if not isinstance(raw, (bytes, bytearray, memoryview)):
        raise UsageError(
            "A manifest is parsed from its bytes", expected="bytes", found=type(raw).__name__
        )
    view = memoryview(raw)
    if view.nbytes > limits.manifest_bytes:
        raise ManifestInvalid(
            f"{path} is too large for a manifest",
            path="$",
            expected=f"at most {limits.manifest_bytes} bytes",
            found=f"{view.nbytes} bytes",
        )
    start = len(_BOM) if bytes(view[: len(_BOM)]) == _BOM else 0
    try:
        return str(view[start:], "utf-8")
    except UnicodeDecodeError as error:
        raise ManifestInvalid(
            f"{path} is not UTF-8",
            path="$",
            expected="UTF-8, with one BOM at most",
            found=f"{error.reason} at byte {start + error.start}",
        ) from error


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _RefusedError
    return members


def _constant(token: str) -> NoReturn:
    raise _RefusedError(token)


def _levels(value: object) -> Iterator[tuple[list[Any], list[Any]]]:
    """Yield, level by level, the containers and the values in them; far faster than recursion."""
    containers: list[Any] = [value] if type(value) in _CONTAINERS else []
    while containers:
        values = list(
            chain.from_iterable(
                [each.values() if type(each) is dict else each for each in containers]
            )
        )
        yield containers, values
        containers = [each for each in values if type(each) in _CONTAINERS]


def _names(containers: list[Any]) -> set[Any]:
    return set(chain.from_iterable([each for each in containers if type(each) is dict]))


def _check_levels(value: object, limits: Limits, *, surrogates: bool, ascii_only: bool) -> bool:
    """Check depth, integers and surrogates; return whether a name has a character beyond U+FFFF."""
    astral = False
    names_matter = surrogates or not ascii_only
    _check_values([value], surrogates=surrogates)
    for level, (containers, values) in enumerate(_levels(value), 1):
        if level > limits.nesting_levels:
            raise _RefusedError
        _check_values(values, surrogates=surrogates)
        if names_matter:
            names = "".join(_names(containers))
            if _SURROGATE.search(names):
                raise _RefusedError
            astral = astral or _ASTRAL.search(names) is not None
    return astral


def _check_values(values: list[Any], *, surrogates: bool) -> None:
    integers = [each for each in values if type(each) is int]
    if integers and not -MAX_INTEGER <= min(integers) <= max(integers) <= MAX_INTEGER:
        raise _RefusedError
    if surrogates and _SURROGATE.search(" ".join([v for v in values if type(v) is str])):
        raise _RefusedError


def _is_plain(document: object) -> bool:
    """Tell whether the C encoder writes the canonical form (see `canonical`)."""
    if type(document) not in _KINDS or not _plain_values([document]):
        return False
    # Beyond this many levels the document is broken, maybe a ring; rfc8785 will say so.
    for level, (containers, values) in enumerate(_levels(document)):
        names = _names(containers)
        if level > 1000 or not _plain_values(values):
            return False
        if not all(type(name) is str for name in names) or _ASTRAL.search("".join(names)):
            return False
    return True


def _plain_values(values: list[Any]) -> bool:
    kinds = set(map(type, values))
    if not kinds <= _KINDS:
        return False
    if int in kinds and any(abs(each) > MAX_INTEGER for each in values if type(each) is int):
        return False
    return float not in kinds or all(
        _SAME_IN_ECMASCRIPT.fullmatch(repr(each)) for each in values if type(each) is float
    )


def _canonical_member(value: object) -> bytes:
    if _is_plain(value):
        return _ENCODER.encode(value).encode()
    return rfc8785.dumps(value)  # type: ignore[arg-type]
