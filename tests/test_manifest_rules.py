"""The rules that span members (spec, sections 1, 3 and 4): each with what breaks it."""

from __future__ import annotations

from typing import Any

import pytest
from manifest_documents import ID, LOG, STATUS, counts, part, result

from lithi_datasets.errors import ManifestInvalid
from lithi_datasets.manifest import Manifest, seal


def staged(*fields: dict[str, Any], **members: Any) -> dict[str, Any]:
    """A staged input of 10 rows without statuses."""
    plain = {
        "bundle_kind": "staged_input",
        "schema": {"fields": [ID, *fields]},
        "counts": counts(10, 10, 10, 0, 0, 0),
        "parts": [part(0, 10, None)],
    }
    return result(**(plain | members))


def fields(*extra: dict[str, Any], status: dict[str, Any] = STATUS) -> dict[str, Any]:
    return {"schema": {"fields": [ID, status, *extra]}}


ACTION = {"action": "RESUBMIT_OUTSTANDING", "message": "Submit the two items again."}
PARTIAL = {"status": "PARTIAL", "next_action": ACTION, "counts": counts(12, 10, 7, 2, 1, 2)}
ID_LIST = LOG | {"path": "ids.txt", "role": "outstanding_items"}
VECTOR = {"name": "v", "type": {"list": "int8"}}
CONFIDENCE = {"name": "lithi_confidence", "type": "float64"}
VERIFICATION = {"name": "lithi_verification", "type": "string"}

HOLDS = {
    "result": result(),
    "partial": result(**PARTIAL),
    "next action null": result(next_action=None),
    "staged input": staged(),
    "staged input, partial": staged(**(PARTIAL | {"counts": counts(12, 10, 10, 0, 0, 2)})),
    "staged input with status": result(bundle_kind="staged_input"),
    "staged input, statuses told": staged(parts=[part(0, 10, (10, 0, 0))]),
    "no part tells statuses": result(parts=[part(0, 10, None)]),
    "one part of two tells": result(parts=[part(0, 6, None), part(1, 4, (4, 0, 0))]),
    "an empty part": result(parts=[part(0, 10, (7, 2, 1)), part(1, 0, (0, 0, 0))]),
    "no parts": result(parts=[], counts=counts(0, 0, 0, 0, 0, 0)),
    "no parts, all outstanding": result(
        **(PARTIAL | {"parts": [], "counts": counts(5, 0, 0, 0, 0, 5)})
    ),
    "a list of outstanding ids": result(**PARTIAL, attachments=[LOG, ID_LIST]),
    "an empty list of outstanding ids when complete": result(attachments=[ID_LIST]),
    "logs": result(attachments=[LOG, LOG | {"path": "b"}, LOG | {"path": "c", "role": ""}]),
    "confidence": result(**fields(CONFIDENCE, VERIFICATION)),
    "confidence in float32": result(**fields(CONFIDENCE | {"type": "float32", "nullable": True})),
    "another lithi_ column": result(**fields({"name": "lithi_cost", "type": {"list": "int8"}})),
    "a name like a reserved one": result(**fields({"name": "Lithi_confidence", "type": "bool"})),
    "reserved names inside a struct": result(
        **fields({"name": "s", "type": {"struct": [{"name": "lithi_status", "type": "int8"}]}})
    ),
    "compressed text": result(
        parts=[
            part(0, 6, None, compression="gzip"),
            part(1, 4, None, format="csv", compression="zstd"),
        ]
    ),
    "lists beside csv in other formats": result(**fields(VECTOR)),
    "csv with a decimal": result(
        **fields({"name": "d", "type": "decimal128(10, 2)"}),
        parts=[part(0, 10, None, format="csv")],
    ),
}


@pytest.mark.parametrize("case", HOLDS)
def test_a_manifest_that_holds_together_is_read(case: str) -> None:
    manifest = Manifest.parse(seal(HOLDS[case]))
    assert manifest.counts.rows == sum(each.rows for each in manifest.parts)


