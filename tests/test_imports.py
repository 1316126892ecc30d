"""The shape of the package: what it imports, which way imports point, how big its pieces are."""

from __future__ import annotations

import ast
import graphlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import lithi_datasets

ROOT = Path(lithi_datasets.__file__).parent
MAX_MODULE_LINES = 450
MAX_FUNCTION_LINES = 40

# Each room, the modules in it, and the rooms that it may import: one way along the line that data
# walks. A package stands for all modules in it.
ROOMS: dict[str, tuple[set[str], set[str]]] = {
    "errors": ({"errors"}, set()),
    "manifest": (
        {
            "json_faults",
            "limits",
            "manifest",
            "manifest_rules",
            "paths",
            "strict_json",
            "types",
        },
        {"errors"},
    ),
    "schema": (
        {"casts", "checks", "conversion", "gather", "nested", "schema"},
        {"errors", "manifest"},
    ),
    "storage": ({"storage"}, {"errors"}),
    "encoding": ({"encoding", "plain_values"}, {"errors"}),
    "formats": ({"formats"}, {"errors", "schema"}),
    "parts": (
        {"audit", "ledger_index", "outstanding", "parts", "uniqueness"},
        {"errors", "manifest", "schema", "storage", "formats"},
    ),
    "bundle": (
        {"bundle", "selection"},
        {"errors", "manifest", "schema", "storage", "parts"},
    ),
    "convert": (
        {"cache", "convert"},
        {"errors", "manifest", "schema", "parts", "bundle"},
    ),
    "builder": (
        {"builder", "keywords", "provenance"},
        {"errors", "manifest", "bundle", "convert"},
    ),
    "reading": (
        {"reading"},
        {"errors", "manifest", "schema", "parts", "bundle", "builder"},
    ),
    "ledger": (
        {
            "ledger",
            "ledger_account",
            "ledger_drops",
            "ledger_files",
            "ledger_ids",
            "ledger_lines",
            "ledger_report",
            "ledger_runs",
            "ledger_source",
            "ledger_state",
            "ledger_waiting",
            "ledger_watch",
        },
        {"errors", "manifest", "parts", "bundle", "builder", "reading"},
    ),
    "checkpoint": (
        {"checkpoint", "checkpoint_lightning", "checkpoint_record", "checkpoint_trainer"},
        {"errors", "manifest", "bundle", "convert", "builder"},
    ),
    "staging": (
        {"prediction_columns", "predictions", "staged_bundle", "staging"},
        {
            "errors",
            "manifest",
            "schema",
            "encoding",
            "parts",
            "bundle",
            "convert",
            "builder",
            "reading",
        },
    ),
    "loading": ({"loading"}, {"errors", "manifest", "bundle", "builder", "reading"}),
}
# What people call: it may import anything, and nothing of the above imports it.
FRONT = {"", "cli", "conformance", "demo", "sample", "testing"}


def _modules() -> dict[str, Path]:
    """Dotted name below the package → file; the package itself is the empty name."""
    names = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


MODULES = _modules()


def _running_nodes(node: ast.AST, *, at_import: bool) -> Iterator[ast.AST]:
    """All nodes but those that only a type checker sees; `at_import` leaves out functions."""
    if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        children: Iterator[ast.AST] = iter(node.orelse)
    elif at_import and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return
    else:
        yield node
        children = ast.iter_child_nodes(node)
    for child in children:
        yield from _running_nodes(child, at_import=at_import)


def _imported(module: str, *, at_import: bool) -> set[str]:
    """The modules of the package that a module imports, at its top or also in functions."""
    found = set()
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    for node in _running_nodes(tree, at_import=at_import):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"a relative import in {module}"
            found |= {_target(f"{node.module}", alias.name) for alias in node.names}
    ours = {name for name in found if f"{name}.".startswith("lithi_datasets.")}
    return {name.removeprefix("lithi_datasets").removeprefix(".") for name in ours} - {module}


def _target(module: str, name: str) -> str:
    """What `from module import name` depends on: a module of the package, or `module`."""
    if (module, name) == ("lithi_datasets", "__version__"):
        return ""  # a constant, no module
    submodule = f"{module}.{name}"
    known = submodule.removeprefix("lithi_datasets.") in MODULES
    return submodule if known and submodule.startswith("lithi_datasets.") else module


IMPORTS = {module: _imported(module, at_import=False) for module in MODULES}
IMPORTS_AT_START = {module: _imported(module, at_import=True) for module in MODULES}


def _room(module: str) -> str | None:
    first = module.partition(".")[0]
    if first.partition("_")[0] in FRONT:
        return "front"
    return next((room for room, (names, _) in ROOMS.items() if first in names), None)


def test_every_module_lives_in_a_room() -> None:
    homeless = [module for module in MODULES if _room(module) is None]
    assert not homeless, "say in ROOMS which room they live in"


@pytest.mark.parametrize("room", ROOMS)
def test_imports_point_one_way_along_the_line(room: str) -> None:
    allowed = ROOMS[room][1] | {room}
    wrong = [
        f"{module} imports {target or 'the package itself'}"
        for module in MODULES
        if _room(module) == room
        for target in sorted(IMPORTS[module])
        if _room(target) not in allowed
    ]
    assert not wrong


def test_no_modules_import_each_other_in_a_circle() -> None:
    graphlib.TopologicalSorter(IMPORTS_AT_START).prepare()


def _loaded_after(code: str) -> set[str]:
    program = f"import json, sys\n{code}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout))


def test_importing_the_package_loads_neither_torch_nor_transformers() -> None:
    loaded = _loaded_after("import lithi_datasets")
    assert "lithi_datasets.builder" in loaded
    assert not loaded & {"torch", "transformers", "accelerate", "lightning", "sklearn"}


def test_the_command_line_loads_torch_only_for_the_demo() -> None:
    assert "torch" not in _loaded_after("import lithi_datasets.cli")


@pytest.mark.parametrize("module", MODULES)
def test_a_module_fits_on_a_few_screens(module: str) -> None:
    lines = MODULES[module].read_text(encoding="utf-8").count("\n")
    assert lines <= MAX_MODULE_LINES


@pytest.mark.parametrize("path", sorted(Path(__file__).parent.glob("*.py")), ids=lambda p: p.stem)
def test_so_does_a_file_of_tests(path: Path) -> None:
    assert path.read_text(encoding="utf-8").count("\n") <= MAX_MODULE_LINES


def _statement_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of its statements: a signature of one argument a line and the docstring are read as
    tables.
    """
    documented = ast.get_docstring(function) is not None
    body = function.body[1:] if documented else function.body
    assert function.end_lineno is not None
    return function.end_lineno - body[0].lineno + 1 if body else 0


@pytest.mark.parametrize("module", MODULES)
def test_a_function_fits_on_a_screen(module: str) -> None:
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    functions = [
        n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    sizes = {function.name: _statement_lines(function) for function in functions}
    assert {name: size for name, size in sizes.items() if size > MAX_FUNCTION_LINES} == {}
