"""The manifest of a bundle (spec, sections 1 to 5): bytes in, a frozen `Manifest` out, no I/O.

`Manifest.parse` checks in this order, and the first thing that is wrong is the error:

1. strict JSON, an object (`ManifestInvalid`);
2. `manifest_version` (`UnsupportedManifestVersion`), before what another version may define anew;
3. the members, then the rules that span them, in `manifest_rules` (`ManifestInvalid`);
4. the digest over all of it (`SnapshotMismatch`).

The models here are also what the published JSON Schema is made from.
"""

from __future__ import annotations

import gc
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, FailFast, Strict, ValidationError, model_validator
from pydantic import Field as Member

from lithi_datasets import manifest_rules, strict_json
from lithi_datasets.errors import (
    ManifestInvalid,
    SnapshotMismatch,
    UnsupportedManifestVersion,
    UsageError,
)
from lithi_datasets.json_faults import json_path, shown
from lithi_datasets.limits import (
    LIMITS,
    MAX_INTEGER,
    MAX_PATH_BYTES,
    MAX_VERSION_ID_CHARACTERS,
    Limits,
)
from lithi_datasets.manifest_rules import STATUSES
from lithi_datasets.paths import MANIFEST_NAME, PATH_PATTERN
from lithi_datasets.types import FieldList, Model, null_is

__all__ = [
    "LIMITS",
    "MANIFEST_NAME",
    "STATUSES",
    "Attachment",
    "BoundFile",
    "Counts",
    "Limits",
    "Manifest",
    "NextAction",
    "Part",
    "Snapshot",
    "StatusCounts",
    "Table",
    "content_digest",
    "seal",
]

_VERSION_PATTERN = r"^1(\.(0|[1-9][0-9]*))?$"
_VERSION = re.compile(_VERSION_PATTERN.strip("^$"))
_SHA256_PATTERN = r"^[0-9a-f]{64}$"

Count = Annotated[int, Member(ge=0, le=MAX_INTEGER)]
Sha256 = Annotated[
    str, Member(pattern=_SHA256_PATTERN, description="SHA-256, 64 lower-case hex digits.")
]
BoundPath = Annotated[
    str,
    Member(
        description="Relative POSIX path in Unicode NFC, at most 1,024 bytes of UTF-8, safe on "
        "every system; differs from every other after case-folding, and is no folder of another.",
        json_schema_extra={"pattern": PATH_PATTERN, "minLength": 1, "maxLength": MAX_PATH_BYTES},
    ),
]
SplitName = Annotated[
    str,
    Member(
        pattern=r"^[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*$", json_schema_extra={"not": {"const": "all"}}
    ),
]
FileBytes = Annotated[Count, Member(description="Size of the stored file, in bytes.")]

_LAYOUT = json.JSONEncoder(ensure_ascii=False)
_READABLE_ITEMS = 1000


class Snapshot(Model):
    """The identity of a bundle (spec, section 2); two are equal if both members are."""

    version_id: str = Member(
        min_length=1,
        max_length=MAX_VERSION_ID_CHARACTERS,
        pattern=r"^[^\x00-\x1f\x7f-\x9f]+$",
        description="Identity of the result bundle or staged input.",
    )
    content_sha256: Sha256 = Member(
        description="SHA-256 of the RFC 8785 form of the manifest without this member."
    )

    def __eq__(self, other: object) -> bool:
        """Compare the identity only: members that the format does not name are no part of it."""
        if not isinstance(other, Snapshot):
            return NotImplemented
        return self.as_dict() == other.as_dict()

    def __hash__(self) -> int:
        return hash((self.version_id, self.content_sha256))

    def as_dict(self) -> dict[str, str]:
        """Return `{"version_id", "content_sha256"}`, as a user pins it."""
        return {"version_id": self.version_id, "content_sha256": self.content_sha256}

    @classmethod
    def coerce(cls, value: Snapshot | Mapping[str, object]) -> Snapshot:
        """Return the snapshot that a caller pins.

        Raises:
            UsageError: it is neither a `Snapshot` nor a mapping of exactly its two members.
        """
        if isinstance(value, Snapshot):
            return value
        expected = "a Snapshot, or a mapping of version_id and content_sha256"
        if not isinstance(value, Mapping):
            raise UsageError("This is no snapshot.", expected=expected, found=shown(value))
        members = dict(value)
        if set(members) != {"version_id", "content_sha256"}:
            found = ", ".join(sorted(map(shown, members))) or "an empty mapping"
            raise UsageError("This is no snapshot.", expected=expected, found=found)
        try:
            return cls.model_validate(members)
        except ValidationError as error:
            at, rule, found = _violation(error)
            raise UsageError(
                "This is no snapshot.", path=json_path(at), expected=rule, found=found
            ) from None


