"""The format `lithi_torch`: rows, slices, columns, batches and streams agree, exactly."""

from __future__ import annotations

import copy
import datetime as dt
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest
import torch
from datasets.distributed import split_dataset_by_node
from datasets.formatting import get_formatter
from formatter_rows import NEW_STREAMS, TENSORS, dataset_of, every_column, untouched

import lithi_datasets as lithi
from lithi_datasets.errors import UsageError
from lithi_datasets.reading.formatter import FORMAT
from lithi_datasets.reading.tensors import StructColumn
from lithi_datasets.testing import write_bundle


@pytest.fixture(scope="module", params=[False, True], ids=["no_nulls", "nulls"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    tables = [every_column(5, nulls=request.param), every_column(7, 5, nulls=request.param)]
    write_bundle(folder / "b", tables)
    lithi.load(folder / "b", cache_dir=folder / "cache")
    return folder


def _mapped(bundle: Path) -> datasets.Dataset:
    return lithi.load(bundle / "b", cache_dir=bundle / "cache").with_format(FORMAT)


def _streamed(bundle: Path) -> datasets.IterableDataset:
    return lithi.load(bundle / "b", streaming=True).with_format(FORMAT)


def _same(one: Any, other: Any) -> bool:
    """Equal in kind, dtype, shape and value."""
    if isinstance(one, torch.Tensor):
        same_kind = isinstance(other, torch.Tensor) and one.dtype is other.dtype
        return same_kind and one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, dict):
        fits = isinstance(other, dict) and list(one) == list(other)
        return fits and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, list):
        fits = isinstance(other, list) and len(one) == len(other)
        return fits and all(map(_same, one, other))
    return type(one) is type(other) and bool(one == other)


def _rows(batch: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {name: column[row] for name, column in batch.items()}
        for row in range(len(batch["item_id"]))
    ]


def test_rows_slices_picks_columns_and_iteration_agree(bundle: Path) -> None:
    ds = _mapped(bundle)
    rows = [ds[i] for i in range(len(ds))]
    assert _same(list(ds), rows)
    assert _same(ds[-1], rows[-1])
    whole = [i for i in range(len(ds)) if rows[i]["i8"] is not None]
    picked = ds[whole]
    assert _same(_rows(picked), [rows[i] for i in whole])
    assert _same(_rows(ds[2:5]), rows[2:5])
    assert _same(ds[2:5], ds[[2, 3, 4]])
    assert _same(ds.select(whole)[:], picked)
    for name in ds.column_names:
        column = ds.select(whole)[name]
        assert _same(column[:], picked[name]), name
        assert _same(column[1], rows[whole[1]][name]), name
    assert _same(next(ds.select(whole).iter(3)), ds[whole[:3]])
    # No rows at all: the same kinds.
    nothing = ds[0:0]
    for name, column in picked.items():
        assert type(nothing[name]) is type(column), name
        if isinstance(column, torch.Tensor):
            assert (nothing[name].dtype, nothing[name].shape[1:]) == (
                column.dtype,
                column.shape[1:],
            )


def test_each_value_is_what_the_bundle_says(bundle: Path) -> None:
    ds = _mapped(bundle)
    raw = ds.with_format("arrow")[:]
    for i, row in enumerate(ds):
        for name in ("u64", "i64", "f64", "fixed", "ragged", "text", "price", "tags"):
            value = row[name].tolist() if isinstance(row[name], torch.Tensor) else row[name]
            assert value == raw[name][i].as_py(), name
        for name in ("date", "date_ms", "time", "time_us", "lasted", "at"):
            value = raw[name][i].value
            assert (None if row[name] is None else row[name].item()) == value, name
    kinds = {name: ds[0][name].dtype for name in TENSORS}
    times = dict.fromkeys(("date", "date_ms", "time", "time_us", "lasted", "at"), torch.int64)
    assert kinds == {
        "flag": torch.bool,
        "i8": torch.int8,
        "u16": torch.uint16,
        "u32": torch.uint32,
        "u64": torch.uint64,
        "i64": torch.int64,
        "f16": torch.float16,
        "f32": torch.float32,
        "f64": torch.float64,
        **times,
        "fixed": torch.uint16,
        "matrix": torch.int8,
    }


