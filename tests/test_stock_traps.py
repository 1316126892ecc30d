"""Each trap of splitting and of the cache: stock goes wrong on the same rows, ours does not.

Those of the torch format stand beside the formatter (`test_formatter.py`, `test_stock_format_…`),
those of real collectives and of accelerate in their processes (`test_torchrun.py`,
`test_accelerate.py`), the one path of two working folders in `test_identity.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import result_table
from datasets.distributed import split_dataset_by_node
from torch.utils.data import DataLoader, DistributedSampler

import lithi_datasets as lithi
from lithi_datasets.testing import write_bundle

UNEVEN = (10, 1, 1, 10, 15)
IDS = [f"item-{n:06d}" for n in range(sum(UNEVEN))]


def _tables(sizes: tuple[int, ...] = UNEVEN) -> list[pa.Table]:
    tables = [result_table(n, sum(sizes[:i])) for i, n in enumerate(sizes)]
    return [table.select(["item_id", "score", "lithi_status"]) for table in tables]


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle of 37 rows in parts of 10, 1, 1, 10 and 15."""
    write_bundle(tmp_path / "b", _tables())
    return tmp_path / "b"


def _ours(folder: Path, **keywords: Any) -> Any:
    return lithi.load(folder, cache_dir=folder.parent / "ours", **keywords)


def _stock(folder: Path, **keywords: Any) -> Any:
    """The same parts, read by the stock builder."""
    files = [str(path) for path in sorted((folder / "parts").iterdir())]
    cache = str(folder.parent / "stock")
    return datasets.load_dataset(
        "parquet", data_files=files, split="train", cache_dir=cache, **keywords
    )


def _of(rows: Any) -> list[str]:
    return [row["item_id"] for row in rows]


def _loaded(ds: Any, world_size: int, **keywords: Any) -> list[list[list[str]]]:
    """The ids of each batch of each rank."""
    return [
        [
            batch["item_id"]
            for batch in lithi.torch_loader(ds, 3, rank=r, world_size=world_size, **keywords)
        ]
        for r in range(world_size)
    ]


def _flat(ranks: list[list[list[str]]]) -> list[str]:
    return [item for rank in ranks for batch in rank for item in batch]


# Splitting.


def test_a_stream_is_read_whole_by_every_node_unless_its_shards_divide(bundle: Path) -> None:
    pulled: Counter[int] = Counter()

    def shards(numbers: list[int]) -> Any:
        for number in numbers:
            pulled[number] += 1
            yield from ({"item_id": item} for item in _tables()[number]["item_id"].to_pylist())

    stock = datasets.IterableDataset.from_generator(shards, gen_kwargs={"numbers": [0, 1, 2, 3, 4]})
    for rank in range(2):
        list(split_dataset_by_node(stock, rank, 2))
    assert set(pulled.values()) == {2}  # each shard by both nodes

    plan = lithi.partition_plan(lithi.open_bundle(bundle), 2)
    parts = [
        part["index"] for rank in plan["ranks"] for w in rank["workers"] for part in w["parts"]
    ]
    assert sorted(parts) == [0, 1, 2, 3, 4]  # each part by one
    assert sorted(rank["rows"] for rank in plan["ranks"]) == [17, 20]


def test_shards_go_round_robin_where_our_parts_go_by_rows(bundle: Path) -> None:
    stock = _stock(bundle, streaming=True)
    if "strategy" not in split_dataset_by_node.__code__.co_varnames:
        pytest.skip("this version of datasets has one way to split a stream")
    shares = [len(list(split_dataset_by_node(stock, r, 2, strategy="shards"))) for r in range(2)]
    assert sorted(shares) == [11, 26]

    ours = _ours(bundle, streaming=True)
    assert sorted(len(list(lithi.split_by_node(ours, r, 2))) for r in range(2)) == [17, 20]


def test_stock_ranks_differ_in_steps_and_a_collective_at_each_would_hang(tmp_path: Path) -> None:
    write_bundle(tmp_path / "b", _tables((13,)))
    stock = _stock(tmp_path / "b").with_format("torch").select_columns(["score"])
    steps = [len(DataLoader(split_dataset_by_node(stock, r, 2), batch_size=6)) for r in range(2)]
    assert steps == [2, 1]

    ours = _ours(tmp_path / "b")
    loaders = [lithi.torch_loader(ours, 6, rank=r, world_size=2) for r in range(2)]
    assert [len(list(loader)) for loader in loaders] == [2, 2]


