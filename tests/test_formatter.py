"""The format `lithi_torch`: rows, slices, columns, batches and streams agree, exactly."""

from __future__ import annotations

import copy
import datetime as dt
import inspect
import pickle
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest
import torch
from datasets.distributed import split_dataset_by_node
from datasets.formatting import _FORMAT_TYPES, get_format_type_from_alias, get_formatter

import lithi_datasets as lithi
from lithi_datasets.errors import UsageError
from lithi_datasets.reading.formatter import FORMAT, LithiFormatName, TorchExactFormatter, register
from lithi_datasets.reading.tensors import StructColumn
from lithi_datasets.testing import write_bundle

NEW_STREAMS = int(datasets.__version__.split(".")[0]) >= 5
POINT = pa.struct(
    [
        ("x", pa.int8()),
        ("t", pa.string()),
        ("v", pa.list_(pa.float32(), 2)),
        ("r", pa.list_(pa.int16())),
    ]
)
MAKERS: dict[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "flag": (pa.bool_(), lambda i: i % 2 == 0),
    "i8": (pa.int8(), lambda i: i - 3),
    "u16": (pa.uint16(), lambda i: 2**16 - 1 - i),
    "u32": (pa.uint32(), lambda i: 2**32 - 1 - i),
    "u64": (pa.uint64(), lambda i: 2**63 + 1 + i),
    "i64": (pa.int64(), lambda i: 2**53 + 1 + i),
    "f16": (pa.float16(), lambda i: np.float16(i / 2)),
    "f32": (pa.float32(), lambda i: i / 7),
    "f64": (pa.float64(), lambda i: 1e300 + i),
    "date": (pa.date32(), lambda i: i),
    "date_ms": (pa.date64(), lambda i: i * 86_400_000),
    "time": (pa.time32("ms"), lambda i: i),
    "time_us": (pa.time64("us"), lambda i: i),
    "lasted": (pa.duration("s"), lambda i: i),
    "at": (pa.timestamp("us", "Europe/Berlin"), lambda i: i),
    "fixed": (pa.list_(pa.uint16(), 3), lambda i: [i, i + 1, i + 2]),
    "matrix": (pa.list_(pa.list_(pa.int8(), 2), 3), lambda i: [[i, i], [1, 2], [3, 4]]),
    "words": (pa.list_(pa.string(), 2), lambda i: ["a", str(i)]),
    "ragged": (pa.list_(pa.int16()), lambda i: list(range(i % 5))),
    "equal": (pa.list_(pa.int16()), lambda i: [i, i]),
    "points": (pa.list_(pa.list_(pa.float32(), 2)), lambda i: [[1.0, 2.0]] * (i % 3)),
    "deep": (pa.list_(pa.list_(pa.int32())), lambda i: [[1], [], [2, 3]][: i % 4]),
    "large": (pa.large_list(pa.float64()), lambda i: [1.5] * (i % 3)),
    "tags": (pa.list_(pa.string()), lambda i: ["x", None][: i % 3]),
    "point": (POINT, lambda i: {"x": i, "t": "t", "v": [1, i], "r": list(range(i % 3))}),
    "boxes": (pa.list_(pa.struct([("k", pa.uint8())])), lambda i: [{"k": k} for k in range(i % 3)]),
    "text": (pa.string(), lambda i: f"t{i}"),
    "raw": (pa.binary(), lambda i: b"\xff\x00"),
    "price": (pa.decimal128(10, 2), lambda i: Decimal(f"{i}.50")),
}  # fmt: skip
TENSORS = [
    *("flag", "i8", "u16", "u32", "u64", "i64", "f16", "f32", "f64"),
    *("date", "date_ms", "time", "time_us", "lasted", "at", "fixed", "matrix"),
]