def _all(row: dict[str, Any]) -> bool:
    return True


def _every(batch: dict[str, Any]) -> list[bool]:
    return [True] * len(batch["item_id"])


OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda s: s,
    "map": lambda s: s.map(untouched),
    "filter": lambda s: s.filter(_all),
    "filter_batched": lambda s: s.filter(_every, batched=True, batch_size=1),
    "shuffle": lambda s: s.shuffle(seed=1, buffer_size=5),
    "take": lambda s: s.take(7),
    "skip": lambda s: s.skip(2),
    "select_columns": lambda s: s.select_columns(["item_id", "fixed", "at", "u64"]),
    "map_shuffle": lambda s: s.map(untouched).shuffle(seed=2, buffer_size=4),
    "filter_map": lambda s: s.filter(_all).map(untouched),
    "shuffle_map_take": lambda s: s.shuffle(seed=1, buffer_size=3).map(untouched).take(6),
    "shuffle_filter_skip": lambda s: s.shuffle(seed=1, buffer_size=3).filter(_all).skip(1),
    "map_to_features": lambda s: s.map(untouched, features=s.features),
    "node": lambda s: split_dataset_by_node(s, 1, 3),
    "format_again": lambda s: s.with_format(None).take(6).with_format(FORMAT),
}


@pytest.mark.parametrize("change", OPERATIONS.values(), ids=list(OPERATIONS))
def test_streams_give_the_rows_of_the_map_style_dataset(
    change: Callable[[Any], Any], bundle: Path
) -> None:
    expected = {row["item_id"]: row for row in _mapped(bundle)}
    rows = list(change(_streamed(bundle)))
    assert len({row["item_id"] for row in rows}) == len(rows) > 3
    for row in rows:
        assert _same(row, {name: expected[row["item_id"]][name] for name in row})
    batches = change(_streamed(bundle)).iter(4)
    if any(row["u64"] is None for row in rows):
        with pytest.raises(UsageError, match=r"null in row [0-3] of the batch"):
            list(batches)
        return
    found = list(batches)
    assert [len(batch["item_id"]) for batch in found[:-1]] == [4] * (len(found) - 1)
    assert _same([row for batch in found for row in _rows(batch)], rows)
    for batch in found:
        names = [name for name in TENSORS if name in batch]
        assert all(isinstance(batch[name], torch.Tensor) for name in names)
        assert batch["fixed"].shape[1:] == (3,)
        if "point" in batch:
            assert isinstance(batch["point"], StructColumn)
            assert isinstance(batch["point"]["v"], torch.Tensor)
            lists = [batch[name] for name in ("ragged", "equal", "points", "large")]
            assert {type(each) for each in [*lists, batch["point"]["r"]]} == {list}


def test_a_renamed_column_of_a_stream_keeps_its_type(bundle: Path) -> None:
    expected = [row["at"] for row in _mapped(bundle)]
    renamed = _streamed(bundle).rename_column("at", "when")
    assert _same([row["when"] for row in renamed], expected)


def test_a_batched_map_sees_the_batch_of_the_map_style_dataset(bundle: Path) -> None:
    ds = _mapped(bundle)
    seen: list[dict[str, Any]] = []

    def look(batch: dict[str, Any]) -> dict[str, Any]:
        seen.append(dict(batch))
        return {"more": [1] * len(batch["item_id"])}

    stream = _streamed(bundle).map(look, batched=True, batch_size=5)
    if ds[1]["u64"] is None:
        with pytest.raises(UsageError, match="row 1 of the batch"):
            list(stream)
        return
    rows = list(stream)
    assert _same(seen, [ds[0:5], ds[5:10], ds[10:12]])
    assert _same(rows, [{**row, "more": torch.tensor(1)} for row in ds])
    again = list(_streamed(bundle).map(look, batched=True, batch_size=5).iter(6))
    assert _same([{n: c for n, c in b.items() if n != "more"} for b in again], [ds[0:6], ds[6:12]])
    assert _same(again[0]["more"], torch.ones(6, dtype=torch.int64))


