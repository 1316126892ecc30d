"""One table → the bytes of one part, in each format and compression of the spec, section 6.

`parquet` and `arrow` are pyarrow's own writing. `jsonl` and `csv` are the standard library's, line
by line, and share nothing with the package's readers. The same input gives the same bytes.
"""

from __future__ import annotations

import gzip
import itertools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import pyarrow as pa

from lithi_datasets.errors import UsageError
from lithi_datasets.plain_values import plain_values

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["compress", "encode", "suffix"]

_SUFFIXES = {"parquet": ".parquet", "arrow": ".arrow", "jsonl": ".jsonl", "csv": ".csv"}
_COMPRESSED = {None: "", "gzip": ".gz", "zstd": ".zst"}
_BOM = "\ufeff"
_ROWS = 8192
"""Rows that stand as Python values at a time: they take many times the memory of a table."""


@dataclass(frozen=True)
class _ArrowOptions:
    stream: bool = False
    batch_rows: int | None = None
    compression: str | None = None


@dataclass(frozen=True)
class _JsonlOptions:
    nulls: Literal["null", "absent"] = "null"
    ascii: bool = False
    newline: str = "\n"
    bom: bool = False
    members: int = 1


@dataclass(frozen=True)
class _CsvOptions:
    columns: Sequence[str] | None = None
    quote_all: bool = False
    newline: str = "\n"
    bom: bool = False
    members: int = 1


_Options = TypeVar("_Options", _ArrowOptions, _JsonlOptions, _CsvOptions)


def suffix(format: str, compression: str | None) -> str:
    """Return the file name ending of a format, such as `.jsonl.gz`."""
    if compression not in _COMPRESSED:
        raise UsageError("unknown compression", expected="gzip, zstd or None", found=compression)
    if format not in _SUFFIXES:
        raise UsageError("unknown format", expected=", ".join(_SUFFIXES), found=format)
    return _SUFFIXES[format] + _COMPRESSED[compression]


def encode(
    table: pa.Table, format: str, *, compression: str | None, options: Mapping[str, Any]
) -> bytes:
    """Return the stored bytes of a part.

    Args:
        table: the rows, in the physical types to write.
        format: `parquet`, `arrow`, `jsonl` or `csv`.
        compression: `gzip` or `zstd` for `jsonl` and `csv`, else `None`.
        options: as `PartSpec.options`.

    Raises:
        UsageError: an unknown format, compression or option, or a table that the format cannot
            hold; the message names the field.
    """
    suffix(format, compression)
    if format in ("parquet", "arrow"):
        if compression is not None:
            raise UsageError(f"{format} parts take no compression around them", found=compression)
        return _binary(table, format, options)
    if format == "jsonl":
        jsonl = _parse(_JsonlOptions, format, options)
        return _text(_jsonl_lines(table, jsonl), jsonl, compression)
    csv = _parse(_CsvOptions, format, options)
    return _text(_csv_lines(table, csv), csv, compression)


