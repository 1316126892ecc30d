"""From the bytes of a part to record batches of the declared schema: one reader for each format.

A reader gets bytes that were already read once and hashed (`PartSource`); it never sees a path it
could open again. It yields batches whose schema is `ReadRequest.declared`, in file order, each of
at most `batch_rows` rows. What a value *means* (statuses, classes, nulls in required fields) is not
its subject: `lithi_datasets.checks` looks at that next.

Errors of every reader: `PartDecodeError` where bytes do not decode, `SchemaMismatch` where they
decode to something that the manifest does not declare (spec, section 6).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, BinaryIO, Protocol

from lithi_datasets.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from lithi_datasets.types import Field

__all__ = ["FORMATS", "PartSource", "ReadRequest", "Reader", "reader_for"]


class PartSource(Protocol):
    """The verified, private bytes of one part.

    Both methods may be called more than once; each call gives a fresh reader at position 0, which
    the caller closes or drops.
    """

    @property
    def size(self) -> int:
        """Length of the stored file in bytes."""

    def arrow(self) -> pa.NativeFile:
        """A random-access reader, zero-copy where the bytes are in memory."""

    def stream(self) -> BinaryIO:
        """A binary file object, readable and seekable."""


@dataclass(frozen=True)
class ReadRequest:
    """What a reader has to deliver.

    Args:
        fields: the manifest's `schema.fields`, in column order.
        declared: `schema.declared_schema(fields)`, computed once for all parts.
        path: the part's path in the manifest, for messages.
        compression: `"gzip"`, `"zstd"` or None; only text formats have one (spec, section 1).
        batch_rows: the most rows in one batch.
    """

    fields: tuple[Field, ...]
    declared: pa.Schema
    path: str
    compression: str | None = None
    batch_rows: int = 8192


Reader = Callable[[PartSource, ReadRequest], "Iterator[pa.RecordBatch]"]

FORMATS: Mapping[str, str] = MappingProxyType(
    {
        "parquet": "lithi_datasets.formats.parquet:read",
        "arrow": "lithi_datasets.formats.arrow:read",
        "jsonl": "lithi_datasets.formats.jsonl:read",
        "csv": "lithi_datasets.formats.csv:read",
    }
)
"""The reader of each `parts[].format`, as `module:function`; the module is imported when needed."""


def reader_for(format: str) -> Reader:
    """The reader of a `parts[].format`.

    Raises:
        UsageError: there is no such format; `Manifest.parse` admits none of these.
    """
    try:
        target = FORMATS[format]
    except KeyError:
        raise UsageError(
            "there is no reader for this part format",
            expected=", ".join(FORMATS),
            found=repr(format),
            remedy="Name one of the formats of the bundle format.",
        ) from None
    module, _, function = target.partition(":")
    reader: Reader = getattr(importlib.import_module(module), function)
    return reader
