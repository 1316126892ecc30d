"""`partition_plan`: who reads which part, as plain JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from lithi_datasets.bundle import open_bundle
from lithi_datasets.errors import UsageError
from lithi_datasets.reading.plan import (
    PLAN_VERSION,
    partition_plan,
)
from lithi_datasets.testing import PartSpec, write_bundle

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from lithi_datasets.bundle import Bundle


@pytest.fixture
def bundle(tmp_path: Path, make_table: Any, uneven_tables: list[pa.Table]) -> Bundle:
    """Parts of 10, 1, 1, 10 and 15 rows of `train`, one of 4 rows of `test` between them."""
    parts = [PartSpec(table) for table in uneven_tables]
    parts.insert(2, PartSpec(make_table(4, 100), split="test"))
    write_bundle(tmp_path / "bundle", parts)
    return open_bundle(tmp_path / "bundle")


def test_the_plan_of_a_bundle_is_plain_json(bundle: Bundle) -> None:
    plan = partition_plan(bundle, 2, 2, batch_size=4)
    assert json.loads(json.dumps(plan)) == plan
    assert plan == {
        "version": PLAN_VERSION,
        "snapshot": bundle.snapshot.as_dict(),
        "split": "train",
        "world_size": 2,
        "num_workers": 2,
        "batch_size": 4,
        "drop_last": False,
        "rows": 37,
        "min_rows": 17,
        "max_rows": 20,
        "min_steps": 5,
        "max_steps": 6,
        "ranks": [
            {
                "rank": 0,
                "rows": 17,
                "steps": 5,
                "workers": [
                    {"worker": 0, "rows": 15, "steps": 4, "parts": parts_of(bundle, 5)},
                    {"worker": 1, "rows": 2, "steps": 1, "parts": parts_of(bundle, 1, 3)},
                ],
            },
            {
                "rank": 1,
                "rows": 20,
                "steps": 6,
                "workers": [
                    {"worker": 0, "rows": 10, "steps": 3, "parts": parts_of(bundle, 0)},
                    {"worker": 1, "rows": 10, "steps": 3, "parts": parts_of(bundle, 4)},
                ],
            },
        ],
    }


def parts_of(bundle: Bundle, *indexes: int) -> list[dict[str, Any]]:
    """The entries of parts: their index is that in the bundle, not that in the split."""
    return [
        {"index": index, "path": bundle.parts[index].path, "rows": bundle.parts[index].rows}
        for index in indexes
    ]


@pytest.mark.parametrize("workers", [0, 1, 2, 7])
@pytest.mark.parametrize("world", [1, 2, 3, 5, 8])
def test_each_part_of_the_split_has_one_owner(bundle: Bundle, world: int, workers: int) -> None:
    plan = partition_plan(bundle, world, workers)
    owned = [
        part["index"]
        for rank in plan["ranks"]
        for worker in rank["workers"]
        for part in worker["parts"]
    ]
    assert sorted(owned) == [0, 1, 3, 4, 5]
    assert [rank["rank"] for rank in plan["ranks"]] == list(range(world))
    assert all(len(rank["workers"]) == plan["num_workers"] for rank in plan["ranks"])
    assert plan["num_workers"] == max(1, workers)
    rows = [rank["rows"] for rank in plan["ranks"]]
    assert (min(rows), max(rows), sum(rows)) == (plan["min_rows"], plan["max_rows"], 37)


def test_steps_are_counted_where_a_batch_size_is_given(bundle: Bundle) -> None:
    plan = partition_plan(bundle, 2)
    assert (plan["batch_size"], plan["min_steps"], plan["max_steps"]) == (None, None, None)
    assert all(rank["steps"] is None for rank in plan["ranks"])
    assert [rank["steps"] for rank in partition_plan(bundle, 2, batch_size=6)["ranks"]] == [3, 4]
    dropping = partition_plan(bundle, 2, batch_size=6, drop_last=True)
    assert [rank["steps"] for rank in dropping["ranks"]] == [2, 3]
    assert [rank["steps"] for rank in partition_plan(bundle, 9, batch_size=6)["ranks"]][5:] == [
        0
    ] * 4


def test_another_split_has_a_plan_of_its_own(bundle: Bundle) -> None:
    plan = partition_plan(bundle, 2, split="test")
    assert plan["rows"] == 4
    assert [rank["workers"][0]["parts"] for rank in plan["ranks"]] == [parts_of(bundle, 2), []]


def test_a_bundle_without_parts_has_a_plan(tmp_path: Path, make_table: Any) -> None:
    write_bundle(tmp_path / "none", make_table(0), mutate=without_parts)
    plan = partition_plan(open_bundle(tmp_path / "none"), 3, 2, batch_size=4)
    assert (plan["rows"], plan["max_rows"], plan["max_steps"]) == (0, 0, 0)
    assert [len(rank["workers"]) for rank in plan["ranks"]] == [2, 2, 2]


def without_parts(document: dict[str, Any]) -> None:
    document["parts"] = []


@pytest.mark.parametrize("split", ["valid", "", None, ["train"], "train[:5]"])
def test_an_unknown_split_is_refused_with_those_there_are(bundle: Bundle, split: Any) -> None:
    with pytest.raises(UsageError, match="train, test"):
        partition_plan(bundle, 2, split=split)


def test_a_plan_for_no_rank_or_wrong_numbers_is_refused(bundle: Bundle) -> None:
    for arguments, named in (((0,), "world_size"), ((-1,), "world_size"), ((1, -1), "num_workers")):
        with pytest.raises(ValueError, match=named):
            partition_plan(bundle, *arguments)
    with pytest.raises(UsageError, match="batch_size="):
        partition_plan(bundle, 1, batch_size=0)
    with pytest.raises(UsageError, match="drop_last="):
        partition_plan(bundle, 1, drop_last=None)  # type: ignore[arg-type]
