"""What is published under docs/ is what the package is."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from lithi_datasets import conformance, errors, sample
from lithi_datasets.cli_conformance import manifest_schema

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"

sys.path.insert(0, str(ROOT / "tools"))
import make_docs  # noqa: E402

REMAKE = "run: python tools/make_docs.py"


def test_the_conformance_page_is_what_the_matrix_publishes() -> None:
    page = (DOCS / "conformance.md").read_text(encoding="utf-8")
    assert page == make_docs.published_page(), REMAKE


def test_the_json_schema_is_that_of_the_model() -> None:
    assert (DOCS / "manifest.schema.json").read_text(encoding="utf-8") == manifest_schema(), REMAKE


def test_a_page_with_another_outcome_is_another_page() -> None:
    cells = conformance.published_cells(old_datasets=False)
    wrong = [replace(cells[0], found="different"), *cells[1:]]
    assert make_docs.conformance_page(wrong, cells) != make_docs.conformance_page(cells, cells)


def test_the_manifest_of_the_sample_keeps_the_published_schema() -> None:
    schema = json.loads((DOCS / "manifest.schema.json").read_text(encoding="utf-8"))
    document = json.loads((Path(sample.path()) / "result-manifest.json").read_bytes())
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(document)
    document["status"] = "DONE"
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(document)


def test_the_format_page_names_every_member_error_and_limit() -> None:
    page = (DOCS / "bundle-format.md").read_text(encoding="utf-8")
    schema = json.loads(manifest_schema())
    members = {*schema["properties"]}.union(*(d["properties"] for d in schema["$defs"].values()))
    named = {*re.findall(r"`([a-z0-9_]+)`", page), *re.findall(r'`\{"([a-z_]+)":', page), "length"}
    assert members - named == set()
    raised = {
        *("ManifestMissing", "ManifestInvalid", "UnsupportedManifestVersion", "SnapshotMismatch"),
        *("BundlePartial", "FileMissing", "FileSizeMismatch", "FileDigestMismatch"),
        *("RowCountMismatch", "StatusCountMismatch", "DuplicateItemId", "SchemaMismatch"),
        *("NullInRequiredField", "PartDecodeError", "UsageError"),
    }
    assert raised <= {*errors.__all__}
    assert [name for name in sorted(raised) if f"`{name}`" not in page] == []
    assert len(re.findall(r"256 MiB|1,024 bytes|2 GiB|64 levels", page)) >= 4
