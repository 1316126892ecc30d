"""The manifest's model: the example of the spec, what is optional, the digest, sealing."""

from __future__ import annotations

import copy
import json
import pickle
from types import MappingProxyType
from typing import Any

import pytest
from manifest_documents import EXAMPLE, digest_of, example, members, place, sealed_by_hand, value_at

from lithi_datasets.errors import (
    ManifestInvalid,
    SnapshotMismatch,
    UnsupportedManifestVersion,
    UsageError,
)
from lithi_datasets.json_faults import json_path
from lithi_datasets.limits import Limits
from lithi_datasets.manifest import (
    STATUSES,
    Manifest,
    Snapshot,
    content_digest,
    seal,
)


def parsed(document: dict[str, Any]) -> Manifest:
    return Manifest.parse(sealed_by_hand(document))


def test_the_example_of_the_spec_is_read() -> None:
    manifest = parsed(example())
    assert (manifest.manifest_version, manifest.bundle_kind) == ("1.0", "result")
    assert (manifest.status, manifest.next_action) == ("COMPLETE", None)
    assert manifest.snapshot.version_id == "res_2026_11_0042"
    assert manifest.created_at == "2026-11-02T10:00:00Z"
    assert manifest.item_id_field == "item_id"
    assert [field.name for field in manifest.table.fields][:3] == ["item_id", "text", "embedding"]
    assert manifest.table.fields[3].class_names == ("ham", "spam")
    assert manifest.has_status
    assert manifest.counts.accepted == 950
    first, second = manifest.parts
    assert (first.path, first.format, first.compression) == (
        "parts/part-00000.parquet",
        "parquet",
        None,
    )
    assert (first.bytes, first.rows, first.sha256, first.split) == (48213, 500, "a" * 64, "train")
    assert first.status_counts is not None
    assert [getattr(first.status_counts, status) for status in STATUSES] == [480, 12, 8]
    assert second.compression == "gzip"
    assert manifest.attachments[0].role == "log"
    assert manifest.splits == {"train": (0,), "test": (1,)}
    assert (manifest.supersedes, manifest.derived_from) == (None, ())


def without_lithi_columns(document: dict[str, Any]) -> dict[str, Any]:
    document["bundle_kind"] = "staged_input"
    document["schema"]["fields"] = document["schema"]["fields"][:4]
    document["counts"] |= {"accepted": 1000, "failed": 0, "abstained": 0}
    for part in document["parts"]:
        del part["status_counts"]
    return document


def test_a_staged_input_needs_no_lithi_columns() -> None:
    manifest = parsed(without_lithi_columns(example()))
    assert manifest.bundle_kind == "staged_input"
    assert not manifest.has_status


OPTIONAL = [
    ("next_action",),
    ("supersedes",),
    ("derived_from",),
    ("created_at",),
    ("attachments",),
    ("parts", 0, "compression"),
    ("parts", 0, "split"),
    ("parts", 0, "status_counts"),
    ("schema", "fields", 1, "nullable"),
    ("schema", "fields", 1, "class_names"),
    ("schema", "fields", 2, "type", "length"),
]


@pytest.mark.parametrize("steps", OPTIONAL)
def test_null_means_absent_for_each_optional_member(steps: tuple[str | int, ...]) -> None:
    absent, null = example(), example()
    place(absent, steps).pop(steps[-1], None)
    place(null, steps)[steps[-1]] = None
    one, other = parsed(absent), parsed(null)
    assert one.snapshot.content_sha256 != other.snapshot.content_sha256
    unsealed = {"snapshot": Snapshot(version_id="x", content_sha256="0" * 64)}
    assert one.model_copy(update=unsealed) == other.model_copy(update=unsealed)


NOT_REQUIRED = {
    *OPTIONAL,
    ("schema", "fields", 0, "nullable"),
    ("schema", "fields", 4, "nullable"),
    ("schema", "fields", 3, "class_names"),
    ("parts", 1, "split"),
    ("parts", 1, "status_counts"),
    ("parts", 1, "compression"),
    # What makes it a list: without it the type itself is wrong.
    ("schema", "fields", 2, "type", "list"),
}
REQUIRED = [steps for steps in members(example()) if steps not in NOT_REQUIRED]


@pytest.mark.parametrize("steps", REQUIRED, ids=json_path)
def test_a_required_member_is_required_and_of_its_type(steps: tuple[str | int, ...]) -> None:
    for wrong in ("absent", None, True, ["x"], {"x": 1}, 1.0, -1):
        document = json.loads(sealed_by_hand(example()))
        if wrong == "absent":
            del place(document, steps)[steps[-1]]
        else:
            place(document, steps)[steps[-1]] = wrong
        of_version = steps == ("manifest_version",) and wrong != "absent"
        expected = UnsupportedManifestVersion if of_version else ManifestInvalid
        with pytest.raises(expected) as caught:
            Manifest.parse(json.dumps(document).encode())
        assert str(caught.value.path).startswith(json_path(steps))
        assert caught.value.expected
        assert caught.value.found


