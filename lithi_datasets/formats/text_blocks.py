"""Text in chunks → blocks of whole records, each small enough to be decoded at once.

The readers of `jsonl` and `csv` decode one block to one batch. A block is bounded by rows, by bytes
of text and by what its rows need in Arrow, so memory is bounded by a block whatever the size of the
part. A record that is longer than `LIMITS.record_bytes` ends the reading with our error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lithi_datasets.errors import BundleError, PartDecodeError
from lithi_datasets.formats.memory import element_bytes
from lithi_datasets.gather import row_bytes

__all__ = [
    "LIMITS",
    "Block",
    "Bytes",
    "Ends",
    "LineScan",
    "Plan",
    "QuotedScan",
    "Scan",
    "TextLimits",
    "blocks",
    "broken",
    "decoded",
    "delivered",
    "plan",
    "without_bom",
]

Ends: TypeAlias = npt.NDArray[np.int64]
"""Positions behind the last byte of each record, line end included."""

Bytes: TypeAlias = npt.NDArray[np.uint8]

_BOM: Final = b"\xef\xbb\xbf"

_PARSED_ROWS: Final = 16_384
"""Rows that are parsed at once where a batch has fewer; each call of a parser costs half a ms."""

_MOST_WORKERS: Final = 4

_MOST_ROWS: Final = 65_536
"""pyarrow's JSON and CSV parsers take less than 100,000 rows at once."""


@dataclass(frozen=True)
class TextLimits:
    """What bounds the memory of the text readers.

    Attributes:
        record_bytes: the longest record (a JSONL line, a CSV record), in bytes of decoded text;
            also the most blank text between two records.
        batch_text_bytes: the most text that is decoded at once, in bytes, unless one record is
            longer.
        batch_arrow_bytes: the most memory that the rows of a batch take by their types alone, in
            bytes: a null in a fixed-size list takes as much as the list.
    """

    record_bytes: int = 256 * 2**20
    batch_text_bytes: int = 32 * 2**20
    batch_arrow_bytes: int = 128 * 2**20


LIMITS: Final = TextLimits()


@dataclass(frozen=True)
class Plan:
    """The bounds of a block: at most so many records and bytes of text, but always one record."""

    rows: int
    text_bytes: int
    record_bytes: int


@dataclass(frozen=True)
class Block:
    """Whole records, as they stand in the text.

    Attributes:
        text: the records with their line ends.
        ends: where each record ends in `text`: int64[records].
        line: the number of the first line, from 1.
        last: whether the text of the part ends here.
        well_formed: False where the scan of the text saw something wrong, here or further on.
    """

    text: bytes
    ends: Ends
    line: int
    last: bool
    well_formed: bool


