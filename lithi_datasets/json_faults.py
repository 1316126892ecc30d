"""Where a refused JSON document breaks the rules (spec, section 1), and how a message says so.

Only a refused document comes here. The strict parse has to be fast; this has to be right, and to
name the first fault in the order of the document.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable

from lithi_datasets.errors import ManifestInvalid
from lithi_datasets.limits import MAX_INTEGER, Limits

__all__ = ["explain", "json_path", "shown"]

_SHOWN_CHARACTERS = 80
_BARE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{,79}")
_SPACE = re.compile(r"[ \t\n\r]*")
_INTEGER = re.compile(r"-?[0-9]+")
_SURROGATE = re.compile("[\ud800-\udfff]")
_INTEGER_DIGITS = len(str(MAX_INTEGER))


class _Token(str):
    """A number, or a constant that is none, as it stands in the document."""

    __slots__ = ()


_SCALARS = json.JSONDecoder(parse_int=_Token, parse_float=_Token, parse_constant=_Token)


def json_path(steps: Iterable[str | int]) -> str:
    """Render member names and list indexes as `$.parts[3].path`."""
    rendered = ["$"]
    for step in steps:
        if isinstance(step, int):
            rendered.append(f"[{step}]")
        elif _BARE_NAME.fullmatch(step):
            rendered.append(f".{step}" if len(step) <= _SHOWN_CHARACTERS else f"[{shown(step)}]")
        else:
            rendered.append(f"[{shown(step)}]")
    return "".join(rendered)


def shown(value: object) -> str:
    """Render a found value for a message: as JSON, cut where it is long, no whole container."""
    if isinstance(value, str):
        cut = value[:_SHOWN_CHARACTERS]
        rest = len(value) - len(cut)
        # ASCII, so that a hostile control or bidirectional character is seen and not obeyed.
        return json.dumps(cut) + (f"… and {rest} characters more" if rest else "")
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, dict):
        return f"an object of {len(value)} member{'s' * (len(value) != 1)}"
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)} item{'s' * (len(value) != 1)}"
    if isinstance(value, (int, float)) and abs(value) < 10**_SHOWN_CHARACTERS:
        return repr(value)
    return f"a value of type {type(value).__name__}"


def explain(text: str, error: Exception, *, path: str, limits: Limits) -> ManifestInvalid:
    """Return the error for the first violation in a document that the strict parse refused.

    Args:
        text: the document.
        error: what the strict parse raised; a `JSONDecodeError` says where the syntax ends.
        path: name of the file, for the message.
        limits: its `nesting_levels` holds.
    """
    syntax = error if isinstance(error, json.JSONDecodeError) else None
    scanner = _Scanner(text, limits, stop=len(text) if syntax is None else syntax.pos)
    fault = scanner.first_fault()
    if fault is None and syntax is not None:
        where = f"line {syntax.lineno}, column {syntax.colno}"
        fault = "does not parse", "one JSON object (RFC 8259)", f"{_syntax(syntax)}, at {where}"
    if fault is None:
        fault = "cannot be parsed here", "a stack deep enough for it", str(error)
    problem, expected, found = fault
    return ManifestInvalid(
        f"{path} is not strict JSON: it {problem}",
        path=json_path(scanner.steps()),
        expected=expected,
        found=found,
    )


def _syntax(error: json.JSONDecodeError) -> str:
    rest = error.doc[error.pos : error.pos + _SHOWN_CHARACTERS]
    if not error.doc.strip():
        return "nothing"
    if error.doc.startswith("\ufeff"):
        return "a second BOM"
    if error.msg == "Extra data":
        return f"more after the end, {shown(rest)}"
    return f"{shown(rest) if rest else 'the end'} ({error.msg})"


class _Frame:
    """An object or a list that is open: its names so far, and the step to its current value."""

    def __init__(self, *, is_object: bool) -> None:
        self.is_object = is_object
        self.wants_name = is_object
        self.names: set[str] = set()
        self.step: str | int | None = None if is_object else 0

    def next(self) -> None:
        """Pass a comma."""
        self.wants_name = self.is_object
        if isinstance(self.step, int):
            self.step += 1


_Fault = tuple[str, str, str]


class _Scanner:
    """Walks the tokens of a document up to its first fault, and knows the path there."""

    def __init__(self, text: str, limits: Limits, *, stop: int) -> None:
        self._text = text
        self._limits = limits
        self._stop = stop
        self._open: list[_Frame] = []

    def steps(self) -> list[str | int]:
        """Return the path to the token at which the walk stopped."""
        return [frame.step for frame in self._open if frame.step is not None]

    def first_fault(self) -> _Fault | None:
        """Return what is wrong, what is expected and what is found; None if only the syntax is."""
        position = 0
        while True:
            position = self._after_space(position)
            if position >= self._stop:
                return None
            mark = self._text[position]
            if mark in "{}[],:":
                fault = self._structure(mark)
                position += 1
            else:
                try:
                    value, position = _SCALARS.raw_decode(self._text, position)
                except ValueError:
                    return None
                fault = self._scalar(value)
            if fault is not None:
                return fault

    def _after_space(self, position: int) -> int:
        match = _SPACE.match(self._text, position)
        return position if match is None else match.end()

    def _structure(self, mark: str) -> _Fault | None:
        if mark in "{[":
            levels = self._limits.nesting_levels
            if len(self._open) == levels:
                return "is nested too deeply", f"at most {levels} levels", f"level {levels + 1}"
            self._open.append(_Frame(is_object=mark == "{"))
        elif mark in "}]":
            del self._open[-1:]
        elif mark == "," and self._open:
            self._open[-1].next()
        return None

    def _scalar(self, value: object) -> _Fault | None:
        if isinstance(value, _Token):
            return _number_fault(value)
        if not isinstance(value, str):
            return None
        frame = self._open[-1] if self._open else None
        if frame is not None and frame.wants_name:
            frame.wants_name = False
            frame.step = value
            if value in frame.names:
                return "names a member twice", "each member name once in an object", shown(value)
            frame.names.add(value)
        if _SURROGATE.search(value):
            return "holds a lone surrogate", "Unicode text", shown(value)
        return None


def _number_fault(token: str) -> _Fault | None:
    if _INTEGER.fullmatch(token):
        small = len(token.lstrip("-")) <= _INTEGER_DIGITS and abs(int(token)) <= MAX_INTEGER
        expected = f"an integer of magnitude at most {MAX_INTEGER}"
        return None if small else ("holds an integer that is too large", expected, _cut(token))
    if math.isfinite(float(token)):
        return None
    return "holds a number that is not finite", "a finite double", _cut(token)


def _cut(token: str) -> str:
    rest = len(token) - _SHOWN_CHARACTERS
    return token if rest <= 0 else f"{token[:_SHOWN_CHARACTERS]}… and {rest} characters more"