def compress(data: bytes, method: str | None, *, members: int = 1) -> bytes:
    """Compress `data` as a text part is compressed.

    Args:
        data: what a reader shall find.
        method: `gzip`, `zstd`, or `None` for no compression.
        members: number of gzip members or zstd frames, one after the other, that `data` is cut
            into (some are empty where `data` is shorter than that).

    Raises:
        UsageError: another method, or `members` below 1.
    """
    if members < 1:
        raise UsageError("at least one member holds the data", found=members)
    if method is None:
        return data
    size = -(-len(data) // members)
    pieces = [data[index * size : (index + 1) * size] for index in range(members)]
    if method == "gzip":
        return b"".join(gzip.compress(piece, mtime=0) for piece in pieces)
    if method == "zstd":
        return b"".join(_zstd_frame(piece) for piece in pieces)
    raise UsageError("unknown compression", expected="gzip, zstd or None", found=method)


def _zstd_frame(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue().to_pybytes())


def _parse(kind: type[_Options], format: str, options: Mapping[str, Any]) -> _Options:
    try:
        return kind(**options)
    except TypeError:
        known = ", ".join(kind.__dataclass_fields__)
        raise UsageError(
            f"unknown option of a {format} part", expected=known, found=", ".join(options)
        ) from None


def _binary(table: pa.Table, format: str, options: Mapping[str, Any]) -> bytes:
    sink = pa.BufferOutputStream()
    try:
        if format == "parquet":
            import pyarrow.parquet as pq

            pq.write_table(table, sink, **options)
        else:
            _write_ipc(table, sink, _parse(_ArrowOptions, format, options))
    except (pa.ArrowException, TypeError, NotImplementedError) as error:
        raise UsageError(f"the table does not fit a {format} part: {error}") from error
    return bytes(sink.getvalue().to_pybytes())


def _write_ipc(table: pa.Table, sink: pa.NativeFile, options: _ArrowOptions) -> None:
    new = pa.ipc.new_stream if options.stream else pa.ipc.new_file
    # A file holds one dictionary for each column; a stream may replace it between batches.
    ipc = pa.ipc.IpcWriteOptions(
        compression=options.compression, unify_dictionaries=not options.stream
    )
    with new(sink, table.schema, options=ipc) as writer:
        writer.write_table(table, max_chunksize=options.batch_rows)


def _text(
    lines: Iterator[str], options: _JsonlOptions | _CsvOptions, compression: str | None
) -> bytes:
    pieces = [_BOM.encode() if options.bom else b""]
    while piece := "".join(line + options.newline for line in itertools.islice(lines, _ROWS)):
        pieces.append(piece.encode("utf-8"))
    return compress(b"".join(pieces), compression, members=options.members)


def _slices(table: pa.Table) -> Iterator[pa.Table]:
    return (table.slice(start, _ROWS) for start in range(0, table.num_rows, _ROWS))


def _columns(table: pa.Table, names: Sequence[str]) -> list[list[Any]]:
    known = table.column_names
    for name in names:
        if known.count(name) != 1:
            raise UsageError("no single column of this name", path=name, found=", ".join(known))
    return [plain_values(table.column(name), field=name) for name in names]


def _rows(table: pa.Table, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    return zip(*_columns(table, names), strict=True)


def _jsonl_lines(table: pa.Table, options: _JsonlOptions) -> Iterator[str]:
    names = table.column_names
    for row in itertools.chain.from_iterable(_rows(piece, names) for piece in _slices(table)):
        value: Any = dict(zip(names, row, strict=True))
        if options.nulls == "absent":
            value = _without_nulls(value)
        try:
            yield json.dumps(
                value, ensure_ascii=options.ascii, allow_nan=False, separators=(",", ":")
            )
        except ValueError as error:
            remedy = "Write the part as csv, arrow or parquet; JSON has no non-finite numbers."
            raise UsageError(f"no JSON line: {error}", found=value, remedy=remedy) from None


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _csv_lines(table: pa.Table, options: _CsvOptions) -> Iterator[str]:
    names = table.column_names if options.columns is None else list(options.columns)
    _columns(table.slice(0, 0), names)  # names that are not there are refused without rows, too
    yield ",".join(_quoted(name, options.quote_all) for name in names)
    for row in itertools.chain.from_iterable(_rows(piece, names) for piece in _slices(table)):
        cells = zip(names, row, strict=True)
        yield ",".join(_cell(name, value, options.quote_all) for name, value in cells)


def _cell(name: str, value: Any, quote_all: bool) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return _quoted(value, quote_all)
    raise UsageError("a csv part holds no lists or structs", path=name)


def _quoted(text: str, always: bool) -> str:
    # The csv module cannot tell an empty string (quoted) from a missing value (not quoted). A name
    # that starts with U+FEFF at the head of the file would be read as a byte order mark.
    if always or text == "" or text.startswith(_BOM) or any(mark in text for mark in ',"\r\n'):
        return '"' + text.replace('"', '""') + '"'
    return text
