"""Ids of many batches, as lines of one text.

Joining strings is the cheapest that Python does with a list of them, so the ids of a batch wait as
one text, joined by line feeds, until many batches are counted together. No id of a bundle holds a
line feed (spec, section 1), so nothing is lost by that. Ids are mostly of one length, numbered with
leading zeros or digests: the place of each in the text is then known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lithi_datasets.errors import UsageError
from lithi_datasets.ledger_index import id_keys, spaced_keys

__all__ = ["Lines"]

_FEED = ord("\n")
_SPARE = bytes(8)  # so that whole words can be read of the last id
_BLOCK = 2**16  # bytes that are looked at together: they stay in the processor's cache


class Lines:
    """Ids, in the order in which they came, batch after batch.

    Args:
        texts: the ids of each batch in UTF-8, joined by line feeds.
        sizes: how many they are, at least 1.

    Attributes:
        sizes: the same.
        count: how many ids there are.
    """

    def __init__(self, texts: Sequence[bytes], sizes: Sequence[int]) -> None:
        self.sizes, self.count = sizes, sum(sizes)
        self._texts = texts
        # Behind the last id a line feed as behind all others.
        self._text = b"\n".join([*texts, _SPARE])
        self._padded = np.frombuffer(self._text, dtype=np.uint8)
        self._lines = self._padded[: -len(_SPARE)]

    def same(self, expected: Iterable[pa.Array]) -> bool:
        """Whether these are the ids that are expected.

        Args:
            expected: as many ids without line feeds, in pieces.
        """
        at, text = 0, memoryview(self._text)
        memory: dict[tuple[int, int], bytearray] = {}
        for piece in expected:
            lines = _lines_of(piece, memory)
            if lines != text[at : at + len(lines)]:
                return False
            at += len(lines)
        return at == len(self._lines)

    def check(self) -> None:
        """Refuse ids that hold a line feed themselves.

        Raises:
            UsageError: one does.
        """
        starts = range(0, len(self._lines), _BLOCK)
        feeds = (self._lines[at : at + _BLOCK] == _FEED for at in starts)
        if sum(np.count_nonzero(block) for block in feeds) == self.count:
            return
        for text, size in zip(self._texts, self.sizes, strict=True):
            if text.count(b"\n") != size - 1:
                raise UsageError(
                    "A batch holds ids with a line feed; no id of a bundle has one.",
                    expected="ids on one line",
                    found=repr(text.decode())[:200],
                    remedy="Leave the id column as it comes from the dataset.",
                )

    def keys(self, content_sha256: str, attempt: int) -> npt.NDArray[np.uint64]:
        """The ids as numbers, see `id_keys`.

        Raises:
            UsageError: an id holds a line feed.
        """
        self.check()
        length = self._length
        if attempt or not length:
            return id_keys(self.array(), content_sha256, attempt)
        return spaced_keys(self._padded, self.count, length, length + 1, content_sha256)

    @property
    def _length(self) -> int:
        """Of all ids, in bytes; 0 where it differs."""
        width, rest = divmod(len(self._lines), self.count)
        return 0 if rest or (self._lines[width - 1 :: width] != _FEED).any() else width - 1

    def array(self) -> pa.Array:
        """The ids: `string[count]`, or `large_string[count]` where they are 2 GiB and more.

        Raises:
            UsageError: an id holds a line feed.
        """
        self.check()
        if length := self._length:
            # As opaque items they are copied several times faster than byte by byte.
            items = np.ndarray((self.count,), f"V{length}", self._text, strides=(length + 1,))
            return _strings(items.copy(), np.arange(self.count + 1, dtype=np.int64) * length)
        feeds = self._lines == _FEED
        ends = np.append(0, np.flatnonzero(feeds) - np.arange(self.count))
        return _strings(self._lines[~feeds], ends)


def _strings(data: npt.NDArray[Any], ends: npt.NDArray[np.int64]) -> pa.Array:
    if ends[-1] < 2**31:
        offsets = pa.py_buffer(ends.astype(np.int32))
        return pa.StringArray.from_buffers(len(ends) - 1, offsets, pa.py_buffer(data))
    return pa.LargeStringArray.from_buffers(len(ends) - 1, pa.py_buffer(ends), pa.py_buffer(data))


def _lines_of(ids: pa.Array, memory: dict[tuple[int, int], bytearray]) -> bytearray:
    """Ids, each with a line feed behind it.

    Args:
        ids: at least one, no nulls.
        memory: that of earlier calls, by number and length of ids: fresh memory costs more than
            what is done in it.
    """
    count = len(ids)
    kind = np.int64 if pa.types.is_large_string(ids.type) else np.int32
    _, end_buffer, data = ids.buffers()
    ends = np.frombuffer(end_buffer, dtype=kind)[ids.offset :][: count + 1]
    length = int(ends[1] - ends[0])
    if length == 0 or (np.diff(ends) != length).any():
        whole = pa.LargeListArray.from_arrays(pa.array([0, count], pa.int64()), ids)
        return bytearray(pc.binary_join(whole, pa.scalar("\n", ids.type))[0].as_buffer()) + b"\n"
    lines = memory.setdefault((count, length), bytearray())
    if not lines:
        lines += b"\n" * (count * (length + 1))
    # As opaque items they are copied several times faster than byte by byte.
    items = np.ndarray((count,), f"V{length}", data, int(ends[0]))
    np.ndarray((count,), items.dtype, lines, strides=(length + 1,))[:] = items
    return lines