def test_streams_read_by_workers_and_resumed_give_the_same_rows(bundle: Path) -> None:
    expected = {row["item_id"]: row for row in _mapped(bundle)}
    for change in (OPERATIONS["plain"], OPERATIONS["filter"], OPERATIONS["map"]):
        loader = torch.utils.data.DataLoader(
            change(_streamed(bundle)), batch_size=None, num_workers=2
        )
        with warnings.catch_warnings():
            # Python 3.12 and newer warn of any fork beside threads.
            warnings.simplefilter("ignore", DeprecationWarning)
            rows = {row["item_id"]: row for row in loader}
        assert len(rows) == len(expected)
        assert _same([rows[key] for key in expected], list(expected.values()))
    # Before 5.0 `datasets` itself loses rows of a filtered stream on resume.
    resumed = ["plain", "take", "map", *(["filter"] if NEW_STREAMS else [])]
    for change in (OPERATIONS[name] for name in resumed):
        stream = change(_streamed(bundle))
        iterator = iter(stream)
        first = [next(iterator) for _ in range(3)]
        state = stream.state_dict()
        rest = change(_streamed(bundle))
        rest.load_state_dict(state)
        assert _same(first + list(rest), list(change(_streamed(bundle))))


def test_nanoseconds_are_exact_or_refused(tmp_path: Path) -> None:
    exact = [1_700_000_000_123_456_789, 1]
    table = pa.table(
        {
            "item_id": pa.array(["a", "b"]),
            "at": pa.array(exact, pa.timestamp("ns")),
            "lasted": pa.array(exact, pa.duration("ns")),
            "lithi_status": pa.array(["accepted"] * 2),
        }
    )
    write_bundle(tmp_path / "b", table)
    stream = lithi.load(tmp_path / "b", streaming=True).with_format(FORMAT)
    for change in (OPERATIONS["plain"], OPERATIONS["map"], OPERATIONS["filter"]):
        assert [row["at"].item() for row in change(stream)] == exact
    if NEW_STREAMS:
        assert [row["lasted"].item() for row in stream.take(2)] == exact
    else:
        # datasets hands Python datetimes on there, and says so in a warning.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            with pytest.raises(UsageError, match="without its nanoseconds"):
                list(stream.take(2))


def test_a_batch_with_a_null_is_refused_and_its_rows_are_not() -> None:
    ds = dataset_of(
        pa.table({"n": pa.array([1, None], pa.int32()), "t": pa.array([None, "x"])})
    ).with_format(FORMAT)
    assert [row["n"] for row in ds] == [torch.tensor(1, dtype=torch.int32), None]
    assert [row["t"] for row in ds] == [None, "x"]
    for query in (
        lambda: ds[:],
        lambda: ds[[1]],
        lambda: ds["n"][:],
        lambda: next(ds.iter(2)),
        lambda: list(torch.utils.data.DataLoader(ds, batch_size=2)),
        lambda: next(ds.to_iterable_dataset().iter(2)),
    ):
        with pytest.raises(
            UsageError, match=r"(?s)'n'.*statuses=.*torch_loader.*with_format\(None\)"
        ):
            query()
    assert ds.with_format(None)[:] == {"n": [1, None], "t": [None, "x"]}
    assert ds["t"][:] == [None, "x"]