BREAKS: dict[str, tuple[dict[str, Any], str, str]] = {
    "partial without next action": (
        result(**PARTIAL | {"next_action": None}),
        "$.next_action",
        "PARTIAL",
    ),
    "complete with next action": (result(next_action=ACTION), "$.next_action", "COMPLETE"),
    "partial without outstanding": (
        result(**PARTIAL | {"counts": counts(10, 10, 7, 2, 1, 0)}),
        "$.counts.outstanding",
        "above 0",
    ),
    "complete with outstanding": (
        result(counts=counts(12, 10, 7, 2, 1, 2)),
        "$.counts.outstanding",
        "COMPLETE",
    ),
    "next action without message": (
        result(**PARTIAL | {"next_action": {"action": "A"}}),
        "$.next_action.message",
        "required",
    ),
    "next action that is no token": (
        result(**PARTIAL | {"next_action": ACTION | {"action": "resubmit it"}}),
        "$.next_action.action",
        "resubmit it",
    ),
    "next action that is a text": (
        result(**PARTIAL | {"next_action": "RESUBMIT"}),
        "$.next_action",
        "RESUBMIT",
    ),
    "rows against parts": (
        result(parts=[part(0, 6, (4, 1, 1)), part(1, 5, None)]),
        "$.counts.rows",
        "11, the rows of the parts",
    ),
    "rows against statuses": (
        result(counts=counts(10, 10, 8, 2, 1, 0)),
        "$.counts.rows",
        "11, the sum",
    ),
    "items against rows": (
        result(counts=counts(11, 10, 7, 2, 1, 0)),
        "$.counts.items",
        "10, the sum",
    ),
    "rows without parts": (result(parts=[]), "$.counts.rows", "0, the rows of the parts"),
    "failed rows without a status column": (
        staged(counts=counts(10, 10, 9, 1, 0, 0)),
        "$.counts.accepted",
        "no lithi_status",
    ),
    "a part's failed rows without a status column": (
        staged(parts=[part(0, 10, (9, 1, 0))]),
        "$.parts[0].status_counts.accepted",
        "no lithi_status",
    ),
    "a part's statuses against its rows": (
        result(parts=[part(0, 6, (4, 1, 1)), part(1, 4, (3, 1, 1))]),
        "$.parts[1].status_counts",
        "the part's rows, 4",
    ),
    "a part's statuses without one": (
        result(parts=[part(0, 10, None, status_counts={"accepted": 7, "failed": 3})]),
        "$.parts[0].status_counts.abstained",
        "required",
    ),
    "all parts' statuses against the whole": (
        result(parts=[part(0, 6, (4, 1, 1)), part(1, 4, (2, 2, 0))]),
        "$.counts.accepted",
        "6, as the parts count",
    ),
    "some parts' statuses over the whole": (
        result(parts=[part(0, 6, (3, 3, 0)), part(1, 4, None)]),
        "$.counts.failed",
        "at least 3",
    ),
    "an id field that is not there": (
        result(item_id_field="id"),
        "$.item_id_field",
        "of the schema",
    ),
    "an id field inside a struct": (
        result(
            item_id_field="s.id", **fields({"name": "s", "type": {"struct": [ID | {"name": "id"}]}})
        ),
        "$.item_id_field",
        "of the schema",
    ),
    "an id field that may be null": (
        result(schema={"fields": [ID | {"nullable": True}, STATUS]}),
        "$.item_id_field",
        "nullable",
    ),
    "an id field that is null by default": (
        result(schema={"fields": [{"name": "item_id", "type": "string"}, STATUS]}),
        "$.item_id_field",
        "nullable",
    ),
    "an id field of numbers": (
        result(schema={"fields": [ID | {"type": "int64"}, STATUS]}),
        "$.item_id_field",
        "int64",
    ),
    "an id field of large strings": (
        result(schema={"fields": [ID | {"type": "large_string"}, STATUS]}),
        "$.item_id_field",
        "large_string",
    ),
    "a result without status": (result(schema={"fields": [ID]}), "$.schema.fields", "lithi_status"),
    "a nullable status": (
        result(**fields(status=STATUS | {"nullable": True})),
        "$.schema.fields[1].nullable",
        "not nullable",
    ),
    "a status of numbers": (
        result(**fields(status=STATUS | {"type": "int8"})),
        "$.schema.fields[1].type",
        "string",
    ),
    "a status of large strings": (
        result(**fields(status=STATUS | {"type": "large_string"})),
        "$.schema.fields[1].type",
        "large_string",
    ),
    "a status with classes": (
        result(**fields(status=STATUS | {"type": "int8", "class_names": ["accepted"]})),
        "$.schema.fields[1].type",
        "string",
    ),
    "a nullable status in a staged input": (
        staged(STATUS | {"nullable": True}),
        "$.schema.fields[1].nullable",
        "not nullable",
    ),
    "a required confidence": (
        result(**fields(CONFIDENCE | {"nullable": False})),
        "$.schema.fields[2].nullable",
        "nullable",
    ),
    "a confidence in float16": (
        result(**fields(CONFIDENCE | {"type": "float16"})),
        "$.schema.fields[2].type",
        "float32 or float64",
    ),
    "a confidence of integers in a staged input": (
        staged(CONFIDENCE | {"type": "int8"}),
        "$.schema.fields[1].type",
        "float32 or float64",
    ),
    "a required verification": (
        result(**fields(VERIFICATION | {"nullable": False})),
        "$.schema.fields[2].nullable",
        "nullable",
    ),
    "a verification that is a struct": (
        result(**fields(VERIFICATION | {"type": {"struct": [ID]}})),
        "$.schema.fields[2].type",
        "struct",
    ),
    "a column twice": (result(**fields(ID)), "$.schema.fields[2].name", "item_id"),
    "a column without a name": (
        result(**fields({"name": "", "type": "int8"})),
        "$.schema.fields[2].name",
        "at least 1 character",
    ),
    "no columns": (result(schema={"fields": []}), "$.schema.fields", "at least 1 item"),
    "a struct field twice": (
        result(**fields({"name": "s", "type": {"list": {"struct": [ID, ID]}}})),
        "$.schema.fields[2].type.list.struct[1].name",
        "item_id",
    ),
    "a compressed parquet": (
        result(parts=[part(0, 10, None, format="parquet", compression="zstd")]),
        "$.parts[0].compression",
        "only of jsonl and csv",
    ),
    "a compressed arrow": (
        result(parts=[part(0, 6, None), part(1, 4, None, format="arrow", compression="gzip")]),
        "$.parts[1].compression",
        "only of jsonl and csv",
    ),
    "an unknown compression": (
        result(parts=[part(0, 10, None, compression="bz2")]),
        "$.parts[0].compression",
        "bz2",
    ),
    "csv with a list": (
        result(**fields(VECTOR), parts=[part(0, 6, None), part(1, 4, None, format="csv")]),
        "$.parts[1].format",
        "the field v (list",
    ),
    "csv with a struct": (
        result(
            **fields({"name": "s", "type": {"struct": [ID]}}),
            parts=[part(0, 10, None, format="csv")],
        ),
        "$.parts[0].format",
        "the field s (struct",
    ),
    "two lists of outstanding ids": (
        result(**PARTIAL, attachments=[ID_LIST, LOG, ID_LIST | {"path": "b"}]),
        "$.attachments[2].role",
        "at most",
    ),
    "an attachment without a role": (
        result(attachments=[{key: LOG[key] for key in ("path", "bytes", "sha256")}]),
        "$.attachments[0].role",
        "required",
    ),
    "an attachment on a part's path": (
        result(attachments=[LOG, LOG | {"path": "PARTS/1"}]),
        "$.attachments[1].path",
        "case-folding",
    ),
    "a part in another's folder": (
        result(parts=[part(0, 6, None), part(1, 4, None, path="parts/0/x")]),
        "$.parts[1].path",
        "folder of another",
    ),
    "a part in the manifest's place": (
        result(parts=[part(0, 10, None, path="Result-manifest.json")]),
        "$.parts[0].path",
        "result-manifest.json",
    ),
    "an attachment outside": (
        result(attachments=[LOG | {"path": "../x"}]),
        "$.attachments[0].path",
        "..",
    ),
}


@pytest.mark.parametrize("case", BREAKS)
def test_a_manifest_that_does_not_is_refused_with_the_json_path(case: str) -> None:
    document, path, word = BREAKS[case]
    with pytest.raises(ManifestInvalid) as caught:
        seal(document)
    assert caught.value.path == path
    assert word in str(caught.value)
    assert caught.value.expected
    assert caught.value.found
