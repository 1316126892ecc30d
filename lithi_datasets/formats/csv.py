"""The `csv` reader: RFC 4180 to the letter, each cell exactly what the manifest declares.

pyarrow's CSV parser splits a block into cells, all of them as text, so it guesses nothing; numpy
checks beforehand what it would let pass: quotes inside a field, text behind a closing quote, a bare
CR. `text_columns` makes values of the columns. Whatever is not plainly right is read again cell by
cell by `_Cells`, which says what is wrong, and where.

What the spec leaves open: an empty line is a record of one empty cell, so a null in a table of one
column and otherwise the wrong number of cells; the one at the very end is ignored, in either. A
quoted number is a number. A CR outside quotes stands before an LF, or the part does not decode. The
file of 0 bytes has no header, so it lacks every column.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.types as patypes

from lithi_datasets.errors import ManifestInvalid, SchemaMismatch
from lithi_datasets.formats.compression import text_chunks
from lithi_datasets.formats.text import Parser, ValueProblem, mismatch, shown, text_parser
from lithi_datasets.formats.text_blocks import (
    Block,
    Bytes,
    Ends,
    QuotedScan,
    blocks,
    broken,
    decoded,
    delivered,
    plan,
    without_bom,
)
from lithi_datasets.formats.text_columns import Unsure, build, from_strings

if TYPE_CHECKING:
    from lithi_datasets.formats import PartSource, ReadRequest

__all__ = ["read"]

_BOM: Final = b"\xef\xbb\xbf"
_UNQUOTED: Final = re.compile(r'[^,"\r\n]*')
_LINE_END: Final = np.isin(np.arange(256), [ord("\n"), ord("\r")])
_OVERRUNS: Final = int(pa.__version__.partition(".")[0]) < 20
"""Old pyarrow writes past a buffer where a record has too many cells (apache/arrow#45497)."""

_MOST_COLUMNS: Final = 100_000
"""At some millions of columns, pyarrow's 32-bit counts of cells overflow (apache/arrow#50275)."""


def read(source: PartSource, request: ReadRequest) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a CSV part as batches of the declared schema (spec, section 6).

    Raises:
        PartDecodeError: the stream, the UTF-8 or the quoting is broken, or a record is too long.
        SchemaMismatch: the header, a number of cells or a value is not what the manifest declares.
        ManifestInvalid: the manifest declares a list or a struct, which CSV can't hold.
    """
    for field in request.declared:
        if patypes.is_nested(field.type):
            raise ManifestInvalid(
                f"The field {field.name!r} is a list or a struct, and a part is CSV.",
                path=request.path,
                expected="a primitive type",
                found=str(field.type),
            )
    batches = _batches(source, request)
    return delivered(batches, batch_rows=request.batch_rows)


def _batches(source: PartSource, request: ReadRequest) -> Iterator[pa.RecordBatch]:
    bounds = plan(request.declared, request.batch_rows)
    text = without_bom(text_chunks(source, compression=request.compression, path=request.path))
    found = blocks(text, QuotedScan(), bounds, request.path)
    first = next(found, None)
    if first is None:
        raise SchemaMismatch(
            "The part has no header line.",
            path=request.path,
            expected=_names(request.declared.names),
            found="no text",
        )
    header, rest = _split_header(first)
    records = _Records(request.declared, _header(header, request), request.path)
    whole = map(_without_empty_last_line, chain([rest], found))
    yield from decoded(records.batch, (block for block in whole if len(block.ends)))


def _split_header(block: Block) -> tuple[Block, Block]:
    end = int(block.ends[0])
    header = replace(block, text=block.text[:end], ends=block.ends[:1])
    line = block.line + header.text.count(b"\n")
    rest = replace(block, text=block.text[end:], ends=block.ends[1:] - end, line=line)
    return header, rest


def _without_empty_last_line(block: Block) -> Block:
    if not block.last or not len(block.ends):
        return block
    start = int(block.ends[-2]) if len(block.ends) > 1 else 0
    if block.text[start:] not in (b"\n", b"\r\n"):
        return block
    return replace(block, text=block.text[:start], ends=block.ends[:-1])


def _header(block: Block, request: ReadRequest) -> list[str]:
    """The names of the header line, each of the declared ones once."""
    declared = request.declared.names
    cells = _Cells(block, request.path, most=len(declared) + 1)
    names = [cell.text for cell in next(iter(cells))[1]]
    counts, known = Counter(names), frozenset(declared)
    wrong = {
        "has a name twice": [name for name, count in counts.items() if count > 1],
        "has a column that the manifest does not declare": [n for n in counts if n not in known],
        "lacks a column": [name for name in declared if name not in counts],
    }
    for problem, culprits in wrong.items():
        if culprits:
            raise SchemaMismatch(
                f"Line {block.line}: the header {problem}: {_names(culprits)}.",
                path=request.path,
                expected=_names(declared),
                found=_names(names),
            )
    return names


def _names(names: Sequence[str]) -> str:
    few = [shown(name) for name in names[:20]]
    return ", ".join([*few, f"and {len(names) - 20} more"] if len(names) > 20 else few)


class _Records:
    """Reads blocks of records as batches of one declared schema, for one header."""

    def __init__(self, declared: pa.Schema, header: Sequence[str], path: str) -> None:
        self._declared = declared
        self._path = path
        self._header = header
        fields = [declared.field(name) for name in header]
        self._parsers: list[Parser] = [text_parser(field.type, words=True) for field in fields]
        self._quoted_empty = [_takes_empty(field.type) for field in fields]
        types = {field.name: _text_type(field.type) for field in fields}
        self._ascii = _conversion(types, check_utf8=False)
        self._utf8 = _conversion(types, check_utf8=True)
        self._parse = pa.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)

    def batch(self, block: Block) -> pa.RecordBatch:
        try:
            return self._read_fast(block)
        except (Unsure, pa.ArrowException):
            return self._read_exactly(block)

    def _read_fast(self, block: Block) -> pa.RecordBatch:
        _check_structure(block, columns=len(self._header))
        table = pa.csv.read_csv(
            pa.BufferReader(block.text),
            # One block, so that no record is cut, and no threads, which outlive an iterator.
            read_options=pa.csv.ReadOptions(
                column_names=self._header, use_threads=False, block_size=len(block.text) + 1
            ),
            parse_options=self._parse,
            convert_options=self._ascii if block.text.isascii() else self._utf8,
        )
        if table.num_rows != len(block.ends):
            raise Unsure
        arrays = []
        for field in self._declared:
            column = table[field.name]
            if column.num_chunks != 1:
                raise Unsure
            arrays.append(from_strings(column.chunk(0), field.type, words=True))
        return pa.RecordBatch.from_arrays(arrays, schema=self._declared)

    def _read_exactly(self, block: Block) -> pa.RecordBatch:
        columns: dict[str, list[Any]] = {name: [] for name in self._header}
        wanted = len(self._header)
        for line, cells in _Cells(block, self._path, most=wanted + 1):
            if len(cells) != wanted:
                raise SchemaMismatch(
                    f"Line {line}: the record has the wrong number of cells.",
                    path=self._path,
                    expected=wanted,
                    found=len(cells) if len(cells) < wanted else f"{len(cells)} or more",
                )
            for index, (name, cell) in enumerate(zip(self._header, cells, strict=True)):
                columns[name].append(self._value(index, cell))
        arrays = [build(columns[field.name], field.type) for field in self._declared]
        return pa.RecordBatch.from_arrays(arrays, schema=self._declared)

    def _value(self, index: int, cell: _Cell) -> Any:
        if not cell.text and not cell.quoted:
            return None
        try:
            if not cell.text and not self._quoted_empty[index]:
                declared = self._declared.field(self._header[index]).type
                raise ValueProblem("the empty string is no value of this type", declared, '""')
            return self._parsers[index](cell.text)
        except ValueProblem as problem:
            if cell.text.strip() != cell.text:
                problem.problem += ", there is space around it"
            problem.at = self._header[index]
            raise mismatch(self._path, cell.line, problem) from None


def _conversion(types: dict[str, pa.DataType], *, check_utf8: bool) -> pa.csv.ConvertOptions:
    """Every cell as its text; these settings together keep an empty cell apart from `""`."""
    return pa.csv.ConvertOptions(
        column_types=types,
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        check_utf8=check_utf8,
    )


def _takes_empty(type: pa.DataType) -> bool:
    return bool(_is_string(type) or patypes.is_binary(type) or patypes.is_large_binary(type))


def _is_string(type: pa.DataType) -> bool:
    return bool(patypes.is_string(type) or patypes.is_large_string(type))


def _text_type(type: pa.DataType) -> pa.DataType:
    return type if _is_string(type) else pa.string()


def _check_structure(block: Block, *, columns: int) -> None:
    """Raise `Unsure` unless pyarrow sees the records of this block as RFC 4180 has them."""
    text = block.text
    # pyarrow misses delimiters near a NUL (apache/arrow#50481) and would drop a BOM, which is text
    # where it does not begin the part.
    if not block.well_formed or b"\0" in text or text.startswith(_BOM) or columns > _MOST_COLUMNS:
        raise Unsure
    data = np.frombuffer(text, np.uint8)
    starts = np.concatenate([[0], block.ends[:-1]])
    if columns > 1 and _LINE_END[data[starts]].any():
        raise Unsure  # an empty line, which pyarrow would make a row of nulls
    if _OVERRUNS:
        _check_cells(data, starts, block.ends, columns)


def _check_cells(data: Bytes, starts: Ends, ends: Ends, columns: int) -> None:
    """Raise `Unsure` unless every record has as many cells as there are columns."""
    quotes = np.flatnonzero(data == ord('"'))
    commas = np.flatnonzero(data == ord(","))
    commas = commas[np.searchsorted(quotes, commas) % 2 == 0]
    if len(commas) != len(ends) * (columns - 1):
        raise Unsure
    if columns > 1:
        # As many as there have to be, and between the ends of each record its own.
        own = commas.reshape(len(ends), columns - 1)
        if (own[:, 0] < starts).any() or (own[:, -1] >= ends).any():
            raise Unsure


class _Cell(NamedTuple):
    text: str
    quoted: bool
    line: int


@dataclass(frozen=True)
class _Cells:
    """The records of a block cell by cell: (line, cells); the reference of how CSV is read.

    Of a record with more than `most` cells, which no caller takes, only so many are given, and
    nothing behind it: a line of commas would need eighty times its size.
    """

    block: Block
    path: str
    most: int

    def __iter__(self) -> Iterator[tuple[int, list[_Cell]]]:
        text = self._decoded()
        line, at = self.block.line, 0
        while at < len(text):
            first, cells = line, []
            more = True
            while more:
                cell, at, line = self._cell(text, at, line)
                cells.append(cell)
                more, at, line = self._delimiter(text, at, line)
                if more and len(cells) == self.most:
                    at, more = len(text), False
            yield first, cells

    def _decoded(self) -> str:
        try:
            return self.block.text.decode("utf-8")
        except UnicodeDecodeError as error:
            line = self.block.line + self.block.text.count(b"\n", 0, error.start)
            found = f"byte 0x{self.block.text[error.start]:02X}"
            raise broken(self.path, line, "this is not UTF-8", found=found) from None

    def _cell(self, text: str, at: int, line: int) -> tuple[_Cell, int, int]:
        """The cell that begins at a position, the position behind it, and its last line."""
        if text[at : at + 1] != '"':
            end = _UNQUOTED.match(text, at).end()  # type: ignore[union-attr] # it may be empty
            return _Cell(text[at:end], False, line), end, line
        end = at + 1
        while True:
            end = text.find('"', end)
            if end < 0:
                raise broken(self.path, line, "a quoted cell has no closing quote")
            if text[end + 1 : end + 2] != '"':
                break
            end += 2
        value = text[at + 1 : end].replace('""', '"')
        return _Cell(value, True, line), end + 1, line + text.count("\n", at, end)

    def _delimiter(self, text: str, at: int, line: int) -> tuple[bool, int, int]:
        """Whether another cell of the record follows, and where, and on which line."""
        if text.startswith(",", at):
            return True, at + 1, line
        if at == len(text):
            return False, at, line
        for end in ("\n", "\r\n"):
            if text.startswith(end, at):
                return False, at + len(end), line + 1
        if text.startswith("\r", at):
            raise broken(self.path, line, "a CR outside quotes is not followed by an LF")
        if text.startswith('"', at):
            raise broken(self.path, line, "a quote stands inside a cell that is not quoted")
        raise broken(self.path, line, "something follows a closing quote", found=shown(text[at]))
