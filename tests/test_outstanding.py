"""PARTIAL to COMPLETE: what is outstanding, and what a newer result changed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from conftest import MakeTable

import lithi_datasets as lithi
from lithi_datasets.outstanding import diff_bundles
from lithi_datasets.testing import write_bundle


def _staged_input(folder: Path, rows: int) -> None:
    table = pa.table({"item_id": [f"item-{n:06d}" for n in range(rows)], "text": ["x"] * rows})
    write_bundle(folder, table, kind="staged_input", version_id="input")


def test_outstanding_items_come_from_the_bound_list(tmp_path: Path, make_table: MakeTable) -> None:
    write_bundle(tmp_path / "b", make_table(5), outstanding=["z", "a"], bind_outstanding=True)
    bundle = lithi.open_bundle(tmp_path / "b", allow_partial=True)
    assert bundle.outstanding_items() == ["z", "a"]


def test_outstanding_items_are_computed_from_the_staged_input(
    tmp_path: Path, make_table: MakeTable
) -> None:
    write_bundle(tmp_path / "b", [make_table(3), make_table(2, 5)], outstanding=3)
    _staged_input(tmp_path / "i", 8)
    bundle = lithi.open_bundle(tmp_path / "b", allow_partial=True)
    wanted = ["item-000003", "item-000004", "item-000007"]
    assert bundle.outstanding_items(tmp_path / "i") == wanted
    assert bundle.outstanding_items(lithi.open_bundle(tmp_path / "i")) == wanted
    with pytest.raises(lithi.UsageError, match="staged_input"):
        bundle.outstanding_items()
    _staged_input(tmp_path / "other", 9)
    with pytest.raises(lithi.RowCountMismatch):
        bundle.outstanding_items(tmp_path / "other")


def test_a_staged_input_of_other_items_is_refused_though_their_number_fits(
    tmp_path: Path, make_table: MakeTable
) -> None:
    write_bundle(tmp_path / "b", make_table(5), outstanding=3)
    other = pa.table({"item_id": ["a", "b", "c"]})
    for name, ids in (("i", other), ("j", pa.table({"item_id": ["item-000000", "a", "b", "c"]}))):
        write_bundle(tmp_path / name, ids, kind="staged_input", version_id=name)
        bundle = lithi.open_bundle(tmp_path / "b", allow_partial=True)
        with pytest.raises(lithi.RowCountMismatch, match="does not fit"):
            bundle.outstanding_items(tmp_path / name)


def test_a_bundle_that_holds_an_item_twice_is_named_as_such(
    tmp_path: Path, make_table: MakeTable
) -> None:
    write_bundle(tmp_path / "old", make_table(5))
    write_bundle(tmp_path / "new", [make_table(5), make_table(1)])
    with pytest.raises(lithi.DuplicateItemId, match="item-000000"):
        diff_bundles(lithi.open_bundle(tmp_path / "old"), lithi.open_bundle(tmp_path / "new"))


def test_a_complete_bundle_has_none(tmp_path: Path, make_table: MakeTable) -> None:
    write_bundle(tmp_path / "b", make_table(5))
    assert lithi.open_bundle(tmp_path / "b").outstanding_items() == []


def test_a_diff_names_what_was_added_lost_and_changed(
    tmp_path: Path, make_table: MakeTable
) -> None:
    old = write_bundle(tmp_path / "old", make_table(10), outstanding=2)
    table = make_table(11, 1).set_column(
        4, "lithi_status", pa.array(["accepted"] * 11, pa.string())
    )
    write_bundle(tmp_path / "new", [table.slice(0, 4), table.slice(4)], supersedes=old)
    found = diff_bundles(
        lithi.open_bundle(tmp_path / "old", allow_partial=True), lithi.open_bundle(tmp_path / "new")
    )
    assert found.supersedes
    assert found.added == ("item-000010", "item-000011")
    assert found.lost == ("item-000000",)
    assert found.changed == (
        ("item-000002", "failed", "accepted"),
        ("item-000004", "abstained", "accepted"),
        ("item-000007", "failed", "accepted"),
        ("item-000009", "abstained", "accepted"),
    )
    assert found.unchanged == 5
    assert found.as_dict()["lost"] == ["item-000000"]


def test_after_resubmission_nothing_of_the_older_cache_is_used(
    tmp_path: Path, make_table: MakeTable
) -> None:
    old = write_bundle(tmp_path / "b", make_table(5), outstanding=1)
    first = lithi.load(tmp_path / "b", cache_dir=tmp_path / "c", allow_partial=True)
    write_bundle(tmp_path / "b", make_table(6), supersedes=old, overwrite=True, version_id="newer")
    second = lithi.load(tmp_path / "b", cache_dir=tmp_path / "c")
    assert len(second) == 6
    files = [{f["filename"] for f in ds.cache_files} for ds in (first, second)]
    assert not files[0] & files[1]