def test_structs_survive_the_way_that_a_dataloader_takes_batches_apart() -> None:
    points = pa.array(
        [{"x": i, "v": [i, i]} for i in range(6)],
        pa.struct([("x", pa.int8()), ("v", pa.list_(pa.float32(), 2))]),
    )
    for table in (pa.table({"p": points}), pa.table({"p": points, "n": pa.array(range(6))})):
        ds = dataset_of(table).with_format(FORMAT)
        assert _same(ds.__getitems__([0, 3, 5]), [ds[0], ds[3], ds[5]])
        batches = list(torch.utils.data.DataLoader(ds, batch_size=4))
        assert [batch["p"]["x"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5]]
        assert batches[0]["p"]["v"].shape == (4, 2)
        assert batches[0]["p"]["x"].dtype is torch.int8
        for kept in (pickle.loads(pickle.dumps(ds[1:3]["p"])), copy.copy(ds[1:3]["p"])):
            assert isinstance(kept, StructColumn)
            assert _same(kept, ds[1:3]["p"])


def _added(row: dict[str, Any]) -> dict[str, Any]:
    number = int(row["n"])
    return {
        "twice": row["n"] * 2,
        "long": number,
        "half": number / 2,
        "tokens": list(row["b"]),
        "day": dt.date(1970, 1, 1 + number),
        "name": "x",
    }


def test_columns_that_map_adds_follow_their_arrow_type() -> None:
    ds = dataset_of(
        pa.table({"n": pa.array([1, 2, 3], pa.int8()), "b": pa.array([b"ab", b"c", b""])})
    ).with_format(FORMAT)
    added = ds.map(lambda row: {**_added(row), "size": len(row["b"])})
    batch = added[:]
    assert (batch["n"].dtype, batch["twice"].dtype) == (torch.int8, torch.int8)
    assert batch["twice"].tolist() == [2, 4, 6]
    assert (batch["long"].dtype, batch["half"].dtype) == (torch.int64, torch.float64)
    assert [row.tolist() for row in batch["tokens"][:2]] == [[97, 98], [99]]
    assert (batch["day"].tolist(), batch["name"]) == ([1, 2, 3], ["x"] * 3)
    stream = ds.to_iterable_dataset().map(
        lambda row: {
            **_added(row),
            "pair": torch.tensor([1, 2], dtype=torch.int16),
            "array": np.array([[1.5]], "f4"),
            "nothing": None,
            "odd": object,
        }
    )
    (found,) = stream.iter(3)
    for name in ("n", "twice", "long", "half", "day", "name"):
        assert _same(found[name], batch[name]), name
    assert [row.tolist() for row in found["tokens"][:2]] == [[97, 98], [99]]
    assert (found["pair"].dtype, found["pair"].shape) == (torch.int16, (3, 2))
    assert (found["array"].dtype, found["array"].shape) == (torch.float32, (3, 1, 1))
    assert (found["nothing"], found["odd"]) == ([None] * 3, [object] * 3)


def test_rows_of_a_stream_that_do_not_make_one_tensor_are_refused() -> None:
    ds = dataset_of(pa.table({"n": pa.array([1, 2])})).with_format(FORMAT).to_iterable_dataset()
    uneven = ds.map(lambda row: {"x": torch.zeros(int(row["n"]))})
    with pytest.raises(
        UsageError, match=r"(?s)'x'.*torch\.float32\[1\], torch\.float32\[2\].*features="
    ):
        list(uneven.iter(2))
    kind = datasets.Features({"x": [datasets.Value("float32")], "n": datasets.Value("int64")})
    declared = ds.map(lambda row: {"x": torch.zeros(int(row["n"]))}, features=kind)
    (batch,) = declared.iter(2)
    assert [len(row) for row in batch["x"]] == [1, 2]
    wrong = ds.map(untouched).cast(datasets.Features({"n": datasets.Value("date32")}))
    assert [row["n"].item() for row in wrong] == [1, 2]
    text = ds.map(lambda row: {"n": "x"}).cast(
        datasets.Features({"n": datasets.Value("timestamp[s]")})
    )
    with pytest.raises(UsageError, match=r"'n' is not of the column's type"):
        list(text)
    missing = ds.map(lambda row: {"n": None}).cast(datasets.Features({"n": datasets.Value("int8")}))
    assert [row["n"] for row in missing] == [None, None]
    with pytest.raises(UsageError, match=r"(?s)'n'.*row 0"):
        list(missing.iter(2))


