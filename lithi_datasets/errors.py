"""Every error that the package raises on purpose.

One root, four branches by who is at fault: the data (`BundleError`), the transport
(`StorageError`), a state that does not fit (`StateError`), the call (`UsageError`). Each one is
also the builtin that a caller would catch. The whole message sits in `args[0]`: torch rebuilds a
worker's exception from one string, so every class here is constructible from one string and says
everything in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
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
    "SnapshotMismatch",
    "StateError",
    "StatusCountMismatch",
    "StorageError",
    "UnsupportedManifestVersion",
    "UsageError",
]


class LithiError(Exception):
    """Root of the package's errors.

    Args:
        problem: what is wrong, one sentence.
        path: where: a bound path, a JSON path in the manifest, a folder or a URL without secrets.
        expected: what the manifest, the spec or the caller says.
        found: what is there instead.
        remedy: what to do; each class brings a sentence of its own.
    """

    default_remedy: ClassVar[str] = ""

    def __init__(
        self,
        problem: str,
        *,
        path: str | None = None,
        expected: object = None,
        found: object = None,
        remedy: str | None = None,
    ) -> None:
        self.problem = problem
        self.path = path
        self.expected = expected
        self.found = found
        self.remedy = self.default_remedy if remedy is None else remedy
        super().__init__(self._text())

    def _text(self) -> str:
        # A message that was rendered before (torch hands it back as one string) is kept as it is.
        rows = [
            ("where", self.path),
            ("expected", self.expected),
            ("found", self.found),
        ]
        lines = [f"  {label}: {value}" for label, value in rows if value is not None]
        if self.remedy and "\n  what to do: " not in self.problem:
            lines.append(f"  what to do: {self.remedy}")
        return "\n".join([self.problem, *lines])

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[Callable[..., LithiError], tuple[Any, ...]]:
        # OSError's own __reduce__ would lose the fields.
        return _rebuild, (type(self), self.args, self.__dict__.copy())


def _rebuild(cls: type[LithiError], args: tuple[Any, ...], state: dict[str, Any]) -> LithiError:
    error = cls("")
    error.args = args
    error.__dict__.update(state)
    return error


class BundleError(LithiError, ValueError):
    """The data is at fault: the bundle is not what its manifest says, or not what was pinned."""

    default_remedy = (
        "Fetch the bundle again, whole, from where it was delivered; nothing of it was used."
    )


class StorageError(LithiError, OSError):
    """The transport is at fault: the storage could not be reached, listed, read or written."""

    default_remedy = "Check that the storage can be reached from this machine, then try again."


class StateError(LithiError, ValueError):
    """A checkpoint, loader state or snapshot does not fit what it is applied to."""

    default_remedy = "Use the state with the dataset that it was saved from."


class UsageError(LithiError, ValueError):
    """The call is at fault."""

    default_remedy = "Correct the call."


class ManifestMissing(BundleError, FileNotFoundError):
    """The folder holds no `result-manifest.json`, so it is not a bundle (spec, top)."""

    default_remedy = (
        "Name the folder that holds result-manifest.json. If the job is still writing, wait: "
        "the manifest is written last."
    )


class ManifestInvalid(BundleError):
    """The manifest breaks a rule of the format; `path` is the JSON path (spec, section 1)."""

    default_remedy = "The writer of the bundle has to mend its manifest and seal it again."


class UnsupportedManifestVersion(BundleError):
    """`manifest_version` is neither "1" nor "1.N" (spec, section 1)."""

    default_remedy = "Update lithi_datasets, or ask for a bundle in format 1."


class SnapshotMismatch(BundleError, StateError):
    """The digest is not what the manifest, a pin or a checkpoint says (spec, section 2)."""

    default_remedy = (
        "Use the bundle that was pinned, or pin the new one on purpose. A manifest that does not "
        "match its own digest was changed after it was sealed."
    )


class BundlePartial(BundleError):
    """The bundle is PARTIAL and was not asked for; `next_action` says what the run needs.

    Args:
        next_action: `{"action": str, "message": str}` of the manifest.
    """

    default_remedy = (
        "Do what the next action says, or pass allow_partial=True to use the rows that are there."
    )

    def __init__(
        self, problem: str, *, next_action: dict[str, str] | None = None, **fields: Any
    ) -> None:
        self.next_action = next_action
        super().__init__(problem, **fields)


class FileMissing(BundleError, FileNotFoundError):
    """A file that the manifest binds is not there, or is not a regular file (spec, section 6)."""


class FileSizeMismatch(BundleError):
    """A bound file has another size in bytes than the manifest says (spec, section 6)."""


class FileDigestMismatch(BundleError):
    """A bound file has another SHA-256 than the manifest says (spec, section 6)."""


class RowCountMismatch(BundleError):
    """A file holds another number of rows or ids than the manifest says (spec, section 4)."""


class StatusCountMismatch(BundleError):
    """The statuses in the files do not add up to the manifest's counts (spec, section 4)."""


class DuplicateItemId(BundleError):
    """An item id stands twice in the bundle (spec, section 4)."""

    default_remedy = "The writer of the bundle has to deliver each item once; nothing was used."


class SchemaMismatch(BundleError):
    """A part's column is not what the manifest declares (spec, section 6)."""

    default_remedy = (
        "The writer of the bundle has to write the declared types, or declare those that it writes."
    )


class NullInRequiredField(BundleError):
    """A null in a field that is declared `"nullable": false` (spec, section 6)."""

    default_remedy = "The writer of the bundle has to fill the field, or declare it nullable."


class PartDecodeError(BundleError):
    """The bytes of a part have the right digest, but do not decode (spec, section 6)."""

    default_remedy = "The writer of the bundle delivered a broken file; it has to write it again."


class CredentialError(StorageError):
    """A credential reference is unknown, or a secret stands where only a reference belongs."""

    default_remedy = (
        'Register the credentials with lithi_datasets.register_credential("ref", provider) and '
        'pass credential_ref="ref"; keep keys and tokens out of URLs.'
    )


class ReconcileError(StateError):
    """What was iterated is not what the manifest counts.

    Args:
        missing: the first five ids that were not read, in row order.
        repeated: the first five ids that were read more than once, in row order.
        foreign: the first five ids that are not of the dataset, as they came.
        totals: how many there are of each: `"missing"`, `"repeated"`, `"foreign"`, and
            `"outside"`: rows of the split that are in no ledger's dataset. Without those of 0.
    """

    default_remedy = "Look at the ids that are named; read each row exactly once."

    def __init__(
        self,
        problem: str,
        *,
        missing: tuple[str, ...] = (),
        repeated: tuple[str, ...] = (),
        foreign: tuple[str, ...] = (),
        totals: dict[str, int] | None = None,
        **fields: Any,
    ) -> None:
        self.missing, self.repeated, self.foreign = missing, repeated, foreign
        self.totals = {} if totals is None else totals
        super().__init__(problem, **fields)


class MirrorError(StorageError):
    """A mirror on a Hub could not be written, or is not the bundle that it should be."""
