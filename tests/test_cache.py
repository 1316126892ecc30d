"""The cache of converted bundles: atomic, checked, rebuilt where damaged, never in anybody's
way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pytest
from conftest import MakeTable

import lithi_datasets as lithi
from lithi_datasets import convert as converting
from lithi_datasets.builder import LithiBundle
from lithi_datasets.testing import write_bundle


def _load(folder: Path, cache: Path, **keywords: Any) -> datasets.Dataset:
    return datasets.load_dataset(
        "lithi_bundle", data_dir=str(folder), cache_dir=str(cache), split="train", **keywords
    )


def _shard(cache: Path) -> Path:
    (path,) = cache.rglob("*.arrow")
    return path


def _flip(path: Path, *, keep_times: bool = False) -> None:
    before = path.stat()
    raw = bytearray(path.read_bytes())
    raw[len(raw) * 2 // 3] ^= 0x10
    path.write_bytes(raw)
    if keep_times:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("keep_times", [False, True])
def test_a_flipped_byte_in_the_cache_is_rebuilt_with_a_warning_never_served(
    keep_times: bool, tmp_path: Path, cache_dir: Path, make_table: MakeTable
) -> None:
    write_bundle(tmp_path / "b", make_table(500))
    wanted = _load(tmp_path / "b", cache_dir)[:]
    _flip(_shard(cache_dir), keep_times=keep_times)
    with pytest.warns(UserWarning, match="damaged"):
        assert _load(tmp_path / "b", cache_dir)[:] == wanted
    assert _load(tmp_path / "b", cache_dir)[:] == wanted


def test_all_checks_hash_the_cache_even_where_times_and_sizes_are_right(
    tmp_path: Path, cache_dir: Path, make_table: MakeTable
) -> None:
    write_bundle(tmp_path / "b", make_table(500))
    wanted = _load(tmp_path / "b", cache_dir)[:]
    shard = _shard(cache_dir)
    _flip(shard)
    record = shard.parent / "lithi-cache.json"
    sealed = json.loads(record.read_bytes())
    status = shard.stat()
    sealed["record"]["shards"][0]["mtime_ns"] = str(status.st_mtime_ns)
    sealed["record"]["shards"][0]["ctime_ns"] = str(status.st_ctime_ns)
    from hashlib import sha256

    from lithi_datasets.strict_json import canonical

    sealed["sha256"] = sha256(canonical(sealed["record"])).hexdigest()
    record.write_text(json.dumps(sealed))
    with pytest.warns(UserWarning, match="damaged"):
        assert _load(tmp_path / "b", cache_dir, verification_mode="all_checks")[:] == wanted


def test_a_copied_cache_with_new_times_is_hashed_and_served(
    tmp_path: Path, cache_dir: Path, make_table: MakeTable
) -> None:
    write_bundle(tmp_path / "b", make_table(5))
    wanted = _load(tmp_path / "b", cache_dir)[:]
    os.utime(_shard(cache_dir), ns=(1, 1))
    assert _load(tmp_path / "b", cache_dir)[:] == wanted


@pytest.mark.parametrize(
    "harm", ["truncate", "no_record", "broken_record", "changed_record", "shard_gone"]
)
def test_any_damage_to_an_entry_is_rebuilt(
    harm: str, tmp_path: Path, cache_dir: Path, make_table: MakeTable
) -> None:
    write_bundle(tmp_path / "b", make_table(50))
    wanted = _load(tmp_path / "b", cache_dir)[:]
    shard = _shard(cache_dir)
    record = shard.parent / "lithi-cache.json"
    if harm == "truncate":
        shard.write_bytes(shard.read_bytes()[:100])
    elif harm == "no_record":
        record.unlink()
    elif harm == "broken_record":
        record.write_text("{")
    elif harm == "changed_record":
        record.write_text(record.read_text().replace('"rows": 50', '"rows": 49'))
    else:
        shard.unlink()
    with pytest.warns(UserWarning, match="damaged"):
        assert _load(tmp_path / "b", cache_dir)[:] == wanted


def test_force_redownload_converts_again(
    tmp_path: Path, cache_dir: Path, make_table: MakeTable
) -> None:
    write_bundle(tmp_path / "b", make_table(5))
    _load(tmp_path / "b", cache_dir)
    before = _shard(cache_dir).stat().st_ino
    held = _shard(cache_dir).open("rb")  # keeps the inode number from being used again
    assert len(_load(tmp_path / "b", cache_dir, download_mode="force_redownload")) == 5
    assert _shard(cache_dir).stat().st_ino != before
    held.close()


def test_an_output_folder_with_anything_in_it_is_refused_and_left_alone(
    tmp_path: Path, cache_dir: Path, make_table: MakeTable
) -> None:
    write_bundle(tmp_path / "b", make_table(5))
    builder = LithiBundle(cache_dir=str(cache_dir), data_dir=tmp_path / "b")
    precious = tmp_path / "out"
    precious.mkdir()
    (precious / "thesis.txt").write_text("years of work")
    with pytest.raises(lithi.UsageError, match=r"thesis\.txt"):
        builder.download_and_prepare(str(precious))
    assert [path.name for path in precious.iterdir()] == ["thesis.txt"]
    with pytest.raises(lithi.UsageError):
        builder.download_and_prepare(str(tmp_path / "b" / "result-manifest.json"))
    assert not (tmp_path / "b").parent.joinpath("out.incomplete").exists()


@pytest.mark.parametrize("made", [False, True])
def test_an_output_folder_of_its_own_gets_the_view(
    made: bool, tmp_path: Path, cache_dir: Path, make_table: MakeTable
) -> None:
    snapshot = write_bundle(tmp_path / "b", make_table(10))
    out = tmp_path / "out"
    if made:
        out.mkdir()
    for _ in range(2):
        builder = LithiBundle(
            cache_dir=str(cache_dir),
            data_dir=tmp_path / "b",
            columns=["big"],
            statuses=["accepted"],
        )
        builder.download_and_prepare(str(out))
        ds = builder.as_dataset(split="train")
        assert ds.column_names == ["item_id", "big", "lithi_status"]
        assert ds.num_rows == 6
        assert Path(ds.cache_files[0]["filename"]).parent == out
        assert lithi.snapshot_of(ds) == snapshot
    (stored,) = out.glob("*.arrow")
    assert datasets.Dataset.from_file(str(stored)).column_names == ds.column_names
    other = LithiBundle(cache_dir=str(cache_dir), data_dir=tmp_path / "b")
    with pytest.raises(lithi.UsageError):
        other.download_and_prepare(str(out))
    with pytest.raises(lithi.UsageError):
        other.as_dataset(split="train")
    with pytest.raises(lithi.UsageError, match="to_parquet"):
        other.download_and_prepare(str(tmp_path / "p"), file_format="parquet")


@pytest.mark.parametrize("executor", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_any_executor_converts_and_load_finds_it(
    executor: Callable[[int], Executor],
    tmp_path: Path,
    cache_dir: Path,
    uneven_tables: list[pa.Table],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lithi_datasets.convert.SHARD_SOURCE_BYTES", 1)
    write_bundle(tmp_path / "b", uneven_tables)
    with executor(2) as pool:
        entry = converting.convert(lithi.open_bundle(tmp_path / "b"), cache_dir, executor=pool)
    assert [shard.rows for shard in entry.shards] == [10, 1, 1, 10, 15]
    ds = _load(tmp_path / "b", cache_dir)
    assert {Path(f["filename"]).parent for f in ds.cache_files} == {entry.folder}
    assert ds["item_id"][:] == pa.concat_tables(uneven_tables)["item_id"].to_pylist()


CONVERT = """
import sys, lithi_datasets as lithi
from lithi_datasets.convert import convert
print("ready", flush=True)
sys.stdin.readline()
entry = convert(lithi.open_bundle(sys.argv[1]), sys.argv[2])
print(entry.rows("train"), flush=True)
"""


def _start(folder: Path, cache: Path) -> subprocess.Popen[str]:
    started = subprocess.Popen(
        [sys.executable, "-c", CONVERT, str(folder), str(cache)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "ready\n"
    return started


def test_builders_at_the_same_time_all_get_whole_entries(
    tmp_path: Path, cache_dir: Path, make_table: MakeTable
) -> None:
    write_bundle(tmp_path / "b", [make_table(20_000), make_table(20_000, 20_000)])
    started = [_start(tmp_path / "b", cache_dir) for _ in range(3)]
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    assert [process.communicate()[0] for process in started] == ["40000\n"] * 3
    assert len(list(cache_dir.rglob("*.arrow"))) == 1
    assert not list(cache_dir.rglob(".lithi-tmp-*"))


def test_a_killed_builder_leaves_nothing_that_is_served_and_is_swept_later(
    tmp_path: Path, cache_dir: Path, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_bundle(tmp_path / "b", [make_table(30_000, 30_000 * n) for n in range(4)])
    root = cache_dir / "lithi_bundle"
    for _ in range(20):
        process = _start(tmp_path / "b", cache_dir)
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        deadline = time.monotonic() + 30
        while not list(root.glob(".lithi-tmp-*/*.arrow")) and time.monotonic() < deadline:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if list(root.glob(".lithi-tmp-*")):
            break
    assert list(root.glob(".lithi-tmp-*/*.arrow"))
    assert not list(root.glob("[!.]*"))
    monkeypatch.setattr("lithi_datasets.cache._STALE_SECONDS", 0.0)
    assert len(_load(tmp_path / "b", cache_dir)) == 120_000
    assert not list(root.glob(".lithi-tmp-*"))


def test_a_full_disk_is_a_storage_error_and_leaves_nothing(
    tmp_path: Path, make_table: MakeTable
) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full on this platform")
    from lithi_datasets.convert import write_shard

    table = make_table(10)
    plain = pa.schema([pa.field(f.name, f.type) for f in table.schema])
    with pytest.raises(lithi.StorageError, match="No space"):
        write_shard(full, "train", plain, table.to_batches())


def test_a_cache_on_a_url_is_wrong_usage(tmp_path: Path, make_table: MakeTable) -> None:
    write_bundle(tmp_path / "b", make_table(5))
    with pytest.raises(lithi.UsageError, match="memory-mapped"):
        lithi.load(tmp_path / "b", cache_dir="memory://cache")


def test_the_builder_and_its_stream_carry_no_secret_when_pickled(make_table: MakeTable) -> None:
    import pickle

    write_bundle("memory://test_secret/b", make_table(5))
    lithi.register_credential("builder-ref", lambda: {"note": "hunter22"})
    builder = LithiBundle(data_dir="memory://test_secret/b", credential_ref="builder-ref")
    stream = builder.as_streaming_dataset(split="train")
    for one in (builder, stream, builder.bundle):
        raw = pickle.dumps(one)
        assert b"hunter22" not in raw
    again = pickle.loads(pickle.dumps(stream))
    assert [row["item_id"] for row in again] == [f"item-{n:06d}" for n in range(5)]
