"""Bytes and manifests that mean harm, 10,000 of them: `make soak`.

Whatever comes in, the outcome is one of the package's errors, or the rows that were written. Where
the rows are others, the mutation must have made another, valid bundle: its digest then differs.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lithi_datasets as lithi
from lithi_datasets.encoding import compress
from lithi_datasets.errors import LithiError
from lithi_datasets.manifest import Manifest, content_digest, seal
from lithi_datasets.testing import PartSpec, read_manifest_document, write_bundle

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

EXAMPLES = int(os.environ.get("LITHI_SOAK_EXAMPLES", "10000"))
SOAK = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)

WRITINGS: tuple[tuple[str, str | None, dict[str, Any]], ...] = (
    ("parquet", None, {}),
    ("parquet", None, {"compression": "zstd"}),
    ("arrow", None, {}),
    ("arrow", None, {"stream": True, "compression": "lz4"}),
    ("jsonl", None, {}),
    ("jsonl", "gzip", {}),
    ("jsonl", "zstd", {}),
    ("csv", None, {}),
    ("csv", "gzip", {}),
    ("csv", "zstd", {}),
)


def table(*, nested: bool) -> pa.Table:
    columns = {
        "item_id": pa.array(["a", "b", "\U0001f600"]),
        "n": pa.array([2**53 + 1, None, -1], pa.int64()),
        "x": pa.array([0.5, None, 1e300], pa.float64()),
        "when": pa.array([-1, 0, None], pa.timestamp("us", "UTC")),
        "raw": pa.array([b"", b"\xff", None], pa.binary()),
        "lithi_status": pa.array(["accepted", "failed", "abstained"]),
    }
    if nested:
        columns["many"] = pa.array([[1, None], [], None], pa.list_(pa.uint8()))
        columns["pair"] = pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": ""}])
    return pa.table(columns)


@cache
def written(index: int) -> tuple[bytes, dict[str, Any], pa.Table]:
    """The stored bytes of the one part, the manifest, and the rows as they are read."""
    format, compression, options = WRITINGS[index]
    rows = table(nested=format != "csv")
    with tempfile.TemporaryDirectory() as folder:
        spec = PartSpec(rows, format=format, compression=compression, options=options, path="p")
        write_bundle(folder, spec)
        read = pa.Table.from_batches(lithi.open_bundle(folder).read_part(0))
        return (Path(folder) / "p").read_bytes(), read_manifest_document(folder), read


@st.composite
def mutated(draw: st.DrawFn, raw: bytes) -> bytes:
    """Bytes near `raw`: flipped, cut, doubled, filled in; or any bytes at all."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=200))
    data = bytearray(raw)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        size = draw(st.integers(1, 16))
        kind = draw(st.sampled_from(["flip", "set", "cut", "double", "insert", "end"]))
        if kind == "flip" and data:
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "set":
            data[at : at + size] = draw(st.sampled_from([b"\x00", b"\xff", b"\x7f", b'"'])) * size
        elif kind == "cut":
            del data[at : at + size]
        elif kind == "double":
            data[at:at] = data[at : at + size]
        elif kind == "insert":
            data[at:at] = draw(st.binary(min_size=1, max_size=8))
        else:
            del data[at:]
    return bytes(data)


def rows_of(folder: Path, document: dict[str, Any], data: bytes) -> pa.Table | None:
    """The rows of a bundle that binds these bytes; None where it is refused by name."""
    bound = copy.deepcopy(document)
    bound["parts"][0] |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / "p").write_bytes(data)
    (folder / "result-manifest.json").write_bytes(seal(bound))
    try:
        bundle = lithi.open_bundle(folder)
        read = pa.Table.from_batches(bundle.read_part(0))
    except LithiError:
        return None
    read.validate(full=True)
    return read


@SOAK
@given(st.data(), st.integers(0, len(WRITINGS) - 1))
def test_bound_bytes_of_any_kind_are_read_or_refused_by_name(
    tmp_path: Path, data: st.DataObject, index: int
) -> None:
    raw, document, rows = written(index)
    changed = data.draw(mutated(raw))
    read = rows_of(tmp_path, document, changed)
    if changed == raw:
        assert read is not None
        assert read.equals(rows)
    elif read is not None:
        # The bytes are bound and decode: what they say is valid, in the declared types.
        assert read.schema.types == rows.schema.types
        assert read.num_rows == rows.num_rows


