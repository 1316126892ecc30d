"""The name `lithi_torch`: registered, pickled, and what of `datasets` the format rests on."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pytest
import torch
from datasets.formatting import _FORMAT_TYPES, get_format_type_from_alias, get_formatter
from formatter_rows import dataset_of, untouched

from lithi_datasets.reading.formatter import FORMAT, LithiFormatName, TorchExactFormatter, register


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
    ds = dataset_of(pa.table({"n": pa.array([1], pa.uint16())}))
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
    ds = dataset_of(pa.table({"n": pa.array([1, 2])})).with_format(FORMAT)
    ds[0], ds[:], ds["n"][:], list(ds), list(ds.iter(1))
    ds.map(untouched, batched=True), ds.filter(lambda row: True)
    stream = ds.to_iterable_dataset()
    (
        list(stream),
        list(stream.iter(2)),
        list(stream.map(untouched, batched=True).iter(2)),
        list(stream.filter(lambda row: True)),
    )
    with_token = {caller for caller, token in named if token}
    assert with_token == {"FormattedExamplesIterable.__iter__"}
    assert not with_token & {caller for caller, token in named if not token}


def test_the_registry_takes_the_name_and_gives_it_back() -> None:
    assert _FORMAT_TYPES[FORMAT] is TorchExactFormatter
    assert type(get_format_type_from_alias("lithi_torch")) is LithiFormatName
    assert type(get_formatter("lithi_torch")) is TorchExactFormatter
    assert isinstance(get_formatter(FORMAT), datasets.formatting.formatting.TensorFormatter)
