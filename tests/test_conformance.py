"""The published matrix, cell by cell, on the installed versions."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pyarrow as pa
import pytest
import typer
from typer.testing import CliRunner

import lithi_datasets as lithi
from lithi_datasets import cli_conformance, conformance
from lithi_datasets.conformance_cases import CASES, FORMATS, SHAPES, Case
from lithi_datasets.conformance_refusals import REFUSALS, Refusal
from lithi_datasets.testing import PartSpec, write_bundle

CELLS = list(product(FORMATS, CASES, SHAPES))
REFUSED = [pair for pair in product(FORMATS, REFUSALS) if conformance.can_hold(*pair)]
BY_NAME = {case.name: case for case in CASES}


def called(parts: tuple[str | Case | Refusal, ...]) -> str:
    names = [part if isinstance(part, str) else part.name for part in parts]
    return ": ".join(names).encode("ascii", "replace").decode()


@pytest.mark.parametrize(("format", "case", "shape"), CELLS, ids=[called(cell) for cell in CELLS])
def test_a_type_arrives_exactly_or_is_refused_by_name(format: str, case: Case, shape: str) -> None:
    cell = conformance.check(format, case, shape)
    assert cell.ok, cell
    if cell.found == conformance.UNWRITTEN:
        assert int(pa.__version__.partition(".")[0]) < 20, cell
        pytest.skip(cell.detail)


@pytest.mark.parametrize(("format", "refusal"), REFUSED, ids=[called(pair) for pair in REFUSED])
def test_a_silent_cast_is_refused_and_the_message_names_it(format: str, refusal: Refusal) -> None:
    cell = conformance.check_refusal(format, refusal)
    assert cell is not None
    assert cell.ok, cell


def test_every_declared_type_of_the_format_has_a_row() -> None:
    types = {str(case.type).partition("[")[0].partition("(")[0] for case in CASES}
    sizes = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
    assert types >= sizes | {"bool", "float16", "float32", "float64", "string", "large_string"}
    assert types >= {"binary", "large_binary", "date32", "date64", "decimal128", "decimal256"}
    units = {case.type for case in CASES if isinstance(case.type, str)}
    assert units >= {"time32[s]", "time32[ms]", "time64[us]", "time64[ns]"}
    for kind in ("timestamp", "duration"):
        assert units >= {f"{kind}[{unit}]" for unit in ("s", "ms", "us", "ns")}
    nested = [key for case in CASES if isinstance(case.type, dict) for key in case.type]
    assert {*nested} == {"list", "length", "large_list", "struct"}
    assert any(case.class_names for case in CASES)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("int64", replace(BY_NAME["int64"], values=((2**53 + 1, "9007199254740992"),))),
        ("float64", replace(BY_NAME["float64"], values=((0.0, "-0.0"),))),
        ("timestamp[ns]", replace(BY_NAME["timestamp[ns]"], values=((0, "1970-01-01T00:00:01"),))),
        ("string", replace(BY_NAME["string"], arrow=pa.large_string(), written=pa.string())),
    ],
)
def test_a_cell_notices_another_value_and_another_type(name: str, wrong: Case) -> None:
    cell = conformance.check("jsonl", wrong, "required")
    assert (cell.type, cell.found, cell.ok) == (name, conformance.DIFFERENT, False)
    assert cell.detail


def test_a_cell_notices_a_refusal_that_does_not_name_the_field() -> None:
    refusal = replace(REFUSALS[0], says="another_field")
    cell = conformance.check_refusal("jsonl", refusal)
    assert cell is not None
    assert not cell.ok
    assert "does not name another_field" in cell.found


@pytest.mark.parametrize("format", ["parquet", "arrow", "jsonl", "csv"])
def test_values_after_a_long_run_of_nulls_keep_their_type(format: str, tmp_path: Path) -> None:
    rows = 20_000
    last = pa.array([None] * (rows - 1) + [2**53 + 1], pa.int64())
    table = pa.table({"item_id": [f"i{n}" for n in range(rows)], "value": last})
    write_bundle(tmp_path / "b", table, format=format, kind="staged_input")
    batches = list(lithi.open_bundle(tmp_path / "b").scan_part(0))
    assert len(batches) > 1
    assert {batch.schema.field("value").type for batch in batches} == {pa.int64()}
    assert batches[-1]["value"][-1].as_py() == 2**53 + 1


def test_a_dataset_holds_what_the_matrix_shows(tmp_path: Path, cache_dir: Path) -> None:
    cases = [case for case in CASES if case.name != "list of 2 structs"]
    rows = max(len(case.values) for case in cases) + 1
    written, held = {"item_id": pa.array([f"i{n}" for n in range(rows)])}, {}
    fields = [{"name": "item_id", "type": "string", "nullable": False}]
    for number, case in enumerate(cases):
        values = [value for value, _ in case.values]
        values += [None] * (rows - len(values))
        name = f"c{number}"
        written[name] = pa.array(values, case.written or case.arrow)
        held[name] = pa.array(values, case.arrow)
        field = {"name": name, "type": case.type}
        fields.append(
            field if case.class_names is None else {**field, "class_names": [*case.class_names]}
        )
    spec = PartSpec(pa.table(written))
    write_bundle(tmp_path / "b", spec, fields=fields, kind="staged_input")
    ds = lithi.load(tmp_path / "b", cache_dir=cache_dir).with_format("arrow")
    table = ds[:]
    for name, expected in held.items():
        found = table[name].combine_chunks()
        assert found.type == expected.type, name
        found = found.chunk(0) if isinstance(found, pa.ChunkedArray) else found
        assert conformance.same_values(found, expected), name


def test_the_command_prints_versions_and_the_matrix() -> None:
    app = typer.Typer()
    app.command()(cli_conformance.conformance)
    app.command()(cli_conformance.schema)
    shown = CliRunner().invoke(app, ["conformance", "--format", "csv"], env={"COLUMNS": "120"})
    assert shown.exit_code == 0, shown.output
    assert f"import_compatible, with lithi-datasets {lithi.__version__}" in shown.output
    assert "date32" in shown.output
    assert "timestamp[us, tz=UTC]" in shown.output
    printed = CliRunner().invoke(app, ["conformance", "--format", "csv", "--json"])
    document = json.loads(printed.stdout)
    assert document["ok"]
    assert {"python", "datasets", "pyarrow"} <= document["versions"].keys()
    stated = conformance.published_cells(old_datasets=conformance.features_of_old_datasets())
    assert document["cells"] == [
        {**cell.as_dict(), "detail": found["detail"]}
        for cell, found in zip(
            [cell for cell in stated if cell.format == "csv"], document["cells"], strict=True
        )
    ]
    assert len(stated) == len(CELLS) + len(REFUSED)
    assert json.loads(CliRunner().invoke(app, ["schema"]).stdout)["title"] == "Manifest"


def test_the_command_fails_where_a_cell_is_not_what_is_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrong = conformance.Cell("csv", "int8", "required", "exact", "different", "found 1, expected 2")
    monkeypatch.setattr(conformance, "run", lambda formats: [wrong])
    app = typer.Typer()
    app.command()(cli_conformance.conformance)
    shown = CliRunner().invoke(app, [])
    assert shown.exit_code == 1
    assert "csv, int8, required: different, not exact" in shown.output


def test_a_format_that_is_not_in_the_matrix_is_wrong_usage() -> None:
    with pytest.raises(lithi.UsageError, match="no such format"):
        conformance.run(["xml"])
