"""The `jsonl` reader: one JSON object a line, each value exactly what the manifest declares.

Every block of lines is first given to pyarrow's JSON parser, with a schema, in its strictest mode.
That parser refuses a duplicate or unknown key at any depth, a number where a string is declared, a
fraction where an integer is, lone surrogates and control characters. It is too lenient in ways that
are cheap to see from outside, and `_read_fast` looks at each: objects that share a line or span
lines, NUL, invalid UTF-8, `NaN` and numbers that become infinite. Whatever is not plainly right is
read again line by line with the standard library's parser, which says what is wrong, and where.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.json
import pyarrow.types as patypes

from lithi_datasets.formats.compression import text_chunks
from lithi_datasets.formats.memory import check_room, element_bytes, holds_fixed_lists
from lithi_datasets.formats.text import ValueProblem, mismatch, shown, text_parser
from lithi_datasets.formats.text_blocks import (
    Block,
    LineScan,
    Plan,
    blocks,
    broken,
    decoded,
    delivered,
    plan,
    without_bom,
)
from lithi_datasets.formats.text_columns import Unsure, build, from_json, json_schema
from lithi_datasets.gather import row_bytes

if TYPE_CHECKING:
    from lithi_datasets.formats import PartSource, ReadRequest

__all__ = ["read"]

_BLANK = b" \t\r\n"


def read(source: PartSource, request: ReadRequest) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a JSONL part as batches of the declared schema (spec, section 6).

    Raises:
        PartDecodeError: the stream, the UTF-8 or the JSON is broken, or a line is too long.
        SchemaMismatch: a value, or a key, is not what the manifest declares.
    """
    batches = _batches(source, request)
    return delivered(batches, batch_rows=request.batch_rows)


def _batches(source: PartSource, request: ReadRequest) -> Iterator[pa.RecordBatch]:
    bounds = plan(request.declared, request.batch_rows)
    text = without_bom(text_chunks(source, compression=request.compression, path=request.path))
    found = blocks(text, LineScan(), bounds, request.path)
    lines = _Lines(request.declared, request.path)
    return decoded(lines.batch, _without_blank(found, bounds, request.path))


def _without_blank(blocks: Iterator[Block], bounds: Plan, path: str) -> Iterator[Block]:
    """The blocks that do not consist of blank lines alone."""
    blank = 0
    for block in blocks:
        if not _is_blank(block.text):
            blank = 0
            yield block
            continue
        blank += len(block.text)
        if blank > bounds.record_bytes:
            problem = "there are more blank lines in a row than the reader takes"
            expected = f"at most {bounds.record_bytes} bytes of blank text"
            raise broken(path, block.line, problem, expected=expected)


def _is_blank(text: bytes) -> bool:
    return text.isspace() and b"\v" not in text and b"\f" not in text