def test_a_distributed_sampler_repeats_rows(tmp_path: Path) -> None:
    write_bundle(tmp_path / "b", _tables((13,)))
    stock = _stock(tmp_path / "b")
    seen: list[str] = []
    for rank in range(2):
        sampler: DistributedSampler[Any] = DistributedSampler(stock, 2, rank, shuffle=False)
        for batch in DataLoader(stock, batch_size=3, sampler=sampler):
            seen += batch["item_id"]
    assert len(seen) == 14
    assert len(set(seen)) == 13

    assert sorted(_flat(_loaded(_ours(tmp_path / "b"), 2))) == IDS[:13]


@pytest.mark.filterwarnings("ignore")  # what accelerate warns of is not ours to settle
def test_even_batches_repeat_rows_and_a_split_dataset_is_split_again(tmp_path: Path) -> None:
    from accelerate.data_loader import prepare_data_loader

    write_bundle(tmp_path / "b", _tables((13,)))
    stock = _stock(tmp_path / "b")

    def prepared(ds: Any, rank: int) -> list[str]:
        loader = prepare_data_loader(
            DataLoader(ds, batch_size=4), num_processes=2, process_index=rank, put_on_device=False
        )
        return [item for batch in loader for item in batch["item_id"]]

    whole = [item for rank in range(2) for item in prepared(stock, rank)]
    assert len(whole) == 16
    assert len(set(whole)) == 13
    split = [
        item for rank in range(2) for item in prepared(split_dataset_by_node(stock, rank, 2), rank)
    ]
    assert len(set(split)) < 13  # rows that no process reads

    # What accelerate's own processes make of our loaders and shares: test_accelerate.py.
    assert sorted(_flat(_loaded(_ours(tmp_path / "b"), 2))) == IDS[:13]


def test_more_ranks_than_rows(tmp_path: Path) -> None:
    write_bundle(tmp_path / "b", _tables((3,)))
    with pytest.raises(IndexError):
        split_dataset_by_node(_stock(tmp_path / "b"), 4, 5)

    ours = _loaded(_ours(tmp_path / "b"), 5)
    assert [len(rank) for rank in ours] == [1] * 5
    assert sorted(_flat(ours)) == IDS[:3]


def test_a_shuffle_without_a_seed_before_the_split_reads_other_rows_on_each_rank(
    tmp_path: Path,
) -> None:
    write_bundle(tmp_path / "b", _tables((40,)))
    seen = []
    for rank in range(2):
        # Each rank loads and shuffles for itself, as its own process does.
        shuffled = _stock(tmp_path / "b").shuffle(keep_in_memory=True)
        seen += _of(split_dataset_by_node(shuffled, rank, 2))
    assert len(seen) == 40
    assert len(set(seen)) < 40

    ours = _ours(tmp_path / "b")
    with pytest.raises(lithi.UsageError, match="seed"):
        lithi.torch_loader(ours, 3, shuffle=True)
    assert len(set(_flat(_loaded(ours, 2, shuffle=True, seed=7)))) == 40


def test_after_a_resume_a_stock_stream_replays_only_what_was_left(bundle: Path) -> None:
    stock = _stock(bundle, streaming=True)
    running = iter(stock)
    for _ in range(20):
        next(running)
    state = stock.state_dict()
    again = _stock(bundle, streaming=True)
    again.load_state_dict(state)
    epochs = [len(list(again)) for _ in range(3)]
    assert epochs == [17, 17, 17]

    ours = _ours(bundle, streaming=True)
    loader = lithi.torch_loader(ours, 5)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    resumed = lithi.torch_loader(ours, 5)
    resumed.load_state_dict(loader.state_dict())
    assert [sum(len(b["item_id"]) for b in resumed) for _ in range(3)] == [17, 37, 37]


