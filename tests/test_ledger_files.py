"""`lithi-datasets reconcile`: ledgers and tables of files, right, wrong and broken."""

from __future__ import annotations

import contextlib
import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import result_table
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_ledger import ROWS, UNEVEN, WHOLE, item, load, watched

import lithi_datasets as lithi
from lithi_datasets.cli import main
from lithi_datasets.ledger_files import TABLE_FORMATS, reconcile_states, reconcile_table
from lithi_datasets.testing import PartSpec, write_bundle

Call = Callable[..., tuple[object, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Runs `reconcile`: the exit code, what was printed, and the error text."""

    def run(*arguments: object) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["reconcile", *map(str, arguments)])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return ended.value.code, out, err

    return run


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    write_bundle(folder / "b", [result_table(n, sum(UNEVEN[:i])) for i, n in enumerate(UNEVEN)])
    return folder / "b"


def write_table(path: Path, format: str, ids: list[Any], name: str = "item_id") -> Path:
    table = pa.table({"guess": list(range(len(ids))), name: pa.array(ids)})
    if format == "parquet":
        pq.write_table(table, path, row_group_size=5)
    elif format == "arrow":
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table, 5)
    elif format == "csv":
        with path.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerow(table.column_names)
            writer.writerows(enumerate(ids))
    else:
        rows = [json.dumps({"guess": n, name: one}) for n, one in enumerate(ids)]
        path.write_text("\n".join([*rows, "", ""]), encoding="utf-8")
    return path


IDS = [item(n) for n in range(ROWS)]


@pytest.mark.parametrize("format", TABLE_FORMATS)
def test_a_table_with_each_row_once_adds_up(
    bundle: Path, tmp_path: Path, call: Call, format: str
) -> None:
    first = write_table(tmp_path / "first", format, IDS[20:])
    second = write_table(tmp_path / "second", format, IDS[:20][::-1])
    code, out, _ = call(bundle, first, second, "--format", format)
    assert code == 0
    assert "reconciled" in out
    assert "37 rows, each once: 23 accepted, 7 failed, 7 abstained" in out
    code, out, _ = call(bundle, first, second, "--format", format, "--json")
    assert code == 0
    snapshot = lithi.open_bundle(bundle).snapshot.as_dict()
    assert json.loads(out) == {"source": str(bundle), "snapshot": snapshot, **WHOLE}


@pytest.mark.parametrize("format", TABLE_FORMATS)
def test_what_is_wrong_with_a_table_is_named(
    bundle: Path, tmp_path: Path, call: Call, format: str
) -> None:
    ids = [*IDS[2:], "item-000004", "item-00005", "ITEM-000006"]
    code, out, err = call(bundle, write_table(tmp_path / "t", format, ids), "--format", format)
    assert (code, out) == (1, "")
    assert "2 rows not read; 1 row read more than once; 2 rows that the ledger" in err
    assert "missing 'item-000000', 'item-000001'" in err
    assert "repeated 'item-000004' 2 times" in err
    assert "foreign 'item-00005', 'ITEM-000006'" in err


def test_a_stream_of_arrow_is_a_table_too(bundle: Path, tmp_path: Path, call: Call) -> None:
    table = pa.table({"item_id": pa.array(IDS, pa.large_string())})
    with pa.ipc.new_stream(tmp_path / "t", table.schema) as writer:
        writer.write_table(table, 7)
    assert call(bundle, tmp_path / "t", "--format", "arrow")[0] == 0
    coded = pa.table({"item_id": pa.array(IDS).dictionary_encode()})
    with pa.ipc.new_stream(tmp_path / "t", coded.schema) as writer:
        writer.write_table(coded)
    assert call(bundle, tmp_path / "t", "--format", "arrow")[0] == 0


@pytest.mark.parametrize("format", TABLE_FORMATS)
def test_the_ids_may_be_in_another_column(
    bundle: Path, tmp_path: Path, call: Call, format: str
) -> None:
    file = write_table(tmp_path / "t", format, IDS, name="the id")
    assert call(bundle, file, "--format", format, "--id-column", "the id")[0] == 0
    code, _, err = call(bundle, file, "--format", format)
    assert code == 1
    assert str(file) in err
    assert "'item_id'" in err


def test_predictions_for_some_statuses_or_splits_are_measured_by_these(
    tmp_path: Path, call: Call
) -> None:
    parts = [
        PartSpec(result_table(10), split="train", status_counts=False),
        PartSpec(result_table(5, 10), split="test", status_counts=False),
    ]
    write_bundle(tmp_path / "b", parts)
    file = write_table(tmp_path / "t", "jsonl", [item(n) for n in (10, 11, 13)])
    where = (tmp_path / "b", file, "--format", "jsonl", "--split", "test")
    code, out, _ = call(*where, "--status", "accepted", "--json")
    assert code == 0
    assert json.loads(out)["excluded"] == {"abstained+failed": 2}
    assert call(*where)[0] == 1
    assert call(*where, "--status", "accepted", "--status", "failed")[0] == 1
    for wrong in (("--status", "done"), ("--split", "dev"), ("--split", "test+test")):
        code, _, err = call(tmp_path / "b", file, "--format", "jsonl", *wrong)
        assert code == 1
        assert wrong[1] in err


BROKEN: dict[str, bytes] = {
    "empty": b"",
    "text": b"these are no rows\n",
    "json": b'{"item_id": "item-000000"',
    "no rows": b"[]\n",
    "no id": b'{"item": 1}\n',
    "numbers": b'{"item_id": 5}\n',
    "a null": b'{"item_id": null}\n',
    "a list": b'{"item_id": ["item-000000"]}\n',
    "not UTF-8": b'item_id\n"\xff\xfe"\n{"item_id": "\xff"}\n',
    "two headers": b"item_id,item_id\nitem-000000,item-000001\n",
    "a lone quote": b'item_id\n"item-000000\n',
    "cells": b"item_id,x\nitem-000000\n",
    "a parquet end": b"PAR1" + bytes(20) + b"PAR1",
    "an arrow start": b"ARROW1\0\0" + bytes(40),
    "a stream start": b"\xff\xff\xff\xff\x10\0\0\0" + bytes(24),
    "compressed": gzip.compress(b"item_id\nitem-000000\n"),
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("content", BROKEN)
def test_a_broken_file_is_refused_in_every_format(
    bundle: Path, tmp_path: Path, call: Call, content: str
) -> None:
    file = tmp_path / "broken"
    file.write_bytes(BROKEN[content])
    for format in ("ledger", *TABLE_FORMATS):
        code, out, err = call(bundle, file, "--format", format)
        assert (code, out) == (1, ""), format
        if "not read;" not in err and "not read." not in err:  # it is a table, of other ids
            assert str(file) in err, format


@pytest.mark.parametrize("format", ["ledger", *TABLE_FORMATS])
def test_a_file_that_is_not_there_or_a_folder_is_refused(
    bundle: Path, tmp_path: Path, call: Call, format: str
) -> None:
    for place in (tmp_path / "nowhere", tmp_path):
        code, _, err = call(bundle, place, "--format", format)
        assert code == 1
        assert str(place) in err


@pytest.mark.parametrize("format", ["parquet", "arrow"])
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_a_damaged_table_never_ends_in_a_foreign_error(
    bundle: Path, tmp_path: Path, format: str, data: st.DataObject
) -> None:
    content = bytearray(write_table(tmp_path / "t", format, IDS).read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.just(len(content)) | st.integers(0, len(content)))
    (tmp_path / "t").write_bytes(content[:cut])
    with contextlib.suppress(lithi.LithiError):
        reconcile_table(lithi.open_bundle(bundle), [str(tmp_path / "t")], format)


def test_a_table_of_an_unknown_format_is_refused(bundle: Path, tmp_path: Path, call: Call) -> None:
    opened = lithi.open_bundle(bundle)
    with pytest.raises(lithi.UsageError, match="no such format"):
        reconcile_table(opened, [str(tmp_path / "t")], "orc")
    assert call(bundle, tmp_path / "t", "--format", "orc")[0] == 2
    assert call(bundle)[0] == 2
    with pytest.raises(lithi.UsageError, match="no state"):
        reconcile_states(opened, [])


def states_of(folder: Path, ledgers: list[lithi.Ledger]) -> list[Path]:
    files = []
    for rank, ledger in enumerate(ledgers):
        files.append(folder / f"ledger-{rank}.json")
        files[-1].write_text(json.dumps(ledger.state_dict()))
    return files


@pytest.mark.parametrize("streaming", [False, True], ids=["map", "stream"])
@pytest.mark.parametrize("statuses", [None, ["accepted", "failed"]], ids=["all", "some"])
@pytest.mark.parametrize("stated", [False, True], ids=["counted", "stated"])
@pytest.mark.parametrize("shares", [False, True], ids=["whole", "shares"])
def test_ledgers_of_all_ranks_add_up(
    tmp_path: Path,
    call: Call,
    *,
    streaming: bool,
    statuses: list[str] | None,
    stated: bool,
    shares: bool,
) -> None:
    parts = [
        PartSpec(result_table(n, first), split=split, status_counts=stated)
        for n, first, split in ((10, 0, "train"), (3, 10, "test"), (9, 13, "train"))
    ]
    write_bundle(tmp_path / "b", parts)
    ds = load(tmp_path / "b", streaming=streaming, statuses=statuses)
    ledgers = []
    for rank in (0, 1):
        source = lithi.split_by_node(ds, rank, 2) if shares else ds
        place: dict[str, Any] = {} if shares else {"rank": rank, "world_size": 2}
        ledgers.append(watched(lithi.Ledger(source), lithi.torch_loader(source, 4, **place)))
    files = states_of(tmp_path, ledgers)
    joined = ledgers[0].merge(ledgers[1]).reconcile().as_dict()
    code, out, _ = call(tmp_path / "b", *files, "--json")
    assert code == 0
    found = json.loads(out)
    if shares and streaming and not stated:
        joined["excluded"] = found["excluded"]  # no rank knows; here the parts are counted
    assert {name: found[name] for name in joined} == joined
    assert found["rows"] == (19 if statuses is None else 15)
    assert found["excluded"] == ({} if statuses is None else {"abstained": 4})
    code, _, err = call(tmp_path / "b", files[0])
    assert code == 1
    assert ("in no ledger's dataset" if shares else "not read") in err


def test_a_state_of_another_bundle_or_of_a_slice_is_refused(
    bundle: Path, tmp_path: Path, call: Call
) -> None:
    write_bundle(tmp_path / "other", result_table(ROWS), version_id="res_other")
    (state,) = states_of(tmp_path, [lithi.Ledger(load(tmp_path / "other"))])
    code, _, err = call(bundle, state)
    assert code == 1
    assert "its snapshot differs" in err
    (state,) = states_of(tmp_path, [lithi.Ledger(load(bundle, "train[:10]"))])
    code, _, err = call(bundle, state)
    assert code == 1
    assert "can't be told from the bundle alone" in err
    (state,) = states_of(tmp_path, [lithi.Ledger(load(bundle).select(range(9)), subset=True)])
    assert call(bundle, state)[0] == 1


def test_a_state_that_is_given_twice_is_refused(bundle: Path, tmp_path: Path, call: Call) -> None:
    (state,) = states_of(tmp_path, [lithi.Ledger(load(bundle))])
    code, _, err = call(bundle, state, state)
    assert code == 1
    assert "counted twice" in err


def test_options_of_a_table_are_refused_for_a_ledger(
    bundle: Path, tmp_path: Path, call: Call
) -> None:
    (state,) = states_of(tmp_path, [lithi.Ledger(load(bundle))])
    for option in (("--split", "train"), ("--status", "failed"), ("--id-column", "x")):
        code, _, err = call(bundle, state, *option)
        assert code == 1
        assert "says itself which rows" in err


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 40) | st.text(max_size=5) | st.just("test"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_a_broken_ledger_never_ends_in_a_foreign_error(
    bundle: Path, tmp_path: Path, data: st.DataObject
) -> None:
    ds = load(bundle)
    share = lithi.split_by_node(ds, 0, 2)
    state = dict(lithi.Ledger(data.draw(st.sampled_from([ds, share]))).state_dict())
    for name in data.draw(st.lists(st.sampled_from(sorted(state)), min_size=1, max_size=2)):
        value = data.draw(JSON | st.fixed_dictionaries({"rank": JSON, "world_size": JSON}))
        if data.draw(st.booleans()) and name in state:
            del state[name]
        else:
            state[name] = value
    whole = data.draw(st.just(state) | JSON)
    (tmp_path / "s").write_text(json.dumps(whole))
    with contextlib.suppress(lithi.LithiError):
        reconcile_states(lithi.open_bundle(bundle), [str(tmp_path / "s")])
