"""`lithi.load`: a bundle as a dataset in the torch format."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from lithi_datasets.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import datasets

    from lithi_datasets.bundle import Bundle
    from lithi_datasets.manifest import Snapshot

__all__ = ["load"]


def load(
    source: str | os.PathLike[str] | Bundle,
    split: Any = "train",
    *,
    streaming: bool = False,
    snapshot: Snapshot | Mapping[str, Any] | None = None,
    allow_partial: bool = False,
    statuses: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    credential_ref: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    num_proc: int | None = None,
    verification_mode: str | None = None,
) -> datasets.Dataset | datasets.IterableDataset | datasets.DatasetDict:
    """Load a bundle as a dataset that yields torch tensors of exactly the manifest's types.

    Args:
        source: the bundle's folder, the manifest in it, an fsspec URL of either, or an opened
        bundle.
        split: a split, a slice such as `"train[:10%]"` (map-style only), or None for all.
        streaming: read part by part without converting; each part is checked whole before its first
        row.
        snapshot: the pinned `{"version_id", "content_sha256"}`.
        allow_partial: take a PARTIAL bundle for what it holds.
        statuses: keep only rows with these statuses.
        columns: keep only these columns, the item id field and `lithi_status`.
        credential_ref: name of the credentials that `register_credential` knows.
        cache_dir: the `datasets` cache folder; None is the default one.
        num_proc: how many parts are converted at a time (map-style only).
        verification_mode: `"all_checks"` hashes a cached conversion before it is used.

    Raises:
        BundleError: the rule that the bundle breaks, by name; nothing is left in the cache.
        StorageError: the storage failed.
        UsageError: the call is wrong.
    """
    from lithi_datasets.builder import LithiBundle
    from lithi_datasets.reading.formatter import FORMAT

    if streaming and num_proc is not None:
        raise UsageError(
            "A stream is not converted, so num_proc= has no meaning for it.",
            remedy="Leave num_proc out; read the stream with several DataLoader workers.",
        )
    builder = LithiBundle(
        cache_dir=None if cache_dir is None else os.fspath(cache_dir),
        data_dir=source,
        snapshot=snapshot,
        allow_partial=allow_partial,
        statuses=statuses,
        columns=columns,
        credential_ref=credential_ref,
    )
    if streaming:
        return builder.as_streaming_dataset(split=split).with_format(FORMAT)
    builder.download_and_prepare(num_proc=num_proc, verification_mode=verification_mode)
    return builder.as_dataset(split=split).with_format(FORMAT)