@pytest.mark.parametrize("version", ["1", "1.0", "1.1", "1.10", "1.99999"])
def test_format_1_is_read_in_any_minor_version(version: str) -> None:
    assert parsed(example() | {"manifest_version": version}).manifest_version == version


@pytest.mark.parametrize(
    "version",
    [
        *["", "2", "2.0", "0.1", "1.", "1.x", "1.0.0", "1.-1", "1.01", " 1", "1\n", "1.0\n", "v1"],
        *["01", "1.١", "１", "10", 1, 1.0, None, True, ["1"], {"major": 1}],
    ],
    ids=repr,
)
def test_another_version_is_refused_whatever_the_rest_is(version: object) -> None:
    alien = json.dumps({"manifest_version": version, "rows": "many"}).encode()
    with pytest.raises(UnsupportedManifestVersion) as caught:
        Manifest.parse(alien, path="memory://b/result-manifest.json")
    assert caught.value.path == "$.manifest_version"
    assert "memory://b/result-manifest.json" in str(caught.value)
    with pytest.raises(UnsupportedManifestVersion):
        seal(example() | {"manifest_version": version})


def test_checks_come_in_order_json_version_members_digest() -> None:
    document = example() | {"manifest_version": "2", "status": "DONE"}
    with pytest.raises(ManifestInvalid, match="strict JSON"):
        Manifest.parse(json.dumps(document).encode() + b"x")
    with pytest.raises(UnsupportedManifestVersion):
        Manifest.parse(json.dumps(document).encode())
    with pytest.raises(ManifestInvalid, match=r"\$\.status"):
        Manifest.parse(json.dumps(document | {"manifest_version": "1"}).encode())
    with pytest.raises(SnapshotMismatch):
        Manifest.parse(EXAMPLE.replace("DIGEST", "0" * 64).encode())


@pytest.mark.parametrize("raw", [b"[]", b'"1.0"', b"1", b"null", b"true"])
def test_a_manifest_is_an_object(raw: bytes) -> None:
    with pytest.raises(ManifestInvalid, match="an object") as caught:
        Manifest.parse(raw)
    assert caught.value.path == "$"


def test_a_size_limit_can_be_given() -> None:
    raw = seal(example())
    assert Manifest.parse(raw, limits=Limits(manifest_bytes=len(raw)))
    with pytest.raises(ManifestInvalid, match="too large"):
        Manifest.parse(raw, limits=Limits(manifest_bytes=len(raw) - 1))


def test_unknown_members_are_kept_at_every_level_and_bound_by_the_digest() -> None:
    document = example()
    holders = [steps for steps in members(document) if isinstance(value_at(document, steps), dict)]
    holders += [("parts", 0), ("attachments", 0), ("schema", "fields", 0)]
    for number, steps in enumerate(holders):
        value_at(document, steps)["x_note"] = {"n": [number, None, 1.5]}
    document |= {"table": 7, "splits": 8, "parse": 9, "model_extra": 10, "": "no name", "😀": 0.1}
    raw = sealed_by_hand(document)
    manifest = Manifest.parse(raw)
    assert manifest.table.fields[0].name == "item_id"
    assert manifest.splits == {"train": (0,), "test": (1,)}
    assert (manifest.model_extra or {})["table"] == 7
    assert (manifest.parts[0].model_extra or {})["x_note"]["n"][1:] == [None, 1.5]
    assert json.loads(manifest.model_dump_json(by_alias=True, exclude_unset=True)) == document
    for steps in holders:
        changed = json.loads(raw)
        value_at(changed, steps)["x_note"] = 1
        with pytest.raises(SnapshotMismatch):
            Manifest.parse(json.dumps(changed).encode())


def test_splits_come_in_order_of_first_appearance() -> None:
    document = example()
    part = document["parts"][0] | {"rows": 0, "status_counts": None}
    for number, split in enumerate(["test", None, "x.y_1", "test", "train"]):
        document["parts"].append(part | {"path": f"p{number}", "split": split})
    assert parsed(document).splits == {"train": (0, 3, 6), "test": (1, 2, 5), "x.y_1": (4,)}


def test_a_bundle_without_parts_has_one_empty_split() -> None:
    document = example()
    document["parts"] = []
    document["counts"] = dict.fromkeys(document["counts"], 0)
    assert parsed(document).splits == {"train": ()}


