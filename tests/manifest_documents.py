"""Manifests that the tests start from, as plain documents, and their digest by `rfc8785` alone."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import rfc8785

ID = {"name": "item_id", "type": "string", "nullable": False}
STATUS = {"name": "lithi_status", "type": "string", "nullable": False}
SHA = "0" * 64
LOG = {"path": "log.txt", "bytes": 0, "sha256": SHA, "role": "log"}


def part(
    number: int, rows: int, statuses: tuple[int, int, int] | None, **members: Any
) -> dict[str, Any]:
    names = ("accepted", "failed", "abstained")
    told = {"status_counts": dict(zip(names, statuses, strict=True))} if statuses else {}
    path = f"parts/{number}"
    return {
        "path": path,
        "format": "jsonl",
        "bytes": 9,
        "rows": rows,
        "sha256": SHA,
        **told,
        **members,
    }


def result(**members: Any) -> dict[str, Any]:
    """A COMPLETE result of 10 rows in two parts."""
    return {
        "manifest_version": "1",
        "bundle_kind": "result",
        "status": "COMPLETE",
        "snapshot": {"version_id": "v"},
        "item_id_field": "item_id",
        "schema": {"fields": [ID, STATUS, {"name": "n", "type": "int8"}]},
        "counts": counts(10, 10, 7, 2, 1, 0),
        "parts": [part(0, 6, (4, 1, 1)), part(1, 4, (3, 1, 0))],
        **members,
    }


def counts(items: int, rows: int, *statuses_and_outstanding: int) -> dict[str, int]:
    names = ("items", "rows", "accepted", "failed", "abstained", "outstanding")
    return dict(zip(names, (items, rows, *statuses_and_outstanding), strict=True))


# Section 1 of the spec, but for the digests.
EXAMPLE = """{
  "manifest_version": "1.0",
  "bundle_kind": "result",
  "status": "COMPLETE",
  "snapshot": {"version_id": "res_2026_11_0042", "content_sha256": "DIGEST"},
  "created_at": "2026-11-02T10:00:00Z",
  "item_id_field": "item_id",
  "schema": {"fields": [
    {"name": "item_id", "type": "string", "nullable": false},
    {"name": "text", "type": "string"},
    {"name": "embedding", "type": {"list": "float32", "length": 64}},
    {"name": "label", "type": "int64", "class_names": ["ham", "spam"]},
    {"name": "lithi_status", "type": "string", "nullable": false},
    {"name": "lithi_confidence", "type": "float64"},
    {"name": "lithi_verification", "type": "string"}]},
  "counts": {"items": 1000, "rows": 1000, "accepted": 950, "failed": 30, "abstained": 20,
             "outstanding": 0},
  "parts": [
    {"path": "parts/part-00000.parquet", "format": "parquet", "bytes": 48213, "rows": 500,
     "sha256": "AAAA", "split": "train",
     "status_counts": {"accepted": 480, "failed": 12, "abstained": 8}},
    {"path": "parts/part-00001.jsonl", "format": "jsonl", "compression": "gzip", "bytes": 1,
     "rows": 500, "sha256": "AAAA", "split": "test",
     "status_counts": {"accepted": 470, "failed": 18, "abstained": 12}}],
  "attachments": [
    {"path": "logs/run.txt", "bytes": 120, "sha256": "AAAA", "role": "log"}]
}""".replace("AAAA", "a" * 64)


def example() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(EXAMPLE)
    return document


def digest_of(document: Mapping[str, Any]) -> str:
    """The digest as the spec words it, by `rfc8785` alone."""
    bound = copy.deepcopy(dict(document))
    bound["snapshot"].pop("content_sha256", None)
    return hashlib.sha256(rfc8785.dumps(bound)).hexdigest()


def sealed_by_hand(document: dict[str, Any], **layout: Any) -> bytes:
    document["snapshot"]["content_sha256"] = digest_of(document)
    return json.dumps(document, **layout).encode()


def place(document: Any, steps: tuple[str | int, ...]) -> Any:
    for step in steps[:-1]:
        document = document[step]
    return document


def value_at(document: Any, steps: tuple[str | int, ...]) -> Any:
    return place(document, steps)[steps[-1]]


def members(value: Any, at: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every member of an object, at any depth."""
    found: list[tuple[str | int, ...]] = []
    for step, each in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(value, dict):
            found.append((*at, step))
        if isinstance(each, (dict, list)):
            found += members(each, (*at, step))
    return found
