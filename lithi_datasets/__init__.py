"""Lithi Compute result bundles as Hugging Face datasets.

Importing the package registers the builder, so `datasets.load_dataset("lithi_bundle", data_dir=…)`
works. It imports neither torch nor transformers.
"""

from __future__ import annotations

from lithi_datasets.builder import register
from lithi_datasets.bundle import Bundle, open_bundle
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
from lithi_datasets.loading import load
from lithi_datasets.manifest import Snapshot
from lithi_datasets.provenance import snapshot_of
from lithi_datasets.storage import register_credential

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
    "load",
    "open_bundle",
    "register_credential",
    "snapshot_of",
]

register()
