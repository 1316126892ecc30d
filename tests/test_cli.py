"""The command line, called as a person or a machine calls it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import MakeTable

import lithi_datasets
from lithi_datasets import sample
from lithi_datasets.cli import main
from lithi_datasets.testing import write_bundle


@dataclass(frozen=True)
class Ended:
    """How a call ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


Call = Callable[..., Ended]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Runs the command line in this process, on a terminal of 100 columns."""
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: object) -> Ended:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Ended(ended.value.code, out, err)

    return run


def _pin(folder: Path) -> str:
    snapshot = lithi_datasets.open_bundle(folder).snapshot
    return f"{snapshot.version_id}@{snapshot.content_sha256}"


def test_inspect_shows_columns_parts_counts_and_the_pin(call: Call) -> None:
    ended = call("inspect", sample.path())
    assert (ended.code, ended.err) == (0, "")
    assert _pin(sample.path()) in ended.out
    for text in ("lithi_confidence", "float64", "parts/part-00003.arrow", "1,642 accepted"):
        assert text in ended.out


def test_inspect_reads_the_manifest_and_nothing_else(
    call: Call, tmp_path: Path, make_table: MakeTable
) -> None:
    write_bundle(tmp_path, make_table(3))
    for part in (tmp_path / "parts").iterdir():
        part.unlink()
    assert call("inspect", tmp_path).code == 0


def test_inspect_json_holds_the_whole_manifest(call: Call) -> None:
    document = call("inspect", sample.path(), "--json").json()
    with (sample.path() / "result-manifest.json").open(encoding="utf-8") as file:
        assert document["manifest"]["parts"] == json.load(file)["parts"]
    assert document["splits"] == {
        "train": {"parts": 4, "rows": 1437},
        "test": {"parts": 2, "rows": 360},
    }


def test_verify_reports_rows_statuses_and_files_that_are_not_bound(
    call: Call, tmp_path: Path, make_table: MakeTable
) -> None:
    write_bundle(tmp_path, [make_table(5), make_table(4, 5)])
    (tmp_path / "stray.txt").write_text("not mine", encoding="utf-8")
    ended = call("verify", tmp_path, "--json")
    assert ended.code == 0
    report = ended.json()
    assert report["unbound"] == ["stray.txt"]
    assert (report["files"], report["rows"]) == (2, 9)
    assert sum(report["statuses"].values()) == 9
    assert "stray.txt" in call("verify", tmp_path).out


def test_a_refusal_names_the_error_and_the_remedy_on_the_error_stream(
    call: Call, tmp_path: Path, make_table: MakeTable
) -> None:
    write_bundle(tmp_path, make_table(5))
    part = next((tmp_path / "parts").iterdir())
    part.write_bytes(part.read_bytes()[:-1] + b"\0")
    ended = call("verify", tmp_path)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("FileDigestMismatch: ")
    assert "what to do: " in ended.err
    assert "Traceback" not in ended.err


def test_a_refusal_with_json_is_json_too(call: Call, tmp_path: Path) -> None:
    ended = call("verify", tmp_path, "--json")
    assert ended.code == 1
    assert ended.json()["error"] == "ManifestMissing"
    assert ended.json()["path"] == str(tmp_path)


def test_a_partial_bundle_is_refused_with_its_next_action_unless_allowed(
    call: Call, tmp_path: Path, make_table: MakeTable
) -> None:
    action = {"action": "RESUBMIT_OUTSTANDING", "message": "Send them again."}
    write_bundle(tmp_path, make_table(5), outstanding=["item-x"], next_action=action)
    refused = call("inspect", tmp_path, "--json")
    assert (refused.code, refused.json()["next_action"]) == (1, action)
    assert "RESUBMIT_OUTSTANDING" in refused.err
    allowed = call("inspect", tmp_path, "--allow-partial")
    assert allowed.code == 0
    assert "RESUBMIT_OUTSTANDING: Send them again." in allowed.out


def test_a_pin_of_this_bundle_is_taken_and_one_of_another_refused(
    call: Call, tmp_path: Path, make_table: MakeTable
) -> None:
    write_bundle(tmp_path, make_table(5), version_id="res@with an at")
    pin = _pin(tmp_path)
    assert call("verify", tmp_path, "--snapshot", pin).code == 0
    other = call("verify", tmp_path, "--snapshot", pin[:-1] + ("0" if pin[-1] != "0" else "1"))
    assert other.code == 1
    assert other.err.startswith("SnapshotMismatch: ")


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("inspect",),
        ("no-such-command",),
        ("inspect", "x", "--no-such-option"),
        ("inspect", "x", "--snapshot", "res_1"),
        ("inspect", "x", "--snapshot", "res_1@" + "G" * 64),
        ("inspect", "x", "--snapshot", "@" + "0" * 64),
        ("demo", "--epochs", "0"),
        ("demo", "--readers", "99"),
    ],
)
def test_wrong_usage_ends_with_2_and_prints_no_result(
    call: Call, arguments: tuple[str, ...]
) -> None:
    ended = call(*arguments)
    assert ended.code == 2
    assert "Usage: lithi-datasets" in ended.out + ended.err
    assert "Traceback" not in ended.err


def test_an_unknown_credential_reference_is_refused_by_name(call: Call) -> None:
    ended = call("inspect", "memory://bundle", "--credential-ref", "nobody")
    assert ended.code == 1
    assert ended.err.startswith("CredentialError: ")


def test_version_is_that_of_the_package(call: Call) -> None:
    ended = call("--version")
    assert (ended.code, ended.out) == (0, f"lithi-datasets {lithi_datasets.__version__}\n")


def test_names_in_a_manifest_are_neither_markup_nor_terminal_codes(
    call: Call, tmp_path: Path, make_table: MakeTable
) -> None:
    table = make_table(2).append_column("[bold]x\x1b[31m", pa.array([1, 2]))
    write_bundle(tmp_path, table)
    ended = call("inspect", tmp_path)
    assert ended.code == 0
    assert "[bold]x\\x1b[31m" in ended.out
    assert "\x1b" not in ended.out


def test_an_error_text_carries_no_terminal_codes(call: Call, tmp_path: Path) -> None:
    ended = call("inspect", tmp_path / "a\x1b[31mb")
    assert ended.code == 1
    assert "\x1b" not in ended.err


def test_a_long_list_of_parts_is_cut_with_a_hint(
    call: Call, tmp_path: Path, make_table: MakeTable
) -> None:
    write_bundle(tmp_path, [make_table(1, n) for n in range(23)])
    assert "and 3 more; --json lists all" in call("inspect", tmp_path).out
    assert len(call("inspect", tmp_path, "--json").json()["manifest"]["parts"]) == 23


COMMAND = [sys.executable, "-c", "from lithi_datasets.cli import main; main()"]


def test_a_reader_that_goes_away_gets_no_traceback(tmp_path: Path) -> None:
    program = subprocess.Popen(
        [*COMMAND, "inspect", str(sample.path()), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert program.stdout is not None
    assert program.stderr is not None
    program.stdout.close()
    errors = program.stderr.read()
    program.stderr.close()
    program.wait()
    assert errors == b""


def test_an_encoding_without_the_letters_is_no_crash(tmp_path: Path, make_table: MakeTable) -> None:
    write_bundle(tmp_path, make_table(2).append_column("größe", pa.array([1, 2])))
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [*COMMAND, "inspect", str(tmp_path)], capture_output=True, text=True, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "gr\\xf6\\xdfe" in done.stdout


def test_an_interrupt_ends_without_a_traceback(tmp_path: Path) -> None:
    # A FIFO in the manifest's place: the command waits in the middle of its work.
    code = (
        "import sys, threading, os, signal\n"
        "from lithi_datasets import cli\n"
        "def wait(*args):\n"
        "    print('here', file=sys.stderr, flush=True)\n"
        "    signal.pause()\n"
        "cli.open_bundle = wait\n"
        "cli.main()\n"
    )
    program = subprocess.Popen(
        [sys.executable, "-c", code, "inspect", "x"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stderr is not None
    assert program.stderr.readline() == "here\n"
    program.send_signal(signal.SIGINT)
    out, err = program.communicate()
    assert program.returncode == 130
    assert "Traceback" not in out + err
