"""The fault filesystem: each fault does what it says, the counts say what was done."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.core import url_to_fs

from lithi_datasets.errors import UsageError
from lithi_datasets.testing import Fault, FaultFileSystem, FaultScene, fault_filesystem

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lithi_datasets.testing.faults import Event

PART = "parts/a.bin"
DATA = bytes(range(200))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "parts").mkdir()
    (tmp_path / PART).write_bytes(DATA)
    (tmp_path / "b.bin").write_bytes(b"bbb")
    return tmp_path


def read(scene: FaultScene, path: str = PART) -> bytes:
    fs, address = url_to_fs(f"{scene.url}/{path}")
    return bytes(fs.cat_file(address))


def test_without_faults_the_folder_is_seen_as_it_is_and_counted(folder: Path) -> None:
    with fault_filesystem(folder) as scene:
        fs, root = url_to_fs(scene.url)
        assert [name.removeprefix(root + "/") for name in fs.find(root)] == ["b.bin", PART]
        assert read(scene) == DATA
        assert fs.cat_file(f"{root}/{PART}", start=10, end=-10) == DATA[10:-10]
        assert (fs.isfile(f"{root}/b.bin"), fs.isdir(f"{root}/parts")) == (True, True)
        assert (fs.exists(f"{root}/b.bin"), fs.exists(f"{root}/c.bin")) == (True, False)
        assert fs.size(f"{root}/b.bin") == 3
    assert scene.opens == {PART: 2}
    assert scene.bytes_read == {PART: 200 + 180}
    assert scene.lists == {"": 1, "parts": 1}
    assert scene.infos["b.bin"] == 3
    assert scene.touched == ["", "parts", PART, "b.bin", "c.bin"]
    assert scene.events[:3] == [("list", ""), ("list", "parts"), ("open", PART)]


def test_other_bytes_on_the_second_open_of_each_path(folder: Path) -> None:
    with fault_filesystem(folder, Fault("*.bin", "replace", nth=2, data=b"other")) as scene:
        assert [read(scene) for _ in range(3)] == [DATA, b"other", DATA]
        assert [read(scene, "b.bin") for _ in range(2)] == [b"bbb", b"other"]
        assert scene.opens == {PART: 3, "b.bin": 2}


def test_an_open_file_states_the_size_of_what_replaced_it(folder: Path) -> None:
    with fault_filesystem(folder, Fault(PART, "replace", data=b"other")) as scene:
        fs, root = url_to_fs(scene.url)
        with fs.open(f"{root}/{PART}") as stream:
            assert stream.size == 5
        assert fs.info(f"{root}/{PART}")["size"] == 200


def test_an_info_that_lies(folder: Path) -> None:
    faults = [
        Fault(PART, "truncate", on="info", nth=1, size=7),
        Fault(PART, "replace", on="info", nth=2, data=b"12"),
    ]
    with fault_filesystem(folder, *faults) as scene:
        fs, root = url_to_fs(scene.url)
        assert [fs.size(f"{root}/{PART}") for _ in range(3)] == [7, 2, 200]
        assert read(scene) == DATA


def test_a_truncated_file_still_states_its_size(folder: Path) -> None:
    with fault_filesystem(folder, Fault(PART, "truncate", size=50)) as scene:
        fs, root = url_to_fs(scene.url)
        with fs.open(f"{root}/{PART}") as stream:
            assert stream.size == 200
            assert stream.read(30) == DATA[:30]
            assert stream.read() == DATA[30:50]
            assert stream.read(1) == b""
            assert stream.seek(-5, 2) == 45
            assert stream.read(100) == DATA[45:50]
            stream.seek(60)
            assert stream.read(1) == b""


def test_short_reads_lose_nothing(folder: Path) -> None:
    with fault_filesystem(folder, Fault(PART, "shorten", size=7)) as scene:
        fs, root = url_to_fs(scene.url)
        with fs.open(f"{root}/{PART}") as stream:
            assert stream.read(100) == DATA[:7]
            target = bytearray(100)
            assert stream.readinto(target) == 7
            assert target[:7] == DATA[7:14]
            assert stream.read() == DATA[14:]


def test_an_error_on_the_third_read_of_a_path_over_all_openings(folder: Path) -> None:
    error = TimeoutError("slow store")
    with fault_filesystem(folder, Fault(PART, "raise", on="read", nth=3, error=error)) as scene:
        fs, root = url_to_fs(scene.url)
        with fs.open(f"{root}/{PART}") as stream:
            assert stream.read(10) + stream.read(10) == DATA[:20]
        with fs.open(f"{root}/{PART}") as stream:
            with pytest.raises(TimeoutError, match="slow store"):
                stream.read(10)
            assert stream.read(10) == DATA[:10]


@pytest.mark.parametrize(
    ("event", "act"),
    [
        ("open", lambda fs, root: fs.cat_file(f"{root}/{PART}")),
        ("info", lambda fs, root: fs.info(f"{root}/{PART}")),
        ("list", lambda fs, root: fs.ls(f"{root}/parts")),
        ("create", lambda fs, root: fs.pipe_file(f"{root}/{PART}", b"new")),
        ("write", lambda fs, root: fs.pipe_file(f"{root}/{PART}", b"new")),
        ("remove", lambda fs, root: fs.rm_file(f"{root}/{PART}")),
    ],
)
def test_every_event_can_fail_once(
    folder: Path, event: Event, act: Callable[[Any, str], object]
) -> None:
    with fault_filesystem(folder, Fault("parts*", "raise", on=event, nth=1)) as scene:
        fs, root = url_to_fs(scene.url)
        with pytest.raises(OSError, match=f"fault injected on {event}"):
            act(fs, root)
        act(fs, root)
        assert scene.events.count((event, PART if event != "list" else "parts")) == 2


def test_a_call_changes_the_files_between_two_reads(folder: Path) -> None:
    def swap(path: str) -> None:
        (folder / path).write_bytes(b"swapped")

    with fault_filesystem(folder, Fault(PART, "call", nth=2, call=swap)) as scene:
        assert [read(scene) for _ in range(2)] == [DATA, b"swapped"]


def test_a_delay_delays_and_faults_add_up(folder: Path) -> None:
    faults = [Fault(PART, "delay", seconds=0.05), Fault(PART, "truncate", size=3)]
    with fault_filesystem(folder, *faults) as scene:
        start = time.monotonic()
        assert read(scene) == DATA[:3]
        assert time.monotonic() - start >= 0.05


def test_no_sizes_as_over_chunked_http(folder: Path) -> None:
    with fault_filesystem(folder, sizes=False) as scene:
        fs, root = url_to_fs(scene.url)
        assert fs.info(f"{root}/{PART}")["size"] is None
        with fs.open(f"{root}/{PART}") as stream:
            assert stream.size is None
            assert stream.read() == DATA


def test_neither_the_instance_cache_nor_skipping_it_loses_the_scene(folder: Path) -> None:
    with fault_filesystem(folder, Fault("*", "replace", nth=3, data=b"x")) as scene:
        first = fsspec.filesystem("faults")
        second = fsspec.filesystem("faults", skip_instance_cache=True)
        assert first is not second
        address = f"{scene.url}/{PART}"
        assert [fs.cat_file(address) for fs in (first, second, first)] == [DATA, DATA, b"x"]
        FaultFileSystem.clear_instance_cache()
        assert read(scene) == DATA
        assert scene.opens == {PART: 4}


def test_two_scenes_of_one_folder_are_apart_and_end_with_their_block(folder: Path) -> None:
    with fault_filesystem(folder, Fault("*", "replace", data=b"x")) as left:
        with fault_filesystem(folder) as right:
            assert (read(left), read(right)) == (b"x", DATA)
        with pytest.raises(FileNotFoundError, match="no scene"):
            read(right)
        assert right.opens == {PART: 1}
        assert read(left) == b"x"


def test_reset_counts_from_the_start_and_added_faults_act(folder: Path) -> None:
    with fault_filesystem(folder) as scene:
        read(scene)
        scene.reset()
        scene.add(Fault(PART, "replace", nth=1, data=b"x"))
        assert [read(scene) for _ in range(2)] == [b"x", DATA]
        assert scene.opens == {PART: 2}


def test_threads_lose_no_count(folder: Path) -> None:
    with fault_filesystem(folder) as scene:
        threads = [
            threading.Thread(target=lambda: [read(scene) for _ in range(50)]) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert scene.opens[PART] == len([1 for event, _ in scene.events if event == "open"]) == 200
        assert scene.bytes_read[PART] == 200 * len(DATA)


def test_writing_copying_and_moving_reach_the_folder(folder: Path) -> None:
    with fault_filesystem(folder, Fault("new/y", "raise", on="write", nth=2)) as scene:
        fs, root = url_to_fs(scene.url)
        fs.makedirs(f"{root}/new")
        fs.pipe_file(f"{root}/new/x", b"123")
        fs.mv(f"{root}/new/x", f"{root}/new/y")
        assert [path.name for path in (folder / "new").iterdir()] == ["y"]
        assert scene.bytes_written == {"new/x": 3, "new/y": 3}
        with pytest.raises(OSError, match="on write"):
            fs.pipe_file(f"{root}/new/y", b"456")
        fs.rm(f"{root}/new", recursive=True)
        assert not (folder / "new").exists()


def test_a_memory_folder_and_a_folder_with_glob_characters(tmp_path: Path) -> None:
    fsspec.filesystem("memory").pipe_file("/faults/x/a", b"1")
    odd = tmp_path / "a[b]*::c"
    odd.mkdir()
    (odd / "a").write_bytes(b"2")
    with fault_filesystem("memory://faults/x") as memory, fault_filesystem(odd) as local:
        assert (read(memory, "a"), read(local, "a")) == (b"1", b"2")
        fs, root = url_to_fs(memory.url)
        assert fs.find(root) == [f"{root}/a"]


def test_text_mode_and_arrow_read_through_it(folder: Path) -> None:
    table = pa.table({"n": [1, 2, 3]})
    pq.write_table(table, folder / "t.parquet")
    with fault_filesystem(folder, Fault("t.parquet", "shorten", size=1000)) as scene:
        fs, root = url_to_fs(scene.url)
        with fs.open(f"{root}/t.parquet") as stream:
            assert pq.read_table(stream) == table
        with fsspec.open(f"{scene.url}/b.bin", "r", encoding="ascii") as stream:
            assert stream.read() == "bbb"


@pytest.mark.parametrize(
    "arguments",
    [
        {"action": "explode"},
        {"action": "replace", "on": "read"},
        {"action": "raise", "on": "sneeze"},
        {"action": "raise", "nth": 0},
        {"action": "shorten", "size": 0},
        {"action": "truncate", "size": -1},
        {"action": "call"},
        {"action": "raise", "call": print},
    ],
)
def test_a_fault_that_makes_no_sense_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Fault("*", **arguments)