class NextAction(Model):
    """What a PARTIAL run needs next (spec, section 1)."""

    action: str = Member(pattern=r"^[!-~]+$", description="A token such as RESUBMIT_OUTSTANDING.")
    message: str = Member(description="The same, for a person to read.")


class StatusCounts(Model):
    """Rows of one part by status; they sum to the part's rows."""

    accepted: Count = Member(description="Rows whose lithi_status is accepted.")
    failed: Count = Member(description="Rows whose lithi_status is failed.")
    abstained: Count = Member(description="Rows whose lithi_status is abstained.")


class Counts(StatusCounts):
    """Rows and items of the whole bundle (spec, section 4)."""

    items: Count = Member(description="Items of the run: rows + outstanding.")
    rows: Count = Member(description="Rows of all parts: accepted + failed + abstained.")
    outstanding: Count = Member(
        description="Items without a row: 0 when COMPLETE, above 0 when PARTIAL."
    )


class BoundFile(Model):
    """A file that the manifest binds: only such files are ever opened (spec, section 5)."""

    path: BoundPath
    bytes: FileBytes
    sha256: Sha256 = Member(description="SHA-256 of the stored file, 64 lower-case hex digits.")


class Part(BoundFile):
    """A file of rows (spec, section 1)."""

    format: Literal["parquet", "arrow", "jsonl", "csv"] = Member(
        description="Format of the file, whatever its name; arrow is an IPC file or stream."
    )
    compression: Literal["gzip", "zstd"] | None = Member(
        default=None, description="Compression of the whole file, only for jsonl and csv."
    )
    rows: Count = Member(description="Rows in the file.")
    split: Annotated[SplitName, null_is("train", SplitName)] = Member(
        default="train", description='Split of its rows, not "all"; absent or null: train.'
    )
    status_counts: StatusCounts | None = Member(
        default=None, description="The part's rows by status, if told."
    )


class Attachment(BoundFile):
    """A file that the manifest binds and that holds no rows (spec, section 1)."""

    role: str = Member(
        description="Free text; outstanding_items, once at most, marks the list of outstanding ids."
    )


class Table(Model):
    """The columns of the table, in order (spec, section 3)."""

    fields: FieldList = Member(description="The columns; names unique, lithi_ names reserved.")


