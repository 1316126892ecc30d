"""The bundle writer: its manifests against the strict parser, right ones and hostile ones."""

from __future__ import annotations

import hashlib
import importlib
import sys
from typing import TYPE_CHECKING

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings

from lithi_datasets.errors import LithiError, ManifestInvalid, SnapshotMismatch, UsageError
from lithi_datasets.manifest import MANIFEST_NAME, Manifest, Snapshot
from lithi_datasets.plain_values import plain_values
from lithi_datasets.testing import (
    PartSpec,
    read_manifest_document,
    reseal,
    strategies,
    write_bundle,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lithi_datasets.testing.writer import Document


def rows(count: int = 3, first: int = 0) -> pa.Table:
    statuses = ["accepted", "failed", "abstained"]
    return pa.table(
        {
            "item_id": [f"i{first + index}" for index in range(count)],
            "n": pa.array(range(count), pa.int32()),
            "lithi_status": [statuses[index % 3] for index in range(count)],
        }
    )


def parse(folder: Path) -> Manifest:
    return Manifest.parse((folder / MANIFEST_NAME).read_bytes())


@pytest.mark.parametrize(
    ("format", "compression"),
    [
        ("parquet", None),
        ("arrow", None),
        ("jsonl", None),
        ("jsonl", "gzip"),
        ("jsonl", "zstd"),
        ("csv", None),
        ("csv", "gzip"),
        ("csv", "zstd"),
    ],
)
def test_each_format_gives_a_manifest_that_parses_and_the_same_bytes_again(
    tmp_path: Path, format: str, compression: str | None
) -> None:
    for name in ("a", "b"):
        snapshot = write_bundle(
            tmp_path / name, [rows(), rows(2, 3)], format=format, compression=compression
        )
    manifest = parse(tmp_path / "a")
    assert manifest.snapshot == snapshot
    assert [part.rows for part in manifest.parts] == [3, 2]
    assert (manifest.counts.accepted, manifest.counts.failed, manifest.counts.abstained) == (
        2,
        2,
        1,
    )
    for part in manifest.parts:
        data = (tmp_path / "a" / part.path).read_bytes()
        assert (part.format, part.compression) == (format, compression)
        assert (part.bytes, part.sha256) == (len(data), hashlib.sha256(data).hexdigest())
        assert data == (tmp_path / "b" / part.path).read_bytes()
    raw = [(tmp_path / name / MANIFEST_NAME).read_bytes() for name in ("a", "b")]
    assert raw[0] == raw[1]


def test_ids_and_statuses_are_required_and_others_on_request(tmp_path: Path) -> None:
    write_bundle(tmp_path, rows(), class_names={"n": ["x", "y", "z"]}, required=["n"])
    fields = {field.name: field for field in parse(tmp_path).table.fields}
    assert not any(field.nullable for field in fields.values())
    assert fields["n"].class_names == ("x", "y", "z")
    with pytest.raises(UsageError, match="typo"):
        write_bundle(tmp_path / "other", rows(), required=["typo"])


def test_declared_fields_may_differ_from_the_physical_ones(tmp_path: Path) -> None:
    fields: list[dict[str, object]] = [
        {"name": "item_id", "type": "string", "nullable": False},
        {"name": "n", "type": "uint64"},
    ]
    table = rows().drop_columns("lithi_status")
    write_bundle(tmp_path, table, fields=fields, kind="staged_input")
    manifest = parse(tmp_path)
    assert manifest.table.fields[1].type == "uint64"
    assert manifest.counts.accepted == 3
    assert manifest.parts[0].status_counts is None
    assert pq.read_schema(tmp_path / manifest.parts[0].path).field("n").type == pa.int32()


def test_a_partial_bundle_binds_what_is_outstanding(tmp_path: Path) -> None:
    write_bundle(tmp_path, rows(), outstanding=["z1", "z2"], bind_outstanding=True)
    manifest = parse(tmp_path)
    assert (manifest.status, manifest.counts.items, manifest.counts.outstanding) == (
        "PARTIAL",
        5,
        2,
    )
    assert manifest.next_action is not None
    assert manifest.next_action.action == "RESUBMIT_OUTSTANDING"
    (bound,) = manifest.attachments
    assert bound.role == "outstanding_items"
    assert (tmp_path / bound.path).read_bytes() == b"z1\nz2\n"


def test_every_part_can_be_told_apart(tmp_path: Path) -> None:
    write_bundle(
        tmp_path,
        {
            "train": [PartSpec(rows(), path="x.bin", status_counts=False), rows(1, 3)],
            "test": PartSpec(rows(2, 4), format="arrow", options={"stream": True}),
        },
    )
    manifest = parse(tmp_path)
    assert manifest.splits == {"train": (0, 1), "test": (2,)}
    assert [part.path for part in manifest.parts] == [
        "x.bin",
        "parts/part-00001.parquet",
        "parts/part-00002.arrow",
    ]
    assert manifest.parts[0].status_counts is None
    assert manifest.parts[1].status_counts is not None
    assert manifest.parts[1].status_counts.accepted == 1
    stream = pa.ipc.open_stream((tmp_path / manifest.parts[2].path).read_bytes())
    assert stream.read_all() == rows(2, 4)


def test_a_part_can_lie_about_its_rows_and_statuses(tmp_path: Path) -> None:
    lie = {"accepted": 7, "failed": 0, "abstained": 0}
    write_bundle(tmp_path, PartSpec(rows(), data=b"not parquet", rows=7, status_counts=lie))
    manifest = parse(tmp_path)
    assert (manifest.counts.rows, manifest.counts.accepted) == (7, 7)
    assert (tmp_path / manifest.parts[0].path).read_bytes() == b"not parquet"


def test_members_around_the_rows(tmp_path: Path) -> None:
    other = Snapshot(version_id="res_0", content_sha256="0" * 64)
    write_bundle(
        tmp_path,
        [],
        fields=[
            {"name": "key", "type": "string", "nullable": False},
            {"name": "lithi_status", "type": "string", "nullable": False},
        ],
        item_id_field="key",
        version_id="res_1",
        created_at="2026-11-02T10:00:00Z",
        supersedes=other,
        derived_from=[other.as_dict()],
        attachments={"logs/run.txt": b"done"},
        extra={"x_note": {"deep": [1, 2.5]}},
    )
    manifest = parse(tmp_path)
    assert manifest.splits == {"train": ()}
    assert manifest.supersedes == other
    assert [(item.path, item.role) for item in manifest.attachments] == [("logs/run.txt", "log")]
    assert read_manifest_document(tmp_path)["x_note"] == {"deep": [1, 2.5]}
    with pytest.raises(UsageError, match="counts"):
        write_bundle(tmp_path / "b", rows(), extra={"counts": 1})


def test_a_mutated_manifest_is_sealed_whatever_it_is(tmp_path: Path) -> None:
    write_bundle(tmp_path, rows(), mutate=lambda document: document["counts"].update(rows=9))
    with pytest.raises(ManifestInvalid):
        parse(tmp_path)

    def harmless(document: Document) -> None:
        document["counts"]["rows"] = 3
        document["x_note"] = 1

    snapshot = reseal(tmp_path, harmless)
    assert parse(tmp_path).snapshot == snapshot
    reseal(tmp_path, lambda document: document.update(x_note=2), seal=False)
    with pytest.raises(SnapshotMismatch):
        parse(tmp_path)


@pytest.mark.parametrize(
    "mutate",
    [
        lambda document: document.update(snapshot=None),
        lambda document: document.pop("snapshot"),
        lambda document: document["snapshot"].update(version_id=""),
        lambda document: document.update(x_note=float("nan")),
        lambda document: document.update(x_note="\ud800"),
        lambda document: document.update(x_note=10**40),
        lambda document: document.clear(),
    ],
)
def test_what_has_no_digest_is_written_too_and_refused_by_the_parser(
    tmp_path: Path, mutate: Callable[[Document], None]
) -> None:
    assert isinstance(write_bundle(tmp_path, rows(), mutate=mutate), Snapshot)
    with pytest.raises(LithiError):
        parse(tmp_path)


def test_a_call_that_is_refused_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(ManifestInvalid):
        write_bundle(tmp_path / "b", rows(), version_id="")
    with pytest.raises(UsageError, match="below its folder"):
        write_bundle(tmp_path / "b", PartSpec(rows(), path="../x"), mutate=lambda document: None)
    with pytest.raises(UsageError, match="no table"):
        write_bundle(tmp_path / "b", "table")
    assert list(tmp_path.rglob("*")) == []


def test_a_bundle_is_overwritten_on_purpose_only(tmp_path: Path) -> None:
    first = write_bundle(tmp_path, rows())
    with pytest.raises(UsageError, match="bundle already"):
        write_bundle(tmp_path, rows(2))
    assert parse(tmp_path).snapshot == first
    assert write_bundle(tmp_path, rows(2), overwrite=True) == parse(tmp_path).snapshot != first
    assert [path.name for path in tmp_path.rglob("*.writing")] == []


def test_a_url_is_written_like_a_folder(tmp_path: Path) -> None:
    local = write_bundle(tmp_path, rows(), format="csv")
    assert write_bundle("memory://writer/bundle", rows(), format="csv") == local
    fs = fsspec.filesystem("memory")
    assert fs.cat("/writer/bundle/parts/part-00000.csv").startswith(b"item_id,n,lithi_status\n")
    assert Manifest.parse(fs.cat(f"/writer/bundle/{MANIFEST_NAME}")).snapshot == local


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(case=strategies.bundles())
def test_drawn_bundles_are_valid(
    case: strategies.BundleCase, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("drawn")
    snapshot = case.write(folder)
    manifest = parse(folder)
    assert manifest.snapshot == snapshot
    assert sum(table.num_rows for table in case.tables.values()) == manifest.counts.rows
    assert set(case.tables) == set(manifest.splits)
    for part, spec in zip(manifest.parts, case.parts, strict=True):
        if part.format == "arrow":
            opened = pa.ipc.open_stream if spec.options["stream"] else pa.ipc.open_file
            read = opened((folder / part.path).read_bytes()).read_all()
            assert read.schema == spec.table.schema
            for name in read.column_names:
                # As text, because NaN is not equal to itself.
                columns = [plain_values(table[name], field=name) for table in (read, spec.table)]
                assert repr(columns[0]) == repr(columns[1])


def test_strategies_without_hypothesis_say_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    monkeypatch.delitem(sys.modules, "lithi_datasets.testing.strategies")
    with pytest.raises(UsageError, match="hypothesis"):
        importlib.import_module("lithi_datasets.testing.strategies")