class _Lines:
    """Reads blocks of lines as batches of one declared schema."""

    def __init__(self, declared: pa.Schema, path: str) -> None:
        self._declared = declared
        self._path = path
        self._options = pa.json.ParseOptions(
            explicit_schema=json_schema(declared),
            newlines_in_values=False,
            unexpected_field_behavior="error",
        )
        self._names = declared.names
        self._row_bytes = sum(map(row_bytes, declared.types))
        wide = filter(holds_fixed_lists, declared.types)
        self._null_bytes = max(map(element_bytes, wide), default=0)
        self._parse = _struct_parser(pa.struct(list(declared)))

    def batch(self, block: Block) -> pa.RecordBatch:
        """The rows of a block."""
        needed = len(block.ends) * self._row_bytes
        if self._null_bytes:
            needed += block.text.count(b"null") * self._null_bytes
        check_room(needed, self._path)
        try:
            return self._read_fast(block)
        except (Unsure, pa.ArrowException):
            return self._read_exactly(block)

    def _read_fast(self, block: Block) -> pa.RecordBatch:
        rows = _count_objects(block)
        text = pa.py_buffer(block.text)
        if b"\0" in block.text:
            raise Unsure
        if not block.text.isascii():
            _check_utf8(text)
        table = pa.json.read_json(
            pa.BufferReader(text),
            # One block, so that no value is cut, and no threads, which outlive an iterator.
            read_options=pa.json.ReadOptions(use_threads=False, block_size=len(block.text) + 1),
            parse_options=self._options,
        )
        if table.num_rows != rows:
            raise Unsure
        arrays = []
        for field in self._declared:
            column = table[field.name]
            if column.num_chunks != 1 or column.chunk(0).offset:
                raise Unsure
            arrays.append(from_json(column.chunk(0), field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._declared)

    def _read_exactly(self, block: Block) -> pa.RecordBatch:
        columns: list[list[Any]] = [[] for _ in self._declared]
        start = 0
        for line, end in enumerate(block.ends.tolist(), start=block.line):
            text = block.text[start:end].strip(_BLANK)
            start = end
            if text:
                row = self._row(text, line)
                for column, name in zip(columns, self._names, strict=True):
                    column.append(row.get(name))
        arrays = [
            build(values, field.type) for values, field in zip(columns, self._declared, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._declared)

    def _row(self, text: bytes, line: int) -> dict[str, Any]:
        document = _decode(text, line, self._path)
        if not isinstance(document, _Object):
            raise broken(self._path, line, "this is not a JSON object", found=_kind(document))
        try:
            return self._parse(document)
        except ValueProblem as problem:
            raise mismatch(self._path, line, problem) from None
        except _LoneSurrogate as lone:
            raise broken(self._path, line, "a lone surrogate is no text", found=lone) from None


def _count_objects(block: Block) -> int:
    """How many lines hold an object; the others are blank.

    If each line that is not blank begins with `{` and ends with `}`, each line break between two of
    them stands between two objects: nowhere else in JSON does `{` follow `}`. If there are as many
    objects as such lines as well, each line holds exactly one. No other text may reach pyarrow: a
    `null` before the first object ends the process (apache/arrow#47409).

    Raises:
        Unsure: a line is neither blank nor begins and ends so.
    """
    data = np.frombuffer(block.text, np.uint8)
    starts = np.concatenate([[0], block.ends[:-1]])
    ends = block.ends - (data[block.ends - 1] == ord("\n"))
    ends -= (ends > starts) & (data[ends - 1] == ord("\r"))
    plain = (ends - starts > 1) & (data[starts] == ord("{")) & (data[ends - 1] == ord("}"))
    rows = int(np.count_nonzero(plain))
    for line in np.flatnonzero(~plain & (ends > starts)).tolist():
        text = block.text[starts[line] : ends[line]].strip(_BLANK)
        if text:
            if not (text.startswith(b"{") and text.endswith(b"}")):
                raise Unsure
            rows += 1
    return rows


def _check_utf8(text: pa.Buffer) -> None:
    """Raise `pa.ArrowInvalid` unless the text is UTF-8; strings from it are then, too."""
    offsets = pa.py_buffer(np.array([0, text.size], np.int64))
    pa.Array.from_buffers(pa.large_string(), 1, [None, offsets, text]).validate(full=True)


class _Number(NamedTuple):
    """A JSON number as it is written."""

    text: str
    whole: bool


class _Object:
    """A JSON object; `twice` is a key that it has twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        self.members = dict(pairs)
        self.twice: str | None = None
        if len(self.members) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            self.twice = next(key for key, count in counts.items() if count > 1)


class _NotJson(Exception):
    """Something that Python's parser takes and JSON does not have."""


class _LoneSurrogate(Exception):
    """Half of a surrogate pair, written as an escape."""


def _constant(word: str) -> NoReturn:
    raise _NotJson(f"{word} is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_Object,
    parse_int=lambda text: _Number(text, True),
    parse_float=lambda text: _Number(text, False),
    parse_constant=_constant,
)


def _decode(text: bytes, line: int, path: str) -> Any:
    try:
        return _DECODER.decode(text.decode("utf-8"))
    except UnicodeDecodeError as error:
        found = f"byte 0x{text[error.start]:02X}, {error.start + 1} bytes into the text of the line"
        raise broken(path, line, "this is not UTF-8", found=found) from None
    except json.JSONDecodeError as error:
        found = f"{error.msg}, at character {error.pos + 1} of the text of the line"
        raise broken(path, line, "this is not JSON", found=found) from None
    except _NotJson as error:
        raise broken(path, line, "this is not JSON", found=error) from None
    except RecursionError:
        raise broken(
            path, line, "the JSON is nested too deep", found="hundreds of levels"
        ) from None


def _kind(value: object) -> str:
    """What a JSON value is, for messages."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return f"the string {shown(value)}"
    if isinstance(value, _Number):
        return f"the number {shown(value.text)[1:-1]}"
    return f"an array of {len(value)}" if isinstance(value, list) else "an object"


def _json_parser(type: pa.DataType) -> Callable[[Any], Any]:
    """The parser of a type's JSON values other than null."""
    if patypes.is_struct(type):
        return _struct_parser(type)
    if patypes.is_list(type) or patypes.is_large_list(type) or patypes.is_fixed_size_list(type):
        return _list_parser(type)
    if patypes.is_boolean(type):
        return _exactly(bool, "true or false", type)
    if patypes.is_integer(type) or patypes.is_duration(type) or patypes.is_floating(type):
        return _number_parser(type)
    return _string_parser(type)


def _exactly(kind: type, wanted: str, declared: pa.DataType) -> Callable[[Any], Any]:
    def parse(value: Any) -> Any:
        if type(value) is not kind:
            raise ValueProblem(f"this is not {wanted}", declared, _kind(value))
        return value

    return parse


def _number_parser(type: pa.DataType) -> Callable[[Any], Any]:
    number = _exactly(_Number, "a JSON number", type)
    parse_text = text_parser(type)

    def parse(value: Any) -> Any:
        token = number(value)
        if not token.whole and not patypes.is_floating(type):
            problem = "a number with a fraction or an exponent is not an integer"
            raise ValueProblem(problem, type, _kind(token))
        return parse_text(token.text)

    return parse


def _string_parser(type: pa.DataType) -> Callable[[Any], Any]:
    string = _exactly(str, "a JSON string", type)
    parse_text = text_parser(type)

    def parse(value: Any) -> Any:
        text = string(value)
        if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            raise _LoneSurrogate(shown(text))
        return parse_text(text)

    return parse


def _list_parser(type: pa.DataType) -> Callable[[Any], Any]:
    array = _exactly(list, "a JSON array", type)
    parse_item = _json_parser(type.value_type)
    size = type.list_size if patypes.is_fixed_size_list(type) else None

    def parse(value: Any) -> list[Any]:
        items: list[Any] = array(value)
        if size is not None and len(items) != size:
            raise ValueProblem(f"this is not an array of {size}", type, _kind(items))
        at = 0
        try:
            for at, item in enumerate(items):
                items[at] = None if item is None else parse_item(item)
        except ValueProblem as problem:
            problem.at = f"[{at}]{problem.at}"
            raise
        return items

    return parse


def _struct_parser(type: pa.DataType) -> Callable[[Any], dict[str, Any]]:
    parsers = {field.name: _json_parser(field.type) for field in type}
    names = f"the keys {shown(', '.join(parsers))[1:-1]}"

    def parse(value: Any) -> dict[str, Any]:
        if not isinstance(value, _Object):
            raise ValueProblem("this is not a JSON object", type, _kind(value))
        if value.twice is not None:
            raise ValueProblem("the key stands twice", names, "it twice", f".{value.twice}")
        members = value.members
        name = ""
        try:
            for name, item in members.items():
                if name not in parsers:
                    raise ValueProblem("the manifest declares no such field", names, _kind(item))
                members[name] = None if item is None else parsers[name](item)
        except ValueProblem as problem:
            problem.at = f".{name}{problem.at}"
            raise
        return members

    return parse