def test_batches_that_datasets_makes_follow_the_types_too() -> None:
    fixed = pa.array([[1, 2]] * 3, pa.list_(pa.uint16(), 2))
    ds = dataset_of(pa.table({"n": pa.array([1, 2, 3], pa.int8()), "f": fixed})).with_format(FORMAT)
    stored = ds.batch(2)
    streamed = ds.to_iterable_dataset().batch(2)
    for rows in (list(stored), list(streamed)):
        assert [row["n"].tolist() for row in rows] == [[1, 2], [3]]
        assert rows[0]["n"].dtype is torch.int8
    # datasets 3.6 forgets the length when it stores the batches: two ragged lists.
    whole = [next(iter(streamed))["f"], *([stored[0]["f"]] if NEW_STREAMS else [])]
    assert {(each.dtype, tuple(each.shape)) for each in whole} == {(torch.uint16, (2, 2))}


def test_columns_and_output_all_columns_work() -> None:
    ds = dataset_of(
        pa.table(
            {"n": pa.array([1, 2], pa.int8()), "m": pa.array([3, None]), "t": pa.array(["a", "b"])}
        )
    )
    some = ds.with_format(FORMAT, columns=["n", "t"])
    assert set(some[0]) == set(some[:]) == {"n", "t"}
    assert some[:]["n"].dtype is torch.int8
    rest = ds.with_format("lithi_torch", columns=["n"], output_all_columns=True)
    assert rest[:]["n"].dtype is torch.int8
    assert (rest[:]["m"], rest[0]["m"]) == ([3, None], 3)
    with ds.formatted_as("lithi_torch"):
        assert ds[0]["n"].dtype is torch.int8
    both = datasets.concatenate_datasets([some, some])
    assert both[:]["n"].tolist() == [1, 2, 1, 2]


def test_class_labels_are_int64() -> None:
    labels = datasets.Features(
        {"label": datasets.ClassLabel(names=["ham", "spam"]), "n": datasets.Value("int8")}
    )
    ds = datasets.Dataset.from_dict({"label": [0, 1], "n": [1, 2]}, features=labels).with_format(
        FORMAT
    )
    assert (ds[:]["label"].dtype, ds[:]["label"].tolist()) == (torch.int64, [0, 1])
    for stream in (ds.to_iterable_dataset(), ds.to_iterable_dataset().shuffle(seed=0).take(2)):
        assert {(row["label"].dtype, row["n"].dtype) for row in stream} == {
            (torch.int64, torch.int8)
        }


def test_format_keywords_are_refused() -> None:
    ds = dataset_of(pa.table({"n": pa.array([1])}))
    with pytest.raises(UsageError, match="dtype, layout"):
        ds.with_format(FORMAT, layout=1, dtype=torch.float32)
    with pytest.raises(UsageError, match="takes no keywords"):
        get_formatter(FORMAT, device="cpu")
    assert ds.with_format(FORMAT).format["format_kwargs"] == {}
    assert ds.with_format(FORMAT).to_iterable_dataset()._formatting.format_type == FORMAT


def test_streams_of_other_formats_are_left_as_they_are(bundle: Path) -> None:
    stream = _streamed(bundle).select_columns(["item_id"])
    plain = [row["item_id"] for row in stream.with_format(None).take(3)]
    assert plain == ["i0", "i1", "i2"]
    assert [row["item_id"] for row in stream.with_format("numpy").take(3)] == plain
    (table,) = stream.with_format("arrow").take(3).iter(3)
    assert table["item_id"].to_pylist() == plain
