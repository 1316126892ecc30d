"""Opening a bundle: the manifest first, the pin, the PARTIAL policy, and the audit of a folder."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lithi_datasets import schema
from lithi_datasets.audit import OUTSTANDING_ROLE, VerifyReport, outstanding_ids, verify_files
from lithi_datasets.errors import (
    BundlePartial,
    FileMissing,
    ManifestMissing,
    SnapshotMismatch,
    UsageError,
)
from lithi_datasets.manifest import (
    LIMITS,
    MANIFEST_NAME,
    Counts,
    Manifest,
    Part,
    Snapshot,
)
from lithi_datasets.parts import PartRules, read_part, scan_part
from lithi_datasets.storage import Location

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

    import datasets

__all__ = ["Bundle", "open_bundle"]


@dataclass(frozen=True, eq=False)
class Bundle:
    """An opened bundle: what its manifest says, and verified access to what that binds.

    Two bundles are equal where their snapshots are: the digest binds everything else. A bundle can
    be pickled; it holds no credentials, only the name that they are registered under.

    Attributes:
        location: where its files are.
        manifest: the parsed manifest; its digest was recomputed.
    """

    location: Location
    manifest: Manifest

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bundle) and self.snapshot == other.snapshot

    def __hash__(self) -> int:
        return hash(self.snapshot)

    def __repr__(self) -> str:
        snapshot = self.snapshot
        return (
            f"Bundle({str(self.location)!r}, version_id={snapshot.version_id!r}, "
            f"content_sha256={snapshot.content_sha256!r}, rows={self.counts.rows}, "
            f"parts={len(self.parts)}, status={self.manifest.status!r})"
        )

    @property
    def snapshot(self) -> Snapshot:
        """The identity to pin: `version_id` and `content_sha256`."""
        return self.manifest.snapshot

    @property
    def item_id_field(self) -> str:
        """Name of the column that holds the item ids."""
        return self.manifest.item_id_field

    @property
    def counts(self) -> Counts:
        """`items`, `rows`, `accepted`, `failed`, `abstained`, `outstanding` of the manifest."""
        return self.manifest.counts

    @property
    def parts(self) -> tuple[Part, ...]:
        """The bound parts, in row order."""
        return self.manifest.parts

    @property
    def splits(self) -> dict[str, tuple[int, ...]]:
        """Split name → indexes into `parts`, in order of first appearance."""
        return self.manifest.splits

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """The Arrow types of the rows (a field with `class_names` is int64), nullable as declared.

        A dataset holds these types, all of them nullable: `datasets` knows no other.
        """
        fields = self.manifest.table.fields
        return pa.schema(
            [
                held.with_nullable(field.nullable)
                for held, field in zip(schema.output_schema(fields), fields, strict=True)
            ]
        )

    @cached_property
    def features(self) -> datasets.Features:
        """The `datasets` features of the rows.

        Raises:
            UsageError: where the installed `datasets` has no feature for a declared type.
        """
        return schema.features(self.manifest.table.fields)

    @cached_property
    def rules(self) -> PartRules:
        """What every part is checked against."""
        return PartRules(self.manifest.table.fields, self.manifest.item_id_field)

    def scan_part(self, index: int) -> Iterator[pa.RecordBatch]:
        """The rows of part `index`, yielded while they are checked; see `parts.scan_part`."""
        return scan_part(self.location, self.parts[index], self.rules)

    def read_part(self, index: int) -> Iterator[pa.RecordBatch]:
        """The rows of part `index`, yielded after all of it was checked; see `parts.read_part`."""
        return read_part(self.location, self.parts[index], self.rules)

    def verify(self, *, progress: bool = False) -> VerifyReport:
        """Read and check every bound file, and what spans them: unique ids, whole-bundle statuses.

        Args:
            progress: show a progress bar on the error stream.

        Returns:
            A report with `files` and `rows` (checked), `bytes` (read) and `unbound`: paths that
            were found in the folder but that the manifest does not bind. They are never opened.

        Raises:
            BundleError: the first rule that the bundle breaks, by name (spec, section 6).
            StorageError: the storage failed.
        """
        return verify_files(self.location, self.manifest, self.rules, progress=progress)

    def outstanding_items(
        self, staged_input: str | os.PathLike[str] | Bundle | None = None
    ) -> list[str]:
        """The ids of the items that have no row yet, ready to be submitted again.

        Args:
            staged_input: the bundle that the job ran over; needed where the manifest binds no list.

        Returns:
            The bound list, else the ids of the staged input without a row, in its order.

        Raises:
            UsageError: neither is there.
            RowCountMismatch: they are not as many as the manifest counts.
            BundleError: the list, or a part, breaks a rule.
        """
        if not self.counts.outstanding:
            return []
        for attachment in self.manifest.attachments:
            if attachment.role == OUTSTANDING_ROLE:
                return outstanding_ids(self.location, attachment, self.counts.outstanding)
        if staged_input is None:
            raise UsageError(
                "The manifest binds no list of its outstanding items.",
                path=str(self.location),
                expected="the staged input that the job ran over",
                remedy="Pass staged_input= with the bundle that was submitted.",
            )
        from lithi_datasets.outstanding import ids_without_row

        return ids_without_row(self, _bundle_of(staged_input))


def _bundle_of(source: Any) -> Bundle:
    return source if isinstance(source, Bundle) else open_bundle(source, allow_partial=True)


def open_bundle(
    source: str | os.PathLike[str] | Bundle,
    snapshot: Snapshot | Mapping[str, Any] | None = None,
    allow_partial: bool = False,
    credential_ref: str | None = None,
) -> Bundle:
    """Open a bundle: read its manifest, and nothing else.

    Args:
        source: the bundle's folder, the manifest in it, or an fsspec URL of either.
        snapshot: the pinned `{"version_id", "content_sha256"}`; None takes what is there.
        allow_partial: take a PARTIAL bundle for what it holds.
        credential_ref: name of the credentials that `register_credential` knows.

    Raises:
        ManifestMissing: there is no `result-manifest.json`, so there is no bundle.
        ManifestInvalid: the manifest breaks a rule of the format.
        UnsupportedManifestVersion: it is in another format.
        SnapshotMismatch: its recomputed digest, or the pin, differs.
        BundlePartial: it is PARTIAL and that was not asked for; carries `next_action`.
        CredentialError: the credentials are not registered, or stand in the address.
        StorageError: the storage could not be reached.
    """
    if isinstance(source, Bundle):
        bundle = source
    else:
        location = Location.resolve(
            source, manifest_name=MANIFEST_NAME, credential_ref=credential_ref
        )
        where = location.join(MANIFEST_NAME)
        bundle = Bundle(location, Manifest.parse(_read_manifest(location), path=where))
    if snapshot is not None:
        _check_pin(bundle, Snapshot.coerce(snapshot))
    if bundle.manifest.status == "PARTIAL" and not allow_partial:
        _refuse_partial(bundle)
    return bundle


def _read_manifest(location: Location) -> bytes:
    limit = LIMITS.manifest_bytes + 1
    pieces: list[bytes] = []
    try:
        with location.open(MANIFEST_NAME) as opened:
            while limit > 0 and (piece := opened.stream.read(limit)):
                pieces.append(piece)
                limit -= len(piece)
    except FileMissing as error:
        raise ManifestMissing(
            "This is not a bundle: it holds no result-manifest.json.",
            path=location.root,
            expected=MANIFEST_NAME,
            found=error.found,
        ) from error.__cause__
    return b"".join(pieces)


def _check_pin(bundle: Bundle, pin: Snapshot) -> None:
    if pin != bundle.snapshot:
        raise SnapshotMismatch(
            "The bundle is not the one that is pinned.",
            path=bundle.location.root,
            expected=pin.as_dict(),
            found=bundle.snapshot.as_dict(),
            remedy="Open the bundle that was pinned, or pin this one on purpose.",
        )


def _refuse_partial(bundle: Bundle) -> None:
    action = bundle.manifest.next_action
    if action is None:  # the model requires it of a PARTIAL bundle
        raise UsageError("A PARTIAL bundle without a next action.", path=bundle.location.root)
    counts = bundle.counts
    raise BundlePartial(
        f"The bundle is PARTIAL: {counts.outstanding} of {counts.items} items are outstanding. "
        f"Next action: {action.action}: {action.message}",
        next_action={"action": action.action, "message": action.message},
        path=bundle.location.root,
        expected="a COMPLETE bundle",
        found="PARTIAL",
    )