class Manifest(Model):
    """A result bundle's manifest, format 1: everything that its digest binds.

    Attributes are named as the members are, except `schema`, which is `table`. Members that the
    format does not name are in `model_extra`, at every level.
    """

    manifest_version: str = Member(
        pattern=_VERSION_PATTERN, description='Version of the format, "1" or "1.N".'
    )
    bundle_kind: Literal["result", "staged_input"] = Member(
        description="A result, or a table that is staged as an immutable input."
    )
    status: Literal["COMPLETE", "PARTIAL"] = Member(
        description="PARTIAL comes with next_action and with outstanding items."
    )
    next_action: NextAction | None = Member(
        default=None, description="Required when PARTIAL, absent or null when COMPLETE."
    )
    snapshot: Snapshot = Member(description="Identity of this bundle.")
    supersedes: Snapshot | None = Member(
        default=None, description="The older bundle that this one replaces."
    )
    derived_from: Annotated[
        tuple[Snapshot, ...], Strict(strict=False), null_is((), list[Snapshot])
    ] = Member(default=(), description="The bundles that this one was computed from.")
    created_at: Annotated[str, AfterValidator(manifest_rules.check_moment)] | None = Member(
        default=None,
        description="RFC 3339 timestamp with offset.",
        json_schema_extra={"format": "date-time"},
    )
    item_id_field: str = Member(
        description='A field of the schema, of type string with "nullable": false: ids are unique.'
    )
    table: Table = Member(alias="schema", description="The columns, in order.")
    counts: Counts = Member(description="What the files hold in all.")
    parts: Annotated[tuple[Part, ...], Strict(strict=False), FailFast()] = Member(
        description="The files of rows; their order, then the order inside each, is the row order."
    )
    attachments: Annotated[
        tuple[Attachment, ...], Strict(strict=False), FailFast(), null_is((), list[Attachment])
    ] = Member(default=(), description="Files that are bound, but hold no rows.")

    @model_validator(mode="after")
    def _holds_together(self) -> Manifest:
        manifest_rules.check(self)
        _share_member_sets([*self.parts, *self.attachments])
        return self

    @property
    def splits(self) -> dict[str, tuple[int, ...]]:
        """Split to the indexes of its parts, splits in order of first appearance.

        A bundle without parts has one empty split, `{"train": ()}` (spec, section 1).
        """
        indexes: dict[str, list[int]] = {}
        for index, part in enumerate(self.parts):
            indexes.setdefault(part.split, []).append(index)
        return {split: tuple(each) for split, each in indexes.items()} or {"train": ()}

    @property
    def has_status(self) -> bool:
        """Whether the schema has `lithi_status`; without it each row counts as accepted."""
        return any(field.name == manifest_rules.STATUS_FIELD for field in self.table.fields)

    @classmethod
    def parse(cls, raw: bytes, *, path: str = MANIFEST_NAME, limits: Limits = LIMITS) -> Manifest:
        """Return the manifest that the bytes of `result-manifest.json` hold.

        Args:
            raw: the file, UTF-8.
            path: its name, for messages.
            limits: size and nesting that are read; the format's own by default.

        Raises:
            ManifestInvalid: a rule is broken; the error's `path` is the JSON path.
            UnsupportedManifestVersion: it is of another version of the format.
            SnapshotMismatch: it is not what its own digest says.
        """
        with _collector_paused():
            document = strict_json.read(raw, path=path, limits=limits)
            manifest = _validated(document.value, path)
            digest = _digest(document.value, plain=document.plain)
        if manifest.snapshot.content_sha256 != digest:
            raise SnapshotMismatch(
                f"{path} does not match its own digest.",
                path="$.snapshot.content_sha256",
                expected=manifest.snapshot.content_sha256,
                found=f"{digest}, computed over the manifest",
            )
        return manifest


def content_digest(document: Mapping[str, Any]) -> str:
    """Return the digest of a manifest (spec, section 2), in lower-case hex.

    Args:
        document: the manifest's object; a `content_sha256` in its `snapshot` does not matter.

    Raises:
        ManifestInvalid: `snapshot` is not an object, or a value has no canonical form.
    """
    return _digest(document, plain=False)


def seal(document: Mapping[str, Any]) -> bytes:
    """Return the bytes of `result-manifest.json`: the document with its digest.

    Args:
        document: the manifest's object; a missing or stale `content_sha256` is replaced.

    Raises:
        ManifestInvalid, UnsupportedManifestVersion: what `Manifest.parse` would refuse.
        UsageError: the document holds what JSON cannot.
    """
    try:
        text = json.dumps(document, default=_plain_mapping)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            "This is not a JSON document.",
            expected="mappings, lists, strings, numbers, booleans and None",
            found=str(error),
        ) from error
    with _collector_paused():
        sealed = strict_json.loads(text.encode(), path=MANIFEST_NAME, limits=LIMITS)
        _check_version(sealed, MANIFEST_NAME)
        snapshot = sealed.get("snapshot")
        if isinstance(snapshot, dict):
            snapshot["content_sha256"] = content_digest(sealed)
        raw = _laid_out(sealed).encode()
        Manifest.parse(raw)
    return raw