def test_the_digest_binds_every_member_but_not_the_layout() -> None:
    document = example()
    raw = sealed_by_hand(document)
    manifest = Manifest.parse(raw)
    turned = dict(reversed(document.items()))
    assert Manifest.parse(json.dumps(turned, indent=7).encode()) == manifest
    assert Manifest.parse(b"\xef\xbb\xbf" + raw) == manifest
    changed = raw.replace(b"2026-11-02T10", b"2026-11-02T11")
    with pytest.raises(SnapshotMismatch) as caught:
        Manifest.parse(changed)
    assert caught.value.path == "$.snapshot.content_sha256"
    assert manifest.snapshot.content_sha256 in str(caught.value)
    assert digest_of(json.loads(changed)) in str(caught.value)


def test_content_digest_is_that_of_rfc8785() -> None:
    document = example() | {"x": [1.0, 1e21, 0.1, "\u2028\x7f", {"\U0001f600": 1, "\ufb33": 2}]}
    assert content_digest(document) == digest_of(document)
    del document["snapshot"]["content_sha256"]
    assert content_digest(document) == digest_of(document)
    with pytest.raises(ManifestInvalid, match=r"\$\.snapshot"):
        content_digest({"snapshot": None})


def test_seal_makes_what_parse_takes() -> None:
    for stale in (None, "0" * 64, "missing"):
        document = example()
        document["snapshot"]["content_sha256"] = stale
        if stale == "missing":
            del document["snapshot"]["content_sha256"]
        before = copy.deepcopy(document)
        manifest = Manifest.parse(seal(document))
        assert document == before
        assert manifest.snapshot.content_sha256 == digest_of(document)
        assert manifest == parsed(example())


def test_seal_takes_mappings_and_tuples() -> None:
    frozen = MappingProxyType(
        example() | {"parts": tuple(map(MappingProxyType, example()["parts"]))}
    )
    assert seal(frozen) == seal(example())


def test_seal_writes_lines_that_people_can_diff() -> None:
    lines = seal(example() | {"title": "é"}).decode().splitlines()
    assert len([line for line in lines if '"path"' in line]) == 3
    assert any('"title": "é"' in line for line in lines)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"status": "DONE"}, "$.status"),
        ({"parts": []}, "$.counts.rows"),
        ({"snapshot": None}, "$.snapshot"),
        ({"x": float("nan")}, "$.x"),
        ({"x": 2**53}, "$.x"),
        ({"x": "\ud800"}, "$.x"),
    ],
)
def test_seal_refuses_what_parse_refuses(change: dict[str, Any], path: str) -> None:
    with pytest.raises(ManifestInvalid) as caught:
        seal(example() | change)
    assert caught.value.path == path


RING: dict[str, Any] = {}
RING["x"] = RING


@pytest.mark.parametrize(
    "value", [b"x", {1, 2}, object(), RING, 10**5000], ids=lambda v: type(v).__name__
)
def test_seal_of_what_is_no_json_is_a_usage_error(value: object) -> None:
    with pytest.raises(UsageError):
        seal(example() | {"x": value})


def test_a_manifest_is_frozen_and_compares_by_structure() -> None:
    one, other = parsed(example()), parsed(example())
    assert one == other
    assert hash(one) == hash(other)
    assert {part.path for part in {*one.parts, *other.parts}} == {p.path for p in one.parts}
    assert one != parsed(example() | {"x": 1})
    with pytest.raises(ValueError, match="frozen"):
        one.parts[0].rows = 3  # type: ignore[misc]


def test_everything_pickles() -> None:
    document = example() | {
        "x_note": [1],
        "supersedes": example()["snapshot"] | {"content_sha256": "0" * 64},
    }
    document["parts"][0]["x_note"] = {"a": None}
    manifest = parsed(document)
    again = pickle.loads(pickle.dumps(manifest))
    assert again == manifest
    assert hash(again) == hash(manifest)
    assert again.model_extra == manifest.model_extra
    assert again.parts[0].model_extra == {"x_note": {"a": None}}
    assert copy.deepcopy(manifest) == manifest


def test_parts_remember_which_members_they_state() -> None:
    document = example()
    document["parts"][1].pop("status_counts")
    document["parts"][1]["x"] = None
    manifest = parsed(document)
    assert [part.model_fields_set for part in manifest.parts] == [set(p) for p in document["parts"]]
    changed = manifest.parts[0].model_copy(update={"compression": "gzip"})
    assert "compression" in changed.model_fields_set
    assert "compression" not in manifest.parts[0].model_fields_set


def test_members_that_the_format_does_not_name_are_no_part_of_the_identity() -> None:
    document = example()
    document["snapshot"]["x_note"] = 1
    manifest = parsed(document)
    assert manifest.snapshot.model_extra == {"x_note": 1}
    assert manifest.snapshot == Snapshot.coerce(manifest.snapshot.as_dict())
