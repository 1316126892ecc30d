"""A bundle that is not what its manifest says is refused by name, whichever door it comes
through."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import MakeTable, result_table

import lithi_datasets as lithi
from lithi_datasets.testing import PartSpec, reseal, write_bundle

Door = Callable[[Path, Path], object]


def _verify(folder: Path, cache: Path) -> object:
    return lithi.open_bundle(folder).verify()


def _load(folder: Path, cache: Path) -> object:
    return lithi.load(folder, cache_dir=cache)


def _load_dataset(folder: Path, cache: Path) -> object:
    return datasets.load_dataset("lithi_bundle", data_dir=str(folder), cache_dir=str(cache))


def _load_parallel(folder: Path, cache: Path) -> object:
    return lithi.load(folder, cache_dir=cache, num_proc=2)


DOORS = {
    "verify": _verify,
    "load": _load,
    "load_dataset": _load_dataset,
    "num_proc": _load_parallel,
}


@pytest.fixture(params=sorted(DOORS))
def door(request: pytest.FixtureRequest) -> Door:
    return DOORS[request.param]


@dataclass(frozen=True)
class Damage:
    error: type[lithi.LithiError]
    do: Callable[[Path], object]
    table: Callable[[], Any] = lambda: [result_table(6), result_table(7, 6)]
    writing: dict[str, Any] | None = None


def _part(folder: Path, index: int = 1) -> Path:
    return sorted((folder / "parts").iterdir())[index]


def _flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


def _count(**changed: int) -> Callable[[Path], object]:
    def do(folder: Path) -> object:
        return reseal(
            folder, lambda document: document["parts"][1]["status_counts"].update(changed)
        )

    return do


def _totals(folder: Path) -> object:
    def mutate(document: dict[str, Any]) -> None:
        for part in document["parts"]:
            del part["status_counts"]
        document["counts"]["accepted"] += 1
        document["counts"]["failed"] -= 1

    return reseal(folder, mutate)


def _rows(folder: Path) -> object:
    def mutate(document: dict[str, Any]) -> None:
        for part, rows in zip(document["parts"], (7, 6), strict=True):
            part.pop("status_counts")
            part["rows"] = rows

    return reseal(folder, mutate)


def _replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _nothing(folder: Path) -> None:
    pass


def _nested_required() -> list[pa.Table]:
    inner = pa.struct([pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.string())])
    values = [[{"a": 1, "b": "x"}], None, [], [None, {"a": 2, "b": None}], [{"a": 3, "b": "y"}], []]
    good = result_table(6, nested=pa.array(values, pa.list_(inner)))
    plain = pa.list_(pa.struct([("a", pa.int32()), ("b", pa.string())]))
    bad = result_table(6, 6, nested=pa.array([[{"a": None, "b": "x"}], *values[1:]], plain))
    return [good, bad]


DAMAGES = {
    "part_gone": Damage(lithi.FileMissing, lambda f: _part(f).unlink()),
    "part_is_a_folder": Damage(
        lithi.FileMissing,
        lambda f: _replace_by_folder(_part(f)),
    ),
    "part_truncated": Damage(
        lithi.FileSizeMismatch, lambda f: _part(f).write_bytes(_part(f).read_bytes()[:-1])
    ),
    "part_longer": Damage(
        lithi.FileSizeMismatch, lambda f: _part(f).write_bytes(_part(f).read_bytes() + b"x")
    ),
    "part_bit_flipped": Damage(lithi.FileDigestMismatch, lambda f: _flip(_part(f))),
    "attachment_bit_flipped": Damage(
        lithi.FileDigestMismatch,
        lambda f: _flip(f / "logs" / "run.txt"),
        writing={"attachments": {"logs/run.txt": b"all went well"}},
    ),
    "attachment_gone": Damage(
        lithi.FileMissing,
        lambda f: (f / "logs" / "run.txt").unlink(),
        writing={"attachments": {"logs/run.txt": b"all went well"}},
    ),
    "rows_differ": Damage(lithi.RowCountMismatch, _rows),
    "part_statuses_differ": Damage(
        lithi.StatusCountMismatch,
        _nothing,
        table=lambda: [
            result_table(6),
            PartSpec(
                result_table(5, 6), status_counts={"accepted": 2, "failed": 2, "abstained": 1}
            ),
        ],
    ),
    "total_statuses_differ": Damage(lithi.StatusCountMismatch, _totals),
    "id_twice_in_one_part": Damage(
        lithi.DuplicateItemId,
        _nothing,
        table=lambda: [result_table(3), pa.concat_tables([result_table(2, 3), result_table(1, 4)])],
    ),
    "id_twice_over_parts": Damage(
        lithi.DuplicateItemId, _nothing, table=lambda: [result_table(6), result_table(3, 5)]
    ),
    "id_twice_over_splits": Damage(
        lithi.DuplicateItemId,
        _nothing,
        table=lambda: {"train": result_table(6), "test": result_table(3, 5)},
    ),
    "null_in_required": Damage(
        lithi.NullInRequiredField,
        _nothing,
        table=lambda: [
            result_table(4),
            result_table(4, 4, score=pa.array([1, None, 2, 3], pa.float32())),
        ],
        writing={"required": ["score"]},
    ),
    "null_in_nested_required": Damage(lithi.NullInRequiredField, _nothing, table=_nested_required),
    "column_missing": Damage(
        lithi.SchemaMismatch,
        _nothing,
        table=lambda: [result_table(4), result_table(4, 4).drop_columns(["score"])],
    ),
    "column_extra": Damage(
        lithi.SchemaMismatch,
        _nothing,
        table=lambda: [result_table(4), result_table(4, 4, more=pa.array([1, 2, 3, 4]))],
    ),
    "type_narrower": Damage(
        lithi.SchemaMismatch,
        _nothing,
        table=lambda: [
            result_table(4),
            result_table(4, 4, score=pa.array([1, 2, 3, 4], pa.float64())),
        ],
    ),
    "status_unknown": Damage(
        lithi.SchemaMismatch,
        _nothing,
        table=lambda: [
            PartSpec(
                result_table(2, lithi_status=pa.array(["accepted", "ok"])), status_counts=False
            )
        ],
        writing={"mutate": lambda d: d["counts"].update(accepted=2)},
    ),
    "confidence_above_one": Damage(
        lithi.SchemaMismatch, _nothing, table=lambda: result_table(1, lithi_confidence=[1.0001])
    ),
    "confidence_nan": Damage(
        lithi.SchemaMismatch,
        _nothing,
        table=lambda: result_table(1, lithi_confidence=pa.array([float("nan")], pa.float64())),
    ),
    "class_out_of_range": Damage(
        lithi.SchemaMismatch,
        _nothing,
        table=lambda: result_table(2, label=pa.array([1, 2], pa.int8())),
        writing={"class_names": {"label": ["a", "b"]}},
    ),
    "bytes_that_do_not_decode": Damage(
        lithi.PartDecodeError,
        _nothing,
        table=lambda: [PartSpec(result_table(2), data=b"PAR1 this is no Parquet PAR1")],
    ),
    "arrow_that_does_not_decode": Damage(
        lithi.PartDecodeError,
        _nothing,
        table=lambda: [PartSpec(result_table(2), format="arrow", data=b"ARROW1\0\0garbage")],
    ),
    "outstanding_id_is_a_row": Damage(
        lithi.DuplicateItemId,
        _nothing,
        writing={"outstanding": ["x1", "item-000003"], "bind_outstanding": True, "partial": True},
    ),
    "outstanding_list_too_short": Damage(
        lithi.RowCountMismatch,
        lambda f: reseal(
            f, lambda d: d["counts"].update(outstanding=3, items=d["counts"]["items"] + 1)
        ),
        writing={"outstanding": ["x1", "x2"], "bind_outstanding": True, "partial": True},
    ),
}


@pytest.mark.parametrize("name", sorted(DAMAGES))
def test_a_damaged_bundle_is_refused_by_name_and_leaves_nothing(
    name: str, door: Door, tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage = DAMAGES[name]
    writing = dict(damage.writing or {})
    if writing.pop("partial", False):
        original = lithi.open_bundle
        monkeypatch.setattr(
            "lithi_datasets.builder.open_bundle", lambda s, **k: original(s, allow_partial=True)
        )
        monkeypatch.setattr(lithi, "open_bundle", lambda s: original(s, allow_partial=True))
    write_bundle(tmp_path / "b", damage.table(), **writing)
    damage.do(tmp_path / "b")
    with pytest.raises(damage.error) as caught:
        door(tmp_path / "b", cache_dir)
    assert type(caught.value) is damage.error
    assert caught.value.path
    assert caught.value.found is not None
    if damage.error is not lithi.PartDecodeError:
        assert caught.value.expected is not None
    assert caught.value.remedy
    assert list(_arrow_files(cache_dir)) == []
    assert not list(cache_dir.rglob(".lithi-tmp-*"))


@pytest.mark.parametrize(
    "name",
    sorted(
        set(DAMAGES)
        - {n for n in DAMAGES if n.startswith(("id_twice", "outstanding", "total", "att"))}
    ),
)
def test_a_stream_yields_no_row_of_a_part_that_is_refused(name: str, tmp_path: Path) -> None:
    damage = DAMAGES[name]
    write_bundle(tmp_path, damage.table(), **(damage.writing or {}))
    damage.do(tmp_path)
    first_part = lithi.open_bundle(tmp_path).parts[0]
    seen: list[dict[str, Any]] = []
    with pytest.raises(damage.error):
        seen.extend(
            row
            for row in datasets.load_dataset(
                "lithi_bundle", data_dir=str(tmp_path), split="train", streaming=True
            )
        )
    assert len(seen) in (0, first_part.rows)


def test_five_duplicates_are_named_with_their_places(tmp_path: Path, make_table: MakeTable) -> None:
    write_bundle(tmp_path, [make_table(20), make_table(20, 10)])
    with pytest.raises(lithi.DuplicateItemId) as caught:
        lithi.open_bundle(tmp_path).verify()
    text = str(caught.value)
    assert text.count("'item-") == 5
    assert "parts/part-00000.parquet row 1" in text
    assert "parts/part-00001.parquet row 0" in text
    assert "5 more" in text


def test_a_part_that_changes_between_hash_and_decode_is_never_read_twice(
    tmp_path: Path, make_table: MakeTable
) -> None:
    from lithi_datasets.testing import Fault, fault_filesystem

    write_bundle(tmp_path / "b", make_table(5))
    with fault_filesystem(tmp_path / "b") as scene:
        bundle = lithi.open_bundle(scene.url)
        rows = [row for batch in bundle.read_part(0) for row in batch.to_pylist()]
        assert len(rows) == 5
        assert scene.opens["parts/part-00000.parquet"] == 1
    evil = tmp_path / "evil.parquet"
    pq.write_table(make_table(5, 50), evil)
    with (
        fault_filesystem(
            tmp_path / "b",
            Fault("parts/*", action="replace", data=evil.read_bytes()),
        ) as scene,
        pytest.raises((lithi.FileDigestMismatch, lithi.FileSizeMismatch)),
    ):
        lithi.open_bundle(scene.url).verify()


def test_a_storage_that_fails_is_a_storage_error(tmp_path: Path, make_table: MakeTable) -> None:
    from lithi_datasets.testing import Fault, fault_filesystem

    write_bundle(tmp_path / "b", make_table(5))
    with (
        fault_filesystem(
            tmp_path / "b", Fault("parts/*", action="raise", error=ConnectionResetError("gone"))
        ) as scene,
        pytest.raises(lithi.StorageError, match="gone") as caught,
    ):
        lithi.open_bundle(scene.url).verify()
    assert isinstance(caught.value, OSError)


def _arrow_files(folder: Path) -> Iterator[Path]:
    for root, _, names in os.walk(folder):
        yield from (Path(root) / name for name in names if name.endswith(".arrow"))
