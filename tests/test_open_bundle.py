"""Opening: the manifest first, the pin, the PARTIAL policy, any folder name."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from conftest import MakeTable

import lithi_datasets as lithi
from lithi_datasets.testing import read_manifest_document, reseal, write_bundle


def test_a_bundle_opens_by_folder_manifest_and_url(tmp_path: Path, make_table: MakeTable) -> None:
    snapshot = write_bundle(tmp_path / "b", make_table(5))
    folder = tmp_path / "b"
    for source in (
        folder,
        str(folder),
        folder / "result-manifest.json",
        f"file://{folder}",
        f"{folder}/",
    ):
        bundle = lithi.open_bundle(source)
        assert bundle.snapshot == snapshot
        assert bundle.counts.rows == 5
        assert bundle.item_id_field == "item_id"


def test_a_bundle_opens_in_memory_filesystem(make_table: MakeTable) -> None:
    snapshot = write_bundle("memory://test_open/b", make_table(5))
    bundle = lithi.open_bundle("memory://test_open/b")
    assert bundle.snapshot == snapshot
    assert bundle.verify().rows == 5
    assert lithi.open_bundle("memory://test_open/b/result-manifest.json") == bundle


@pytest.mark.parametrize("made", ["nothing", "empty", "parts_only"])
def test_a_folder_without_a_manifest_is_not_a_bundle(
    tmp_path: Path, make_table: MakeTable, made: str
) -> None:
    folder = tmp_path / "b"
    if made == "parts_only":
        write_bundle(folder, make_table(5))
        (folder / "result-manifest.json").unlink()
    elif made == "empty":
        folder.mkdir()
    with pytest.raises(lithi.ManifestMissing) as caught:
        lithi.open_bundle(folder)
    assert isinstance(caught.value, FileNotFoundError)
    assert caught.value.path == str(folder)
    assert caught.value.remedy


def test_a_manifest_that_is_a_fifo_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "result-manifest.json")
    with pytest.raises(lithi.ManifestMissing, match="FIFO"):
        lithi.open_bundle(tmp_path)


def test_a_changed_date_is_refused_and_a_new_indent_is_not(
    tmp_path: Path, make_table: MakeTable
) -> None:
    write_bundle(tmp_path, make_table(5), created_at="2026-11-02T10:00:00Z")
    manifest = tmp_path / "result-manifest.json"
    document = json.loads(manifest.read_bytes())
    manifest.write_text(json.dumps(document, indent=7, sort_keys=True))
    before = lithi.open_bundle(tmp_path).snapshot
    document["created_at"] = "2026-11-02T10:00:01Z"
    manifest.write_text(json.dumps(document))
    with pytest.raises(lithi.SnapshotMismatch) as caught:
        lithi.open_bundle(tmp_path)
    assert before.content_sha256 in str(caught.value)


def test_a_pin_that_differs_in_either_member_is_refused_showing_both(
    tmp_path: Path, make_table: MakeTable
) -> None:
    snapshot = write_bundle(tmp_path, make_table(5))
    assert lithi.open_bundle(tmp_path, snapshot=snapshot.as_dict()).snapshot == snapshot
    for pin in (
        {**snapshot.as_dict(), "version_id": "another"},
        {**snapshot.as_dict(), "content_sha256": "0" * 64},
    ):
        with pytest.raises(lithi.SnapshotMismatch) as caught:
            lithi.open_bundle(tmp_path, snapshot=pin)
        assert isinstance(caught.value, lithi.StateError)
        assert caught.value.expected == pin
        assert caught.value.found == snapshot.as_dict()
    with pytest.raises(lithi.UsageError):
        lithi.open_bundle(tmp_path, snapshot={"version_id": "x"})


def test_a_partial_bundle_is_refused_with_its_next_action(
    tmp_path: Path, make_table: MakeTable
) -> None:
    action = {"action": "RESUBMIT_OUTSTANDING", "message": "Send the rest again."}
    write_bundle(tmp_path, make_table(5), outstanding=["x1", "x2"], next_action=action)
    with pytest.raises(lithi.BundlePartial) as caught:
        lithi.open_bundle(tmp_path)
    assert caught.value.next_action == action
    assert pickle.loads(pickle.dumps(caught.value)).next_action == action
    assert "Send the rest again." in str(caught.value)
    assert lithi.open_bundle(tmp_path, allow_partial=True).counts.outstanding == 2


def test_opening_touches_only_the_manifest(tmp_path: Path, make_table: MakeTable) -> None:
    write_bundle(tmp_path, [make_table(5), make_table(5, 5)], attachments={"log.txt": b"hello"})
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.name != "result-manifest.json":
            path.unlink()
    bundle = lithi.open_bundle(tmp_path)
    assert [part.rows for part in bundle.parts] == [5, 5]
    with pytest.raises(lithi.FileMissing):
        bundle.verify()


def test_types_and_nullability_come_from_the_manifest(
    tmp_path: Path, make_table: MakeTable
) -> None:
    table = make_table(4, label=pa.array([0, 1, None, 1], pa.int8()))
    write_bundle(tmp_path, table, class_names={"label": ["ham", "spam"]})
    bundle = lithi.open_bundle(tmp_path)
    assert bundle.arrow_schema.field("label").type == pa.int64()
    assert bundle.arrow_schema.field("vector").type == pa.list_(pa.uint8(), 3)
    assert not bundle.arrow_schema.field("item_id").nullable
    assert bundle.features["label"].names == ["ham", "spam"]


def test_a_bundle_survives_pickling_without_credentials(
    tmp_path: Path, make_table: MakeTable
) -> None:
    write_bundle("memory://test_pickle/b", make_table(5))
    lithi.register_credential(
        "pickle-ref", lambda: {"skip_instance_cache": True, "x": "s3cr3t-key"}
    )
    bundle = lithi.open_bundle("memory://test_pickle/b", credential_ref="pickle-ref")
    raw = pickle.dumps(bundle)
    assert b"s3cr3t-key" not in raw
    assert pickle.loads(raw) == bundle
    assert "s3cr3t-key" not in repr(bundle)


def test_an_unknown_credential_reference_is_refused(make_table: MakeTable) -> None:
    with pytest.raises(lithi.CredentialError, match="nobody"):
        lithi.open_bundle("memory://x/y", credential_ref="nobody")


@pytest.mark.parametrize(
    ("url", "secret"),
    [
        ("https://user:hunter22@localhost/bundle", "hunter22"),
        ("https://hunter22@localhost/bundle", "hunter22"),
        ("https://localhost/bundle?X-Amz-Signature=hunter22", "hunter22"),
        ("s3://AKIAKEY:hunter22@bucket/prefix", "hunter22"),
        ("sftp://user:hunter22@localhost/bundle", "hunter22"),
        ("simplecache::s3://AKIAKEY:hunter22@bucket/prefix", "hunter22"),
    ],
)
def test_a_secret_in_an_address_is_refused_and_not_shown(url: str, secret: str) -> None:
    with pytest.raises(lithi.CredentialError) as caught:
        lithi.open_bundle(url)
    assert secret not in str(caught.value)
    assert "register_credential" in str(caught.value)


@pytest.mark.parametrize("source", ["", None, 7, b"bytes", "a\0b"])
def test_something_that_is_no_path_is_wrong_usage(source: object) -> None:
    with pytest.raises(lithi.UsageError):
        lithi.open_bundle(source)  # type: ignore[arg-type]


def test_verify_lists_what_is_not_bound_and_opens_none_of_it(
    tmp_path: Path, make_table: MakeTable
) -> None:
    write_bundle(tmp_path, make_table(5), attachments={"logs/run.txt": b"hello"})
    os.mkfifo(tmp_path / "parts" / "stray")
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "link").symlink_to("/dev/zero")
    report = lithi.open_bundle(tmp_path).verify()
    assert report.unbound == ("link", "notes.txt", "parts/stray")
    assert (report.files, report.rows) == (2, 5)
    assert sum(report.statuses.values()) == 5


def test_a_bound_link_is_followed_and_what_it_ends_at_must_be_a_file(
    tmp_path: Path, make_table: MakeTable
) -> None:
    write_bundle(tmp_path / "b", make_table(5))
    (path,) = (tmp_path / "b" / "parts").iterdir()
    path.rename(tmp_path / "blob")
    path.symlink_to(tmp_path / "blob")
    assert lithi.open_bundle(tmp_path / "b").verify().rows == 5
    for target in ("/dev/zero", str(tmp_path), str(tmp_path / "nowhere"), str(path)):
        path.unlink()
        path.symlink_to(target)
        with pytest.raises(lithi.FileMissing):
            lithi.open_bundle(tmp_path / "b").verify()
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(lithi.FileMissing, match="FIFO"):
        lithi.open_bundle(tmp_path / "b").verify()


def test_unknown_members_are_kept(tmp_path: Path, make_table: MakeTable) -> None:
    write_bundle(tmp_path, make_table(5), extra={"run": {"cost": 1.5, "tags": ["a"]}})
    reseal(tmp_path, lambda document: document["parts"][0].update(host="h1"))
    bundle = lithi.open_bundle(tmp_path)
    assert bundle.manifest.model_extra == {"run": {"cost": 1.5, "tags": ["a"]}}
    assert bundle.parts[0].model_extra == {"host": "h1"}
    assert read_manifest_document(tmp_path)["parts"][0]["host"] == "h1"