def plan(declared: pa.Schema, batch_rows: int, limits: TextLimits = LIMITS) -> Plan:
    """The bounds that keep what is decoded at once within the limits."""
    row = sum(row_bytes(field.type) for field in declared)
    # The shortest text of a list element is two bytes ("1,"), whatever the element takes.
    element = max([1, *(element_bytes(field.type) for field in declared)])
    return Plan(
        rows=max(
            1, min(max(batch_rows, _PARSED_ROWS), _MOST_ROWS, limits.batch_arrow_bytes // row)
        ),
        text_bytes=max(1, min(limits.batch_text_bytes, 2 * limits.batch_arrow_bytes // element)),
        record_bytes=limits.record_bytes,
    )


def without_bom(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same text without the byte order mark that it may begin with; only one is taken."""
    head = b""
    rest = iter(chunks)
    for chunk in rest:
        head += chunk
        if len(head) >= len(_BOM):
            break
    if head := head.removeprefix(_BOM):
        yield head
    yield from rest


class Scan(Protocol):
    """Finds the ends of records in the chunks of one text, which come in order.

    Attributes:
        one_line_each: whether every record so far is one line.
        well_formed: whether everything so far is well-formed, as far as this scan looks.
        may_end: whether the text may end after the last chunk.
    """

    one_line_each: bool
    well_formed: bool
    may_end: bool

    def ends(self, chunk: bytes) -> Ends:
        """Positions behind the last bytes of the records that end in the chunk."""


class LineScan:
    """The records are lines."""

    one_line_each = True
    well_formed = True
    may_end = True

    def ends(self, chunk: bytes) -> Ends:
        """Positions behind the line ends of the chunk."""
        ends: Ends = _find(np.frombuffer(chunk, np.uint8), "\n") + 1
        return ends


class QuotedScan:
    """The records are those of RFC 4180: they end at line ends that no quotes enclose.

    In well-formed CSV every quote opens, closes, or is one of two that stand for one, so a line end
    is enclosed exactly where an odd number of quotes stands before it. Well-formed it is if every
    opening quote stands behind a delimiter and every closing one before one (of two that stand for
    one, the first closes here and the second opens), and each CR outside quotes before an LF.
    """

    def __init__(self) -> None:
        self.one_line_each = True
        self.well_formed = True
        self.may_end = True
        self._open = 0
        self._before = np.uint8(ord("\n"))
        self._after: npt.NDArray[np.bool_] | None = None

    def ends(self, chunk: bytes) -> Ends:
        """Positions behind the line ends of the chunk that no quotes enclose."""
        data = np.frombuffer(chunk, np.uint8)
        newlines = _find(data, "\n")
        quotes = _find(data, '"') if b'"' in chunk else newlines[:0]
        returns = _find(data, "\r") if b"\r" in chunk else newlines[:0]
        ends: Ends = newlines[~self._enclosed(newlines, quotes)] + 1
        bare = returns[~self._enclosed(returns, quotes)]
        opening, closing = quotes[self._open :: 2], quotes[1 - self._open :: 2]
        if not self._fits(data, opening, closing, bare):
            self.well_formed = False
        if len(ends) < len(newlines):
            self.one_line_each = False
        self._open = (self._open + len(quotes)) & 1
        self.may_end = not self._open and self._after is not _BEHIND_RETURN
        return ends

    def _enclosed(self, at: Ends, quotes: Ends) -> npt.NDArray[np.bool_]:
        if not len(quotes):
            return np.full(len(at), bool(self._open))
        return ((np.searchsorted(quotes, at) + self._open) & 1).astype(bool)

    def _fits(self, data: Bytes, opening: Ends, closing: Ends, bare: Ends) -> bool:
        """Whether the neighbours of quotes and CRs are right, over the ends of chunks as well."""
        fits = self._after is None or bool(self._after[data[0]])
        self._after = None
        if len(closing) and closing[-1] == len(data) - 1:
            self._after, closing = _BEHIND_QUOTE, closing[:-1]
        if len(bare) and bare[-1] == len(data) - 1:
            self._after, bare = _BEHIND_RETURN, bare[:-1]
        if len(opening) and opening[0] == 0:
            fits, opening = fits and bool(_BEFORE_QUOTE[self._before]), opening[1:]
        self._before = data[-1]
        fits = fits and bool(_BEFORE_QUOTE[data[opening - 1]].all())
        fits = fits and bool(_BEHIND_QUOTE[data[closing + 1]].all())
        return fits and bool(_BEHIND_RETURN[data[bare + 1]].all())


def _find(data: Bytes, character: str) -> Ends:
    found: Ends = np.flatnonzero(data == ord(character))
    return found


def _table(characters: str) -> npt.NDArray[np.bool_]:
    """For each byte, whether it is one of the characters."""
    return np.isin(np.arange(256), [ord(character) for character in characters])


_BEFORE_QUOTE: Final = _table(',\n"')
_BEHIND_QUOTE: Final = _table(',\n\r"')
_BEHIND_RETURN: Final = _table("\n")


def blocks(chunks: Iterable[bytes], scan: Scan, bounds: Plan, path: str) -> Iterator[Block]:
    """Cut a text into blocks.

    Args:
        chunks: the text, in pieces of any size.
        scan: finds the ends of the records.
        bounds: of a block.
        path: the part's path in the manifest, for messages.

    Raises:
        PartDecodeError: a record is too long.
    """
    cutter = _Cutter(scan, bounds, path)
    for chunk in chunks:
        cutter.add(chunk)
        if cutter.full:
            yield from cutter.cut(at_end=False)
    yield from cutter.cut(at_end=True)


class _Cutter:
    """Holds the text that is not yet in a block; positions count from the beginning of the text."""

    def __init__(self, scan: Scan, bounds: Plan, path: str) -> None:
        self._scan = scan
        self._bounds = bounds
        self._path = path
        self._line = 1
        self._pieces: deque[memoryview] = deque()
        self._start = self._length = self._last_end = 0
        self._ends: Ends = np.zeros(0, np.int64)

    def add(self, chunk: bytes) -> None:
        ends = self._scan.ends(chunk) + self._length
        self._pieces.append(memoryview(chunk))
        self._length += len(chunk)
        bounds = np.diff(ends, prepend=self._last_end, append=self._length)
        if len(bounds) and bounds.max() > self._bounds.record_bytes:
            before = int(np.argmax(bounds > self._bounds.record_bytes))
            raise self._too_long(int(ends[before - 1]) if before else self._last_end)
        if len(ends):
            self._ends = np.concatenate([self._ends, ends])
            self._last_end = int(ends[-1])

    @property
    def full(self) -> bool:
        if not len(self._ends):
            return False
        too_many_bytes = self._length - self._start > self._bounds.text_bytes
        return too_many_bytes or len(self._ends) > self._bounds.rows

    def cut(self, *, at_end: bool) -> Iterator[Block]:
        """Yield the blocks that are full; at the end of the text, what is left as well."""
        if at_end and self._last_end < self._length:
            self._ends = np.append(self._ends, self._length)
        ends, first = self._ends, 0
        while first < len(ends):
            within = np.searchsorted(ends, self._start + self._bounds.text_bytes, side="right")
            stop = max(first + 1, min(first + self._bounds.rows, int(within)))
            end = int(ends[stop - 1])
            full = stop < len(ends) or stop - first == self._bounds.rows
            full = full or self._length - self._start > self._bounds.text_bytes
            # What follows a block tells whether it is the last one, so something has to follow.
            if not at_end and (end == self._length or not full):
                break
            yield self._block(ends[first:stop], end)
            first = stop
        self._ends = ends[first:]

    def _block(self, ends: Ends, end: int) -> Block:
        start, line = self._start, self._line
        text = self._take(end)
        self._line += len(ends) if self._scan.one_line_each else text.count(b"\n")
        last = end == self._length
        well_formed = self._scan.well_formed and (self._scan.may_end or not last)
        return Block(text, ends - start, line, last, well_formed)

    def _take(self, end: int) -> bytes:
        """The text up to a position, which is no longer held afterwards."""
        parts = []
        while self._start < end:
            piece = self._pieces.popleft()
            part = piece[: end - self._start]
            if len(part) < len(piece):
                self._pieces.appendleft(piece[len(part) :])
            self._start += len(part)
            parts.append(part)
        return b"".join(parts)

    def _too_long(self, start: int) -> PartDecodeError:
        return broken(
            self._path,
            self._line + self._take(start).count(b"\n"),
            "a record is longer than the reader takes",
            expected=f"at most {self._bounds.record_bytes} bytes of text",
            found="more than that",
        )


def broken(
    path: str, line: int, problem: str, *, expected: object = None, found: object = None
) -> PartDecodeError:
    """The error for text that does not decode, naming part and line."""
    return PartDecodeError(f"Line {line}: {problem}.", path=path, expected=expected, found=found)


def decoded(
    decode: Callable[[Block], pa.RecordBatch], blocks: Iterator[Block]
) -> Iterator[pa.RecordBatch]:
    """Yield each block decoded, in order, several at once where there is more than one.

    pyarrow and numpy decode outside the interpreter's lock, so threads of this process are enough.
    They have nothing to do while nobody asks for a batch, and end with the iterator. As many are
    used as `pyarrow.cpu_count()` says, up to four; what they hold is bounded like a single block.
    """
    first = next(blocks, None)
    if first is None:
        return
    yield decode(first)
    workers = min(_MOST_WORKERS, pa.cpu_count())
    if workers == 1:
        yield from map(decode, blocks)
        return
    pool = ThreadPoolExecutor(workers, thread_name_prefix="lithi-text")
    try:
        yield from _in_order(pool, workers, decode, blocks)
    finally:
        pool.shutdown(cancel_futures=True)


def _in_order(
    pool: ThreadPoolExecutor,
    workers: int,
    decode: Callable[[Block], pa.RecordBatch],
    blocks: Iterator[Block],
) -> Iterator[pa.RecordBatch]:
    waiting: deque[tuple[int, Future[pa.RecordBatch]]] = deque()
    held = 0
    failure: BundleError | None = None
    while True:
        try:
            block = next(blocks, None)
        except BundleError as error:
            failure = error  # what stands before it in the part comes first, errors too
            break
        if block is None:
            break
        held += len(block.text)
        while waiting and (held > LIMITS.batch_text_bytes or len(waiting) > workers):
            held -= waiting[0][0]
            yield waiting.popleft()[1].result()
        waiting.append((len(block.text), pool.submit(decode, block)))
    while waiting:
        yield waiting.popleft()[1].result()
    if failure is not None:
        raise failure


def delivered(batches: Iterator[pa.RecordBatch], *, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the batches in slices of at most `batch_rows` rows, none of them empty."""
    for batch in batches:
        for start in range(0, batch.num_rows, batch_rows):
            yield batch.slice(start, batch_rows)
