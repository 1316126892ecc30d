"""Public helpers for other people's tests: a bundle writer and a filesystem that fails as told.

`lithi_datasets.testing.strategies` holds hypothesis strategies; it is imported on its own, because
hypothesis is no dependency of the package.
"""

from __future__ import annotations

from lithi_datasets.encoding import compress
from lithi_datasets.testing.faults import Fault, FaultFileSystem, FaultScene, fault_filesystem
from lithi_datasets.testing.resume import assert_same_after_resume, same_batch
from lithi_datasets.testing.writer import (
    PartSpec,
    read_manifest_document,
    reseal,
    write_bundle,
)

__all__ = [
    "Fault",
    "FaultFileSystem",
    "FaultScene",
    "PartSpec",
    "assert_same_after_resume",
    "compress",
    "fault_filesystem",
    "read_manifest_document",
    "reseal",
    "same_batch",
    "write_bundle",
]
