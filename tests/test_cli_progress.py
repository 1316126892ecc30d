"""`outstanding`, `diff`, `schema` and `reconcile` on the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import MakeTable

import lithi_datasets as lithi
from lithi_datasets.cli import main
from lithi_datasets.testing import write_bundle


def _call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return ended.value.code, out, err


def test_outstanding_prints_ids_one_a_line(
    tmp_path: Path, make_table: MakeTable, capsys: pytest.CaptureFixture[str]
) -> None:
    write_bundle(tmp_path / "b", make_table(3), outstanding=["x", "y"], bind_outstanding=True)
    assert _call(capsys, "outstanding", tmp_path / "b")[:2] == (0, "x\ny\n")
    write_bundle(tmp_path / "c", make_table(3), outstanding=2)
    code, out, err = _call(capsys, "outstanding", tmp_path / "c")
    assert (code, out) == (1, "")
    assert "staged_input" in err
    table = pa.table({"item_id": [f"item-{n:06d}" for n in range(5)]})
    write_bundle(tmp_path / "i", table, kind="staged_input")
    code, out, _ = _call(capsys, "outstanding", tmp_path / "c", "--staged-input", tmp_path / "i")
    assert out.split() == ["item-000003", "item-000004"]


def _run(*arguments: object, **process: Any) -> subprocess.CompletedProcess[bytes]:
    script = "import sys; from lithi_datasets.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, stderr=subprocess.PIPE, check=False, **process)


def test_outstanding_ids_reach_a_pipe_byte_for_byte(tmp_path: Path, make_table: MakeTable) -> None:
    ids = ["é", "e\u0301", "\x1b[31m", "[red]", "\u2028", "  x ", "\t", "y" * 300]
    write_bundle(tmp_path / "b", make_table(3), outstanding=ids, bind_outstanding=True)
    poor = {**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "20"}
    for env in (dict(os.environ), poor):
        done = _run("outstanding", tmp_path / "b", env=env, stdout=subprocess.PIPE)
        assert done.returncode == 0
        assert done.stdout == "".join(f"{item}\n" for item in ids).encode()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no full device")
@pytest.mark.parametrize("command", ["outstanding", "inspect", "schema"])
def test_an_output_that_is_full_is_said_in_one_line(
    command: str, tmp_path: Path, make_table: MakeTable
) -> None:
    write_bundle(tmp_path / "b", make_table(3), outstanding=["x"], bind_outstanding=True)
    bundle = {"schema": [], "inspect": [tmp_path / "b", "--allow-partial"]}
    with Path("/dev/full").open("wb") as full:
        done = _run(command, *bundle.get(command, [tmp_path / "b"]), stdout=full)
    assert done.returncode == 1
    assert done.stderr.startswith(b"The output can't be written")
    assert done.stderr.count(b"\n") == 1


def test_an_output_that_is_closed_is_no_crash(tmp_path: Path, make_table: MakeTable) -> None:
    write_bundle(tmp_path / "b", make_table(3), outstanding=["x"], bind_outstanding=True)
    done = _run("outstanding", tmp_path / "b", preexec_fn=lambda: os.close(1))
    assert (done.returncode, done.stderr) == (0, b"")


def test_diff_shows_what_changed(
    tmp_path: Path, make_table: MakeTable, capsys: pytest.CaptureFixture[str]
) -> None:
    old = write_bundle(tmp_path / "old", make_table(4), outstanding=1)
    write_bundle(tmp_path / "new", make_table(6, 1), supersedes=old, version_id="res_2")
    code, out, _ = _call(capsys, "diff", tmp_path / "old", tmp_path / "new")
    assert code == 0
    assert "it says that it replaces the old one" in out
    assert "+ item-000004" in out
    assert "- item-000000" in out
    found = json.loads(_call(capsys, "diff", tmp_path / "old", tmp_path / "new", "--json")[1])
    assert found["added"] == ["item-000004", "item-000005", "item-000006"]


def test_schema_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _call(capsys, "schema")
    assert code == 0
    assert json.loads(out)["title"] == "Manifest"


def test_reconcile_takes_ledgers_and_tables(
    tmp_path: Path, make_table: MakeTable, capsys: pytest.CaptureFixture[str]
) -> None:
    write_bundle(tmp_path / "b", make_table(10))
    ds = lithi.load(tmp_path / "b", cache_dir=tmp_path / "c")
    ledger = lithi.Ledger(ds)
    for _ in ledger.watch(lithi.torch_loader(ds, 3)):
        pass
    state = tmp_path / "ledger.json"
    state.write_text(json.dumps(ledger.state_dict()))
    assert _call(capsys, "reconcile", tmp_path / "b", state)[0] == 0
    pq.write_table(make_table(9), tmp_path / "p.parquet")
    arguments = ["reconcile", tmp_path / "b", tmp_path / "p.parquet", "--format", "parquet"]
    code, _, err = _call(capsys, *arguments)
    assert code == 1
    assert "item-000009" in err