def _table(rows: int, first: int = 0, *, nulls: bool = False) -> pa.Table:
    columns = {"item_id": pa.array([f"i{i}" for i in range(first, first + rows)])}
    for name, (kind, make) in MAKERS.items():
        values = [None if nulls and i % 4 == 1 else make(i) for i in range(first, first + rows)]
        columns[name] = pa.array(values, kind)
    columns["lithi_status"] = pa.array(["accepted"] * rows)
    return pa.table(columns)


@pytest.fixture(scope="module", params=[False, True], ids=["no_nulls", "nulls"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    tables = [_table(5, nulls=request.param), _table(7, 5, nulls=request.param)]
    write_bundle(folder / "b", tables)
    lithi.load(folder / "b", cache_dir=folder / "cache")
    return folder


def _mapped(bundle: Path) -> datasets.Dataset:
    return lithi.load(bundle / "b", cache_dir=bundle / "cache").with_format(FORMAT)


def _streamed(bundle: Path) -> datasets.IterableDataset:
    return lithi.load(bundle / "b", streaming=True).with_format(FORMAT)


def _of(table: pa.Table) -> datasets.Dataset:
    return datasets.Dataset(datasets.table.InMemoryTable(table))


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


def _untouched(_: Any) -> dict[str, Any]:
    return {}


def _all(row: dict[str, Any]) -> bool:
    return True


def _every(batch: dict[str, Any]) -> list[bool]:
    return [True] * len(batch["item_id"])


OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda s: s,
    "map": lambda s: s.map(_untouched),
    "filter": lambda s: s.filter(_all),
    "filter_batched": lambda s: s.filter(_every, batched=True, batch_size=1),
    "shuffle": lambda s: s.shuffle(seed=1, buffer_size=5),
    "take": lambda s: s.take(7),
    "skip": lambda s: s.skip(2),
    "select_columns": lambda s: s.select_columns(["item_id", "fixed", "at", "u64"]),
    "map_shuffle": lambda s: s.map(_untouched).shuffle(seed=2, buffer_size=4),
    "filter_map": lambda s: s.filter(_all).map(_untouched),
    "shuffle_map_take": lambda s: s.shuffle(seed=1, buffer_size=3).map(_untouched).take(6),
    "shuffle_filter_skip": lambda s: s.shuffle(seed=1, buffer_size=3).filter(_all).skip(1),
    "map_to_features": lambda s: s.map(_untouched, features=s.features),
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
    ds = _of(
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
        ds = _of(table).with_format(FORMAT)
        assert _same(ds.__getitems__([0, 3, 5]), [ds[0], ds[3], ds[5]])
        batches = list(torch.utils.data.DataLoader(ds, batch_size=4))
        assert [batch["p"]["x"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5]]
        assert batches[0]["p"]["v"].shape == (4, 2)
        assert batches[0]["p"]["x"].dtype is torch.int8
        for kept in (pickle.loads(pickle.dumps(ds[1:3]["p"])), copy.copy(ds[1:3]["p"])):
            assert isinstance(kept, StructColumn)
            assert _same(kept, ds[1:3]["p"])


def test_columns_that_map_adds_follow_their_arrow_type() -> None:
    ds = _of(
        pa.table({"n": pa.array([1, 2, 3], pa.int8()), "b": pa.array([b"ab", b"c", b""])})
    ).with_format(FORMAT)
    added = ds.map(
        lambda row: {
            "twice": row["n"] * 2,
            "long": int(row["n"]),
            "half": int(row["n"]) / 2,
            "size": len(row["b"]),
            "tokens": list(row["b"]),
            "day": dt.date(1970, 1, 1 + int(row["n"])),
            "name": "x",
        }
    )
    batch = added[:]
    assert (batch["n"].dtype, batch["twice"].dtype) == (torch.int8, torch.int8)
    assert batch["twice"].tolist() == [2, 4, 6]
    assert (batch["long"].dtype, batch["half"].dtype) == (torch.int64, torch.float64)
    assert [row.tolist() for row in batch["tokens"][:2]] == [[97, 98], [99]]
    assert (batch["day"].tolist(), batch["name"]) == ([1, 2, 3], ["x"] * 3)
    stream = ds.to_iterable_dataset().map(
        lambda row: {
            "twice": row["n"] * 2,
            "long": int(row["n"]),
            "half": int(row["n"]) / 2,
            "tokens": list(row["b"]),
            "pair": torch.tensor([1, 2], dtype=torch.int16),
            "array": np.array([[1.5]], "f4"),
            "day": dt.date(1970, 1, 1 + int(row["n"])),
            "name": "x",
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
    ds = _of(pa.table({"n": pa.array([1, 2])})).with_format(FORMAT).to_iterable_dataset()
    uneven = ds.map(lambda row: {"x": torch.zeros(int(row["n"]))})
    with pytest.raises(
        UsageError, match=r"(?s)'x'.*torch\.float32\[1\], torch\.float32\[2\].*features="
    ):
        list(uneven.iter(2))
    kind = datasets.Features({"x": [datasets.Value("float32")], "n": datasets.Value("int64")})
    declared = ds.map(lambda row: {"x": torch.zeros(int(row["n"]))}, features=kind)
    (batch,) = declared.iter(2)
    assert [len(row) for row in batch["x"]] == [1, 2]
    wrong = ds.map(_untouched).cast(datasets.Features({"n": datasets.Value("date32")}))
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
    ds = _of(pa.table({"n": pa.array([1, 2, 3], pa.int8()), "f": fixed})).with_format(FORMAT)
    stored = ds.batch(2)
    streamed = ds.to_iterable_dataset().batch(2)
    for rows in (list(stored), list(streamed)):
        assert [row["n"].tolist() for row in rows] == [[1, 2], [3]]
        assert rows[0]["n"].dtype is torch.int8
    # datasets 3.6 forgets the length when it stores the batches: two ragged lists.
    whole = [next(iter(streamed))["f"], *([stored[0]["f"]] if NEW_STREAMS else [])]
    assert {(each.dtype, tuple(each.shape)) for each in whole} == {(torch.uint16, (2, 2))}


def test_columns_and_output_all_columns_work() -> None:
    ds = _of(
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
    ds = _of(pa.table({"n": pa.array([1])}))
    with pytest.raises(UsageError, match="dtype, layout"):
        ds.with_format(FORMAT, layout=1, dtype=torch.float32)
    with pytest.raises(UsageError, match="takes no keywords"):
        get_formatter(FORMAT, device="cpu")
    assert ds.with_format(FORMAT).format["format_kwargs"] == {}
    assert ds.with_format(FORMAT).to_iterable_dataset()._formatting.format_type == FORMAT


def test_registering_again_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    before = dict(_FORMAT_TYPES)
    prepare = datasets.IterableDataset._prepare_ex_iterable_for_iteration
    datasets.logging.enable_propagation()
    try:
        register()
    finally:
        datasets.logging.disable_propagation()
    assert not caplog.records
    assert before == _FORMAT_TYPES
    assert datasets.IterableDataset._prepare_ex_iterable_for_iteration is prepare


def test_the_name_is_a_string_that_brings_its_package_along(tmp_path: Path) -> None:
    assert FORMAT == "lithi_torch"
    assert hash(FORMAT) == hash("lithi_torch")
    assert type(pickle.loads(pickle.dumps(FORMAT))) is LithiFormatName
    assert LithiFormatName.__module__.encode() in pickle.dumps(FORMAT)
    ds = _of(pa.table({"n": pa.array([1], pa.uint16())}))
    named = ds.with_format("lithi_torch")
    assert type(named._format_type) is LithiFormatName
    assert type(named.to_iterable_dataset()._formatting.format_type) is LithiFormatName
    named.save_to_disk(tmp_path / "saved")
    again = datasets.load_from_disk(tmp_path / "saved")
    assert again.format["type"] == "lithi_torch"
    assert again[0]["n"].dtype is torch.uint16


SPAWNED = """
    import multiprocessing, sys

    def read(given):
        # This child imports nothing but what unpickling the datasets brings.
        for name, ds in given.items():
            row = next(iter(ds))
            print(name, row["n"].dtype, row["v"].dtype, flush=True)

    if __name__ == "__main__":
        import datasets, pyarrow as pa
        import lithi_datasets
        v = pa.array([[1.0]], pa.list_(pa.float64(), 1))
        table = pa.table({"n": pa.array([1], pa.uint16()), "v": v})
        ds = datasets.Dataset(datasets.table.InMemoryTable(table)).with_format("lithi_torch")
        given = {"map": ds, "stream": ds.to_iterable_dataset()}
        process = multiprocessing.get_context("spawn").Process(target=read, args=(given,))
        process.start()
        process.join()
        sys.exit(process.exitcode)
"""


def test_a_spawned_process_knows_the_format_by_unpickling(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SPAWNED))
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split("\n")[:2] == [
        f"{name} torch.uint16 torch.float64" for name in ("map", "stream")
    ]


# What of `datasets` this rests on.


def test_streams_alone_name_a_token_when_they_ask_for_a_formatter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    named: list[tuple[str, bool]] = []
    stock = TorchExactFormatter.__init__

    def watch(self: TorchExactFormatter, *args: Any, **keywords: Any) -> None:
        caller = next(
            f.frame for f in inspect.stack() if f.function not in ("watch", "get_formatter")
        )
        owner = type(caller.f_locals.get("self")).__name__
        named.append((f"{owner}.{caller.f_code.co_name}", "token_per_repo_id" in keywords))
        stock(self, *args, **keywords)

    monkeypatch.setattr(TorchExactFormatter, "__init__", watch)
    ds = _of(pa.table({"n": pa.array([1, 2])})).with_format(FORMAT)
    ds[0], ds[:], ds["n"][:], list(ds), list(ds.iter(1))
    ds.map(_untouched, batched=True), ds.filter(lambda row: True)
    stream = ds.to_iterable_dataset()
    (
        list(stream),
        list(stream.iter(2)),
        list(stream.map(_untouched, batched=True).iter(2)),
        list(stream.filter(_all)),
    )
    with_token = {caller for caller, token in named if token}
    assert with_token == {"FormattedExamplesIterable.__iter__"}
    assert not with_token & {caller for caller, token in named if not token}


def test_the_registry_takes_the_name_and_gives_it_back() -> None:
    assert _FORMAT_TYPES[FORMAT] is TorchExactFormatter
    assert type(get_format_type_from_alias("lithi_torch")) is LithiFormatName
    assert type(get_formatter("lithi_torch")) is TorchExactFormatter
    assert isinstance(get_formatter(FORMAT), datasets.formatting.formatting.TensorFormatter)


def test_streams_of_other_formats_are_left_as_they_are(bundle: Path) -> None:
    stream = _streamed(bundle).select_columns(["item_id"])
    plain = [row["item_id"] for row in stream.with_format(None).take(3)]
    assert plain == ["i0", "i1", "i2"]
    assert [row["item_id"] for row in stream.with_format("numpy").take(3)] == plain
    (table,) = stream.with_format("arrow").take(3).iter(3)
    assert table["item_id"].to_pylist() == plain


# What the stock format does with the same data, and what this one does.


def _stock(query: Callable[[], Any]) -> Any:
    """What comes out; an exception is an outcome too."""
    try:
        return query()
    except Exception as error:
        return error


def test_stock_format_changes_dtypes_where_ours_keeps_them() -> None:
    ds = _of(pa.table({"f": pa.array([1e300], pa.float64()), "i": pa.array([5], pa.int8())}))
    stock, ours = ds.with_format("torch")[:], ds.with_format(FORMAT)[:]
    assert stock["f"].dtype is not torch.float64 or stock["i"].dtype is not torch.int8
    assert (ours["f"].dtype, ours["f"].item()) == (torch.float64, 1e300)
    assert ours["i"].dtype is torch.int8


def test_stock_format_makes_large_unsigned_numbers_negative() -> None:
    ds = _of(pa.table({"u": pa.array([2**63 + 1], pa.uint64())}))
    stock = _stock(lambda: int(ds.with_format("torch")[:]["u"][0]))
    assert stock != 2**63 + 1
    assert ds.with_format(FORMAT)[:]["u"].item() == 2**63 + 1


def test_stock_format_flips_a_nullable_integer_to_float_and_loses_it() -> None:
    ds = _of(pa.table({"n": pa.array([2**53 + 1, 5, None], pa.int64())}))
    stock = ds.with_format("torch")
    assert stock[0:2]["n"].dtype is not stock[0:3]["n"].dtype
    assert stock[0:3]["n"][0].item() != 2**53 + 1
    ours = ds.with_format(FORMAT)
    assert ours[0:2]["n"].tolist() == [2**53 + 1, 5]
    assert ours[0]["n"].item() == 2**53 + 1
    with pytest.raises(UsageError):
        ours[0:3]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_stock_format_fails_on_a_list_column_whose_first_row_is_null() -> None:
    ds = _of(pa.table({"v": pa.array([None, [1], [2, 3]], pa.list_(pa.int64()))}))
    stock = _stock(lambda: ds.with_format("torch")[:]["v"])
    right = isinstance(stock, list) and [None if r is None else r.tolist() for r in stock]
    assert isinstance(stock, Exception) or right == [None, [1], [2, 3]]
    first, *rest = ds.with_format(FORMAT)[:]["v"]
    assert first is None
    assert [row.tolist() for row in rest] == [[1], [2, 3]]


@pytest.mark.parametrize("name", ["date", "time", "at", "lasted", "price"])
def test_stock_format_fails_on_times_and_decimals(name: str) -> None:
    ds = _of(_table(3).select([name]))
    stock = _stock(lambda: ds.with_format("torch")[:][name])
    assert isinstance(stock, Exception)
    ours = ds.with_format(FORMAT)[:][name]
    if name == "price":
        assert ours == [Decimal("0.50"), Decimal("1.50"), Decimal("2.50")]
    else:
        assert (ours.dtype, ours.tolist()) == (torch.int64, [0, 1, 2])


def test_stock_format_gives_a_tensor_or_a_list_depending_on_the_batch() -> None:
    ds = _of(pa.table({"r": pa.array([[1, 2], [3, 4], [5]], pa.list_(pa.int64()))}))
    stock, ours = ds.with_format("torch"), ds.with_format(FORMAT)
    assert type(stock[0:2]["r"]) is not type(stock[0:3]["r"])
    assert type(ours[0:2]["r"]) is type(ours[0:3]["r"]) is list
    assert [row.tolist() for row in ours[0:3]["r"]] == [[1, 2], [3, 4], [5]]


def test_stock_streams_take_no_dtype_where_ours_needs_none() -> None:
    ds = _of(pa.table({"f": pa.array([1e300], pa.float64())})).to_iterable_dataset()
    stock = _stock(lambda: next(iter(ds.with_format("torch", dtype=torch.float64)))["f"].dtype)
    assert isinstance(stock, TypeError) or stock is torch.float64
    assert next(iter(ds.with_format("torch")))["f"].dtype is torch.float32
    assert next(iter(ds.with_format(FORMAT)))["f"].item() == 1e300


def test_stock_streams_lose_integers_beside_nulls_after_map() -> None:
    ds = _of(pa.table({"n": pa.array([2**53 + 1, None], pa.int64())})).to_iterable_dataset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        stock = _stock(lambda: [row["n"] for row in ds.with_format("torch").map(_untouched)])
    assert isinstance(stock, Exception) or stock[1] is not None
    assert [row["n"] for row in ds.with_format(FORMAT).map(_untouched)] == [
        torch.tensor(2**53 + 1),
        None,
    ]