def test_a_shuffle_buffer_is_lost_on_resume(bundle: Path) -> None:
    stock = _stock(bundle, streaming=True).shuffle(seed=1, buffer_size=8)
    running = iter(stock)
    first = [next(running)["item_id"] for _ in range(10)]
    state = stock.state_dict()
    again = _stock(bundle, streaming=True).shuffle(seed=1, buffer_size=8)
    again.load_state_dict(state)
    assert len(set(first) | set(_of(again))) < 37

    for streaming in (False, True):
        ours = _ours(bundle, streaming=streaming)
        loader = lithi.torch_loader(ours, 5, shuffle=True, seed=1)
        batches = iter(loader)
        seen = [item for _ in range(2) for item in next(batches)["item_id"]]
        resumed = lithi.torch_loader(ours, 5, shuffle=True, seed=1)
        resumed.load_state_dict(loader.state_dict())
        seen += [item for batch in resumed for item in batch["item_id"]]
        assert sorted(seen) == IDS


def test_a_state_of_other_data_or_another_world_loads_silently(
    bundle: Path, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    write_bundle(tmp_path / "elsewhere" / "b", _tables((10, 1, 1, 10, 16)), version_id="other")
    stock = split_dataset_by_node(_stock(bundle, streaming=True), 0, 2)
    running = iter(stock)
    for _ in range(2):
        next(running)
    other = split_dataset_by_node(_stock(tmp_path / "elsewhere" / "b", streaming=True), 1, 4)
    other.load_state_dict(stock.state_dict())
    assert len(list(other)) > 0  # rows of other data from a place of another split, without a word

    loader = lithi.torch_loader(_ours(bundle, streaming=True), 5, world_size=5)
    next(iter(loader))
    state = loader.state_dict()
    elsewhere = _ours(tmp_path / "elsewhere" / "b", streaming=True)
    with pytest.raises(lithi.SnapshotMismatch, match="other"):
        lithi.torch_loader(elsewhere, 5, world_size=5).load_state_dict(state)
    with pytest.raises(lithi.StateError, match="world_size"):
        lithi.torch_loader(_ours(bundle, streaming=True), 5, world_size=2).load_state_dict(state)


MANY_WORKERS = """
import sys
import datasets, lithi_datasets as lithi
from torch.utils.data import DataLoader

kind, folder = sys.argv[1:]
if kind == "stock":
    files = [f"{folder}/parts/part-00000.parquet"]
    ds = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
    loader = DataLoader(ds.select_columns(["item_id"]), batch_size=4, num_workers=2)
else:
    loader = lithi.torch_loader(lithi.load(folder, streaming=True), 4, num_workers=2)
print(sum(len(batch["item_id"]) for batch in loader))
"""


def test_more_workers_than_shards_are_a_complaint_that_ours_does_not_need(tmp_path: Path) -> None:
    write_bundle(tmp_path / "b", _tables((9,)))
    said = {}
    for kind in ("stock", "ours"):
        script = [sys.executable, "-c", MANY_WORKERS, kind, str(tmp_path / "b")]
        done = subprocess.run(script, check=True, capture_output=True, text=True)
        assert done.stdout == "9\n"
        said[kind] = "Too many dataloader workers" in done.stderr
    assert said == {"stock": True, "ours": False}


def test_a_stock_stream_has_no_length(bundle: Path) -> None:
    with pytest.raises(TypeError):
        len(DataLoader(_stock(bundle, streaming=True), batch_size=5))
    loader = lithi.torch_loader(_ours(bundle, streaming=True), 5)
    assert len(loader) == len(list(loader))


# The cache.


def _rewrite(path: Path, table: pa.Table) -> None:
    """Other rows in the same file, as a copy that keeps times leaves it."""
    times = path.stat()
    pq.write_table(table, path)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_a_part_rewritten_in_place_gives_the_old_rows(tmp_path: Path) -> None:
    folder = tmp_path / "b"
    write_bundle(folder, _tables((5,)))
    assert _of(_stock(folder)) == _of(_ours(folder)) == IDS[:5]
    part = folder / "parts" / "part-00000.parquet"
    other = result_table(5, 10).select(["item_id", "score", "lithi_status"])
    _rewrite(part, other)
    assert _of(_stock(folder)) == IDS[:5]  # not what is there

    with pytest.raises(lithi.BundleError):
        lithi.open_bundle(folder).verify()
    write_bundle(folder, other, overwrite=True, version_id="newer")
    assert _of(_ours(folder)) == IDS[10:15]


def test_the_same_bytes_in_two_folders_have_two_fingerprints(tmp_path: Path) -> None:
    found: dict[str, set[str]] = {"stock": set(), "ours": set()}
    for place in ("one", "two"):
        write_bundle(tmp_path / place / "b", _tables())
        for name, load in (("stock", _stock), ("ours", _ours)):
            found[name].add(load(tmp_path / place / "b")._fingerprint)
    assert {name: len(fingerprints) for name, fingerprints in found.items()} == {
        "stock": 2,
        "ours": 1,
    }


def _flip(ds: Any) -> None:
    """Turn the digit of an id over in the Arrow file that a dataset reads."""
    path = Path(ds.cache_files[0]["filename"])
    raw = path.read_bytes()
    at = raw.index(b"item-000003") + 10
    path.write_bytes(raw[:at] + b"9" + raw[at + 1 :])


def test_a_flipped_byte_in_the_cache_is_not_seen(bundle: Path) -> None:
    _flip(_stock(bundle))
    served = _of(_stock(bundle, verification_mode="all_checks"))
    assert served[3] == "item-000009"

    _flip(_ours(bundle))
    with pytest.warns(UserWarning, match="damaged"):
        assert _of(_ours(bundle)) == IDS


def test_what_a_killed_run_left_is_promoted_and_a_hit_is_one_file(bundle: Path) -> None:
    stock = _stock(bundle)
    entry = Path(stock.cache_files[0]["filename"]).parent
    del stock
    stale = entry / "parquet-train-00007-of-00009.arrow"
    entry.rename(entry.parent / f"{entry.name}.incomplete")
    (entry.parent / f"{entry.name}.incomplete" / stale.name).write_bytes(b"stale")
    _stock(bundle)
    assert stale.exists()  # a shard of the killed run, in the finished entry
    for shard in entry.glob("*.arrow"):
        shard.unlink()
    with pytest.raises(FileNotFoundError):
        _stock(bundle)  # dataset_info.json is there, so it is a hit

    folder = Path(_ours(bundle).cache_files[0]["filename"]).parent
    left = folder.parent / f"{folder.name}.incomplete"
    left.mkdir()
    (left / "stale.arrow").write_bytes(b"stale")
    for shard in folder.glob("*.arrow"):
        shard.unlink()
    with pytest.warns(UserWarning, match="damaged"):
        ours = _ours(bundle)
    assert _of(ours) == IDS
    assert "stale.arrow" not in {path.name for path in folder.iterdir()}


def test_an_output_folder_loses_what_was_in_it(bundle: Path, tmp_path: Path) -> None:
    builders: dict[str, Callable[[], Any]] = {
        "stock": lambda: datasets.load_dataset_builder(
            "parquet",
            data_files=[str(path) for path in sorted((bundle / "parts").iterdir())],
            cache_dir=str(tmp_path / "stock"),
        ),
        "ours": lambda: datasets.load_dataset_builder(
            "lithi_bundle", data_dir=str(bundle), cache_dir=str(tmp_path / "ours")
        ),
    }
    kept = {}
    for name, make in builders.items():
        output = tmp_path / f"out-{name}"
        output.mkdir()
        (output / "thesis.txt").write_text("years of work")
        if name == "ours":
            with pytest.raises(lithi.UsageError, match=r"thesis\.txt"):
                make().download_and_prepare(str(output))
        else:
            make().download_and_prepare(str(output))
        kept[name] = (output / "thesis.txt").exists()
    assert kept == {"stock": False, "ours": True}


def test_parts_without_rows_are_no_dataset(tmp_path: Path) -> None:
    write_bundle(tmp_path / "b", [_tables((5,))[0].slice(0, 0)] * 2)
    with pytest.raises((ValueError, IndexError, KeyError, datasets.exceptions.DatasetsError)):
        _stock(tmp_path / "b")

    ours = _ours(tmp_path / "b")
    assert len(ours) == 0
    assert list(lithi.torch_loader(ours, 4)) == []
