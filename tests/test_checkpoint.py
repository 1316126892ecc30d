"""The snapshot beside a checkpoint: written whole, and refused on any other rows."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import datasets
import pytest
from ranks import write_rows

import lithi_datasets as lithi
from lithi_datasets.checkpoint import check_snapshot, model_card_metadata, record_snapshot
from lithi_datasets.reading.split import split_by_node

Folders = tuple[Path, Path, Path]


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """A bundle, a newer one that supersedes it, and a foreign one."""
    root = tmp_path_factory.mktemp("checkpoint")
    write_rows(root / "old", (4, 5))
    old = lithi.open_bundle(root / "old").snapshot
    write_rows(root / "new", (4, 5, 1), version_id="res_ranks_2", supersedes=old)
    write_rows(root / "other", (3,), version_id="res_other_1")
    return root / "old", root / "new", root / "other"


def _load(folder: Path | str, **more: Any) -> Any:
    return lithi.load(folder, cache_dir=Path(folder).parent / "cache", **more)


def test_a_record_says_which_rows_a_checkpoint_is_of(bundles: Folders, tmp_path: Path) -> None:
    ds = _load(bundles[0], statuses=["accepted"])
    loader = lithi.torch_loader(ds, 2)
    next(iter(loader))
    path = record_snapshot(tmp_path / "ckpt", ds, loader=loader, extra={"step": 7})
    assert path == tmp_path / "ckpt" / "lithi-snapshot.json"
    written = json.loads(path.read_text(encoding="utf-8"))
    assert written == check_snapshot(tmp_path / "ckpt", ds)
    assert written["snapshot"] == lithi.snapshot_of(ds).as_dict()
    assert written["item_id_field"] == "item_id"
    assert written["counts"]["rows"] == 9
    assert (written["split"], written["statuses"], written["rows"]) == ("train", ["accepted"], 7)
    assert written["loader"] == loader.state_dict()
    assert written["extra"] == {"step": 7}
    assert written["packages"]["datasets"] == datasets.__version__
    again = lithi.torch_loader(ds, 2)
    again.load_state_dict(written["loader"])
    assert len(again) == len(loader)


def test_a_record_is_replaced_whole_and_leaves_nothing_beside(
    bundles: Folders, tmp_path: Path
) -> None:
    record_snapshot(tmp_path, _load(bundles[0]))
    before = (tmp_path / "lithi-snapshot.json").read_bytes()
    with pytest.raises(lithi.UsageError, match="not JSON"):
        record_snapshot(tmp_path, _load(bundles[2]), extra={"x": float("nan")})
    assert (tmp_path / "lithi-snapshot.json").read_bytes() == before
    path = record_snapshot(tmp_path, _load(bundles[2]))
    assert check_snapshot(tmp_path, _load(bundles[2]))["snapshot"]["version_id"] == "res_other_1"
    assert os.listdir(tmp_path) == ["lithi-snapshot.json"]
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask


def test_a_record_that_cannot_be_written_is_a_storage_error(
    bundles: Folders, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(lithi.StorageError):
        record_snapshot(tmp_path / "file", _load(bundles[0]))
    (tmp_path / "taken" / "lithi-snapshot.json").mkdir(parents=True)
    with pytest.raises(lithi.StorageError):
        record_snapshot(tmp_path / "taken", _load(bundles[0]))
    assert os.listdir(tmp_path / "taken") == ["lithi-snapshot.json"]


def test_another_bundle_is_a_mismatch_that_shows_both(bundles: Folders, tmp_path: Path) -> None:
    record_snapshot(tmp_path, _load(bundles[0]))
    with pytest.raises(lithi.SnapshotMismatch, match="another bundle") as caught:
        check_snapshot(tmp_path, _load(bundles[2]))
    recorded, found = (lithi.open_bundle(folder).snapshot for folder in (bundles[0], bundles[2]))
    assert json.loads(str(caught.value.expected)) == recorded.as_dict()
    assert json.loads(str(caught.value.found)) == found.as_dict()


def test_a_newer_bundle_is_named_as_the_one_that_replaces(bundles: Folders, tmp_path: Path) -> None:
    old, new, _ = bundles
    replaces = "bundle res_ranks_1, which a newer manifest replaces: that of res_ranks_2"
    record_snapshot(tmp_path, _load(old))
    with pytest.raises(lithi.SnapshotMismatch, match=replaces):
        check_snapshot(tmp_path, _load(new))
    with pytest.raises(lithi.SnapshotMismatch, match=replaces):
        check_snapshot(tmp_path, lithi.open_bundle(new))
    record_snapshot(tmp_path, _load(new))
    with pytest.raises(lithi.SnapshotMismatch, match="replaces this older one: res_ranks_1"):
        check_snapshot(tmp_path, _load(old))


@pytest.mark.parametrize("streaming", [False, True], ids=["map", "stream"])
def test_the_state_of_a_loader_is_told_that_a_newer_manifest_replaces_its_bundle(
    bundles: Folders, streaming: bool
) -> None:
    old, new, other = (lithi.torch_loader(_load(b, streaming=streaming), 2) for b in bundles)
    with pytest.raises(lithi.SnapshotMismatch, match="res_ranks_1, which a newer manifest"):
        new.load_state_dict(old.state_dict())
    with pytest.raises(lithi.SnapshotMismatch, match="its snapshot differs"):
        other.load_state_dict(old.state_dict())


@pytest.mark.parametrize(
    ("member", "change"),
    [
        ("statuses", lambda folder: _load(folder, statuses=["accepted"])),
        ("split", lambda folder: _load(folder, split="train[:5]")),
        ("rows", lambda folder: _load(folder).filter(_even, input_columns=["labels"])),
        ("view", lambda folder: _load(folder).shuffle(seed=1)),
        ("view", lambda folder: _load(folder, streaming=True).map(lambda row: row)),
    ],
)
def test_other_rows_of_the_same_bundle_are_a_state_error(
    bundles: Folders, tmp_path: Path, member: str, change: Any
) -> None:
    other = change(bundles[0])
    streaming = isinstance(other, datasets.IterableDataset)
    whole = _load(bundles[0], streaming=streaming)
    for first, second in ((whole, other), (other, whole)):
        record_snapshot(tmp_path, first)
        check_snapshot(tmp_path, first)
        with pytest.raises(lithi.StateError, match=f"{member}.* differ") as caught:
            check_snapshot(tmp_path, second)
        assert not isinstance(caught.value, lithi.SnapshotMismatch)
        assert caught.value.expected != caught.value.found


def _even(label: int) -> bool:
    return int(label) % 2 == 0


def test_a_record_of_a_bundle_or_of_a_share_compares_no_rows(
    bundles: Folders, tmp_path: Path
) -> None:
    ds = _load(bundles[0])
    record_snapshot(tmp_path, lithi.open_bundle(bundles[0]))
    check_snapshot(tmp_path, ds)
    check_snapshot(tmp_path, _load(bundles[0], statuses=["failed"]))
    record_snapshot(tmp_path, split_by_node(ds, 0, 2))
    check_snapshot(tmp_path, split_by_node(ds, 2, 3))
    check_snapshot(tmp_path, ds)
    with pytest.raises(lithi.StateError, match="their statuses differ"):
        check_snapshot(tmp_path, split_by_node(_load(bundles[0], statuses=["failed"]), 0, 2))
    splits = _load(bundles[0], split=None)
    record_snapshot(tmp_path, splits)
    assert check_snapshot(tmp_path, splits)["split"] == ["train"]


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", "\xff", '{"version": 2}', '{"version": true}', '{"version": 1}'),
        *('{"version": 1, "snapshot": {"version_id": "a"}}', "[" * 100_000),
        '{"version": 1, "snapshot": {"version_id": 1, "content_sha256": "a"}}',
    ],
    ids=str.__len__,
)
def test_a_broken_record_is_a_state_error(bundles: Folders, tmp_path: Path, text: str) -> None:
    (tmp_path / "lithi-snapshot.json").write_text(text, encoding="latin-1")
    with pytest.raises(lithi.StateError, match="broken") as caught:
        check_snapshot(tmp_path, lithi.open_bundle(bundles[0]))
    assert not isinstance(caught.value, lithi.SnapshotMismatch)


def test_a_checkpoint_without_a_record_is_a_state_error(bundles: Folders, tmp_path: Path) -> None:
    with pytest.raises(lithi.StateError, match="does not say which bundle"):
        check_snapshot(tmp_path, lithi.open_bundle(bundles[0]))


def test_a_loader_or_a_dataset_of_no_bundle_is_refused(bundles: Folders, tmp_path: Path) -> None:
    ds = _load(bundles[0])
    for given in (lithi.torch_loader(_load(bundles[2]), 2), {}, object()):
        with pytest.raises(lithi.UsageError, match="not of this dataset's bundle"):
            record_snapshot(tmp_path, ds, loader=given)
    with pytest.raises(lithi.UsageError):
        record_snapshot(tmp_path, datasets.Dataset.from_dict({"a": [1]}))
    assert os.listdir(tmp_path) == []


def test_the_card_of_a_model_carries_the_snapshot(bundles: Folders) -> None:
    from huggingface_hub import ModelCard, ModelCardData

    ds = _load(bundles[0], statuses=["accepted"])
    data = ModelCardData(license="apache-2.0", **model_card_metadata(ds))
    card = ModelCard(f"---\n{data.to_yaml()}\n---\n# A model\n")
    block = card.data["lithi_bundle"]
    snapshot = lithi.snapshot_of(ds).as_dict()
    assert block == {**snapshot, "split": "train", "statuses": ["accepted"], "rows": 7}
    assert model_card_metadata(lithi.open_bundle(bundles[0]))["lithi_bundle"] == snapshot


@pytest.mark.parametrize(
    "extra",
    [float("nan"), object(), [1], "x", {1: 2}, {"a": {1: 2}}, {"a": "\ud800"}, {"a": [{2: 1}]}],
    ids=lambda value: type(value).__name__,
)
def test_extra_that_json_does_not_give_back_is_refused(
    bundles: Folders, tmp_path: Path, extra: Any
) -> None:
    with pytest.raises(lithi.UsageError):
        record_snapshot(tmp_path, lithi.open_bundle(bundles[0]), extra=extra)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("folder", [None, 5, "a\0b", b"x", "memory://checkpoint"], ids=repr)
def test_a_folder_that_is_no_local_one_is_a_usage_error(
    bundles: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    bundle = lithi.open_bundle(bundles[0])
    for call in (record_snapshot, check_snapshot):
        with pytest.raises(lithi.UsageError, match="local"):
            call(folder, bundle)
    assert os.listdir(tmp_path) == []


def test_a_record_that_says_a_thing_twice_is_broken(bundles: Folders, tmp_path: Path) -> None:
    bundle = lithi.open_bundle(bundles[0])
    path = record_snapshot(tmp_path, bundle)
    path.write_text(path.read_text().replace("{", '{"snapshot": {},', 1))
    with pytest.raises(lithi.StateError, match="broken"):
        check_snapshot(tmp_path, bundle)
