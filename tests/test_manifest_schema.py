"""What the model is beside a parser: a JSON Schema, and a module that costs nothing to import."""

from __future__ import annotations

import copy
import gc
import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from manifest_documents import example, place

from lithi_datasets import manifest as manifest_module
from lithi_datasets.errors import ManifestInvalid
from lithi_datasets.manifest import MANIFEST_NAME, Manifest, seal


def test_the_collector_is_left_as_it_was() -> None:
    raw = seal(example())
    assert gc.isenabled()
    Manifest.parse(raw)
    with pytest.raises(ManifestInvalid):
        Manifest.parse(b"")
    assert gc.isenabled()
    gc.disable()
    try:
        Manifest.parse(raw)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_module_needs_no_arrow_and_no_torch() -> None:
    program = (
        "import sys, types, pathlib\n"
        "package = types.ModuleType('lithi_datasets')\n"
        f"package.__path__ = [{str(Path(manifest_module.__file__).parent)!r}]\n"
        "sys.modules['lithi_datasets'] = package\n"
        "import lithi_datasets.manifest\n"
        "print(sorted({'pyarrow', 'datasets', 'torch', 'numpy', 'fsspec'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_json_schema_says_what_the_model_checks() -> None:
    schema = Manifest.model_json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    document = json.loads(seal(example() | {"x": 1, "next_action": None, "attachments": None}))
    assert validator.is_valid(document)
    for steps, value in [
        (("manifest_version",), "2"),
        (("status",), "DONE"),
        (("counts", "rows"), -1),
        (("counts", "rows"), 2**53),
        (("counts", "rows"), "1"),
        (("parts", 0, "sha256"), "A" * 64),
        (("parts", 0, "split"), "all"),
        (("parts", 0, "split"), "a-b"),
        (("parts", 0, "path"), "../x"),
        (("parts", 0, "format"), "xml"),
        (("snapshot", "version_id"), ""),
        (("schema", "fields"), []),
        (("schema", "fields", 1, "type"), "int128"),
        (("schema", "fields", 2, "type", "length"), 0),
    ]:
        wrong = copy.deepcopy(document)
        place(wrong, steps)[steps[-1]] = value
        assert not validator.is_valid(wrong), steps
    for name, definition in schema["$defs"].items():
        assert definition["description"], name
        assert all(
            "description" in each or "$ref" in each for each in definition["properties"].values()
        )
    assert set(schema["properties"]) >= {"schema", "parts", "counts", "snapshot"}
    assert MANIFEST_NAME == "result-manifest.json"
