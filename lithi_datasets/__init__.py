"""Lithi Compute result bundles as Hugging Face datasets.

Importing the package registers the builder, so `datasets.load_dataset("lithi_bundle", data_dir=…)`
works. It imports neither torch nor transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lithi_datasets.builder import register
from lithi_datasets.bundle import Bundle, open_bundle
from lithi_datasets.checkpoint import check_snapshot, record_snapshot
from lithi_datasets.errors import (
    BundleError,
    BundlePartial,
    CredentialError,
    DuplicateItemId,
    FileDigestMismatch,
    FileMissing,
    FileSizeMismatch,
    LithiError,
    ManifestInvalid,
    ManifestMissing,
    MirrorError,
    NullInRequiredField,
    PartDecodeError,
    ReconcileError,
    RowCountMismatch,
    SchemaMismatch,
    SnapshotMismatch,
    StateError,
    StatusCountMismatch,
    StorageError,
    UnsupportedManifestVersion,
    UsageError,
)
from lithi_datasets.ledger import Ledger
from lithi_datasets.loading import load
from lithi_datasets.manifest import Snapshot
from lithi_datasets.provenance import snapshot_of
from lithi_datasets.reading.formatter import register as register_format
from lithi_datasets.reading.plan import partition_plan
from lithi_datasets.reading.split import split_by_node
from lithi_datasets.staging import commit_predictions, stage_predictions
from lithi_datasets.storage import register_credential

if TYPE_CHECKING:
    from lithi_datasets.reading.loader import torch_loader

__version__ = "0.1.0"

__all__ = [
    "Bundle",
    "BundleError",
    "BundlePartial",
    "CredentialError",
    "DuplicateItemId",
    "FileDigestMismatch",
    "FileMissing",
    "FileSizeMismatch",
    "Ledger",
    "LithiError",
    "ManifestInvalid",
    "ManifestMissing",
    "MirrorError",
    "NullInRequiredField",
    "PartDecodeError",
    "ReconcileError",
    "RowCountMismatch",
    "SchemaMismatch",
    "Snapshot",
    "SnapshotMismatch",
    "StateError",
    "StatusCountMismatch",
    "StorageError",
    "UnsupportedManifestVersion",
    "UsageError",
    "check_snapshot",
    "commit_predictions",
    "load",
    "open_bundle",
    "partition_plan",
    "record_snapshot",
    "register_credential",
    "snapshot_of",
    "split_by_node",
    "stage_predictions",
    "torch_loader",
]

register()
register_format()


def __getattr__(name: str) -> Any:
    """Import what needs torch when it is asked for."""
    if name == "torch_loader":
        from lithi_datasets.reading.loader import torch_loader

        return torch_loader
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