def _plain_mapping(value: object) -> dict[Any, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def _laid_out(document: dict[str, Any]) -> str:
    """Write each member, and each item of a short list, on a line, for people to diff."""
    members = []
    for name, value in document.items():
        if isinstance(value, list) and 0 < len(value) <= _READABLE_ITEMS:
            text = "[\n  " + ",\n  ".join(map(_LAYOUT.encode, value)) + "]"
        else:
            text = _LAYOUT.encode(value)
        members.append(f" {_LAYOUT.encode(name)}: {text}")
    return "{\n" + ",\n".join(members) + "\n}\n"


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep the cycle collector from searching, again and again, what is being built.

    None of it can be garbage yet, and with 100,000 parts the searches cost more than the parse.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _share_member_sets(files: Sequence[BoundFile]) -> None:
    """Let files that state the same members share one set of their names.

    Of the 2 kB that pydantic needs for a part, its own sets are the half.
    """
    shared: dict[frozenset[str], set[str]] = {}
    counts = [file.status_counts for file in files if isinstance(file, Part)]
    for model in [*files, *(each for each in counts if each is not None)]:
        stated = model.model_fields_set
        one = shared.setdefault(frozenset(stated), stated)
        object.__setattr__(model, "__pydantic_fields_set__", one)


def _digest(document: Mapping[str, Any], *, plain: bool) -> str:
    snapshot = document.get("snapshot")
    if not isinstance(snapshot, Mapping):
        raise ManifestInvalid(
            "The manifest has no snapshot.",
            path="$.snapshot",
            expected="an object",
            found=shown(snapshot),
        )
    bound = {name: value for name, value in snapshot.items() if name != "content_sha256"}
    form = strict_json.canonical({**document, "snapshot": bound}, plain=plain)
    return hashlib.sha256(form).hexdigest()


def _check_version(document: object, path: str) -> None:
    if not isinstance(document, dict):
        raise ManifestInvalid(
            f"{path} is not a manifest.", path="$", expected="an object", found=shown(document)
        )
    if "manifest_version" not in document:
        return  # The model says that it is missing.
    version = document["manifest_version"]
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        raise UnsupportedManifestVersion(
            f"{path} is of a version of the format that is not read here.",
            path="$.manifest_version",
            expected='"1" or "1.N"',
            found=shown(version),
        )


def _validated(document: object, path: str) -> Manifest:
    _check_version(document, path)
    try:
        return Manifest.model_validate(document)
    except ValidationError as error:
        at, expected, found = _violation(error)
        raise ManifestInvalid(
            f"{path} breaks a rule of the bundle format.",
            path=json_path(at),
            expected=expected,
            found=found,
        ) from None


def _violation(error: ValidationError) -> tuple[list[str | int], str, str]:
    """Return the JSON path, the rule and what is found, of the first violation."""
    first = error.errors(include_url=False)[0]
    # The tags of a union stand between member names, in "<>"; they are no step of the JSON path.
    at = [step for step in first["loc"] if not str(step).startswith("<")]
    context = first.get("ctx", {})
    if first["type"] == "manifest_rule":
        found = context["found"]
        return [*at, *context["at"]], context["expected"], shown(found)
    if first["type"] == "missing":
        return at, "this member, which is required", "nothing"
    if first["type"] == "string_pattern_mismatch":
        return at, f"text that matches {context['pattern']}", shown(first["input"])
    return at, first["msg"].removeprefix("Input should be "), shown(first["input"])