@SOAK
@given(st.data(), st.sampled_from([5, 6, 8, 9]))
def test_text_below_a_compression_is_read_or_refused_by_name(
    tmp_path: Path, data: st.DataObject, index: int
) -> None:
    format, method, _ = WRITINGS[index]
    plain = next(
        n for n, (other, none, _) in enumerate(WRITINGS) if (other, none) == (format, None)
    )
    raw, _, rows = written(plain)
    changed = data.draw(mutated(raw))
    read = rows_of(tmp_path, written(index)[1], compress(changed, method))
    # The same text, whatever is around it, has the same outcome.
    again = rows_of(tmp_path, written(plain)[1], changed)
    if read is None or again is None:
        assert read is again
        return
    assert read.schema.types == rows.schema.types
    assert repr(read.to_pylist()) == repr(again.to_pylist())


@SOAK
@given(st.data(), st.integers(0, len(WRITINGS) - 1))
def test_bytes_that_are_not_bound_are_never_read(
    tmp_path: Path, data: st.DataObject, index: int
) -> None:
    raw, document, rows = written(index)
    changed = data.draw(mutated(raw))
    (tmp_path / "p").write_bytes(changed)
    (tmp_path / "result-manifest.json").write_bytes(json.dumps(document).encode())
    bundle = lithi.open_bundle(tmp_path)
    if changed == raw:
        assert pa.Table.from_batches(bundle.read_part(0)).equals(rows)
        return
    with pytest.raises((lithi.FileSizeMismatch, lithi.FileDigestMismatch)):
        list(bundle.read_part(0))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["..", "a/../b", "CON", "p", "P", "parquet", "timestamp[s]", "\ud800", "id"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=4) | st.sampled_from(["list", "name"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)


def places(value: Any, at: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """The path to every member and element."""
    steps = value.items() if isinstance(value, dict) else enumerate(value)
    found: list[tuple[str | int, ...]] = []
    for step, inner in steps:
        found.append((*at, step))
        if isinstance(inner, (dict, list)):
            found += places(inner, (*at, step))
    return found


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """A valid manifest with up to three members changed, taken out, or put in."""
    document = copy.deepcopy(written(draw(st.integers(0, len(WRITINGS) - 1)))[1])
    for _ in range(draw(st.integers(1, 3))):
        *steps, last = draw(st.sampled_from(places(document) or [("x",)]))
        inner: Any = document
        for step in steps:
            inner = inner[step]
        kind = draw(st.sampled_from(["value", "out", "in"]))
        if kind == "out":
            del inner[last]
        elif kind == "in" and isinstance(inner, dict):
            inner[draw(st.text(max_size=6))] = draw(JSON)
        else:
            inner[last] = draw(JSON)
    return document


@SOAK
@given(documents(), st.booleans())
def test_a_mutated_manifest_is_refused_by_name_or_is_what_was_sealed(
    document: dict[str, Any], resealed: bool
) -> None:
    if resealed and isinstance(document.get("snapshot"), dict):
        try:
            document["snapshot"]["content_sha256"] = content_digest(document)
        except LithiError:
            return  # it has no canonical form
    raw = json.dumps(document).encode()
    try:
        manifest = Manifest.parse(raw)
    except LithiError:
        return
    assert manifest.snapshot.content_sha256 == content_digest(document)
    kept = manifest.model_dump(mode="json", by_alias=True)
    assert kept.keys() >= document.keys()
    # Of an optional member null means absent, so there it is the default that is kept.
    told = [{k: v for k, v in part.items() if v is not None} for part in document["parts"]]
    assert kept["parts"] == [kept["parts"][n] | part for n, part in enumerate(told)]


@SOAK
@given(st.data())
def test_mutated_bytes_of_a_manifest_are_refused_by_name_or_say_the_same(
    data: st.DataObject,
) -> None:
    document = written(0)[1]
    raw = seal(document)
    changed = data.draw(mutated(raw))
    try:
        manifest = Manifest.parse(changed)
    except LithiError:
        return
    assert manifest == Manifest.parse(raw)
