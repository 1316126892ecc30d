"""Manifests that mean harm (spec, section 1), and every mutation of a good one."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from manifest_documents import example, members, place, sealed_by_hand, value_at

from lithi_datasets.errors import (
    LithiError,
    ManifestInvalid,
    SnapshotMismatch,
    UnsupportedManifestVersion,
)
from lithi_datasets.limits import LIMITS
from lithi_datasets.manifest import Manifest

SEALED = sealed_by_hand(example(), indent=1)
GOOD = Manifest.parse(SEALED)


def with_text(old: bytes, new: bytes) -> bytes:
    assert SEALED.count(old) == 1
    return SEALED.replace(old, new)


BYTES = b'"bytes": 48213'
ATTACKS = {
    "two statuses": (with_text(b'"status": "C', b'"status": "PARTIAL", "status": "C'), "$.status"),
    "two row counts in a part": (with_text(BYTES, BYTES + b', "bytes": 1'), "$.parts[0].bytes"),
    "two equal names by escapes": (with_text(BYTES, BYTES + b', "byte\\u0073": 1'),
                                   "$.parts[0].bytes"),
    "two digests": (with_text(b'"version_id"', b'"content_sha256": "0", "version_id"'),
                    "$.snapshot.content_sha256"),
    "two unknown members": (with_text(BYTES, BYTES + b', "x": {"y": 1, "y": 1}'),
                            "$.parts[0].x.y"),
    "a size of NaN": (with_text(BYTES, b'"bytes": NaN'), "$.parts[0].bytes"),
    "a size of Infinity": (with_text(BYTES, b'"bytes": Infinity'), "$.parts[0].bytes"),
    "a size that overflows": (with_text(BYTES, b'"bytes": 1e400'), "$.parts[0].bytes"),
    "an unknown member that overflows": (with_text(BYTES, BYTES + b', "x": [-1e400]'),
                                         "$.parts[0].x[0]"),
    "a size with a fraction": (with_text(BYTES, b'"bytes": 48213.0'), "$.parts[0].bytes"),
    "a size with an exponent": (with_text(BYTES, b'"bytes": 48213e0'), "$.parts[0].bytes"),
    "a size below 0": (with_text(BYTES, b'"bytes": -1'), "$.parts[0].bytes"),
    "a size that is true": (with_text(BYTES, b'"bytes": true'), "$.parts[0].bytes"),
    "a size that is text": (with_text(BYTES, b'"bytes": "48213"'), "$.parts[0].bytes"),
    "a size of 2^53": (with_text(BYTES, b'"bytes": 9007199254740992'), "$.parts[0].bytes"),
    "a size of 2^64": (with_text(BYTES, b'"bytes": 18446744073709551616'), "$.parts[0].bytes"),
    "a size of 10,000 digits": (with_text(BYTES, b'"bytes": ' + b"9" * 10_000), "$.parts[0].bytes"),
    "an unknown integer of 2^53": (with_text(BYTES, BYTES + b', "x": -9007199254740992'),
                                   "$.parts[0].x"),
    "a surrogate in a path": (with_text(b"logs/run.txt", b"logs/\\ud800"), "$.attachments[0].path"),
    "a surrogate in an unknown name": (with_text(BYTES, BYTES + b', "\\udfff": 1'),
                                       '$.parts[0]["\\udfff"]'),
    "a raw surrogate": (with_text(b"logs/run.txt", b"logs/\xed\xa0\x80"), "$"),
    "trailing data": (SEALED + b"{}", "$"),
    "a second manifest": (SEALED + b"\n" + SEALED, "$"),
    "two byte order marks": (b"\xef\xbb\xbf" * 2 + SEALED, "$"),
    "UTF-16": (SEALED.decode().encode("utf-16"), "$"),
    "UTF-32": (SEALED.decode().encode("utf-32"), "$"),
    "nothing": (b"", "$"),
    "cut short": (SEALED[:-9], "$.attachments[0].role"),
    "65 levels": (with_text(BYTES, BYTES + b', "x": ' + b"[" * 62 + b"]" * 62),
                  "$.parts[0].x" + "[0]" * 61),
    "a million levels": (with_text(BYTES, BYTES + b', "x": ' + b"[" * 1_000_000),
                         "$.parts[0].x" + "[0]" * 61),
    "a million levels of a type": (with_text(b'"float32"', b'{"list": ' * 1_000_000),
                                   "$.schema.fields[2].type" + ".list" * 60),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_hostile_manifest_is_refused(attack: str) -> None:
    raw, path = ATTACKS[attack]
    with pytest.raises(ManifestInvalid) as caught:
        Manifest.parse(raw)
    assert caught.value.path == path
    assert len(str(caught.value)) < 1500


def test_a_manifest_over_256_mib_is_refused() -> None:
    with pytest.raises(ManifestInvalid, match="at most 268435456 bytes"):
        Manifest.parse(SEALED + b" " * (LIMITS.manifest_bytes - len(SEALED) + 1))


def test_what_is_just_allowed_is_read() -> None:
    document = example()
    deep: Any = []
    for _ in range(60):
        deep = [deep]
    document["parts"][0] |= {"x": deep, "y": [2**53 - 1, -(2**53) + 1, 1.5e308, -0.0, 1e-400]}
    document["parts"][0]["bytes"] = 2**53 - 1
    document["attachments"][0]["role"] = "😀\u2028\ufeff\uffff"
    raw = sealed_by_hand(document)
    assert (Manifest.parse(raw).parts[0].model_extra or {})["y"] == document["parts"][0]["y"]
    assert Manifest.parse(b"\xef\xbb\xbf" + raw).parts[0].bytes == 2**53 - 1


def test_as_many_errors_as_there_are_parts_cost_no_more_than_one() -> None:
    document = example()
    document["parts"] = [{"path": 1, "x": "y" * 1000}] * 20_000
    document["schema"]["fields"] = [{"name": 1}] * 20_000
    with pytest.raises(ManifestInvalid) as caught:
        Manifest.parse(json.dumps(document).encode())
    assert len(str(caught.value)) < 1500


def outcome(raw: bytes) -> Manifest | LithiError:
    try:
        return Manifest.parse(raw)
    except LithiError as error:
        return error


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_mutated_bytes_are_refused_or_mean_the_same(data: st.DataObject) -> None:
    raw = bytearray(SEALED)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        some = data.draw(st.binary(max_size=3) | st.sampled_from([b",", b'"', b"}", b"0", b"\\u"]))
        raw[at : at + data.draw(st.integers(0, 3))] = some
    result = outcome(bytes(raw))
    assert isinstance(result, (ManifestInvalid, SnapshotMismatch, UnsupportedManifestVersion)) or (
        result == GOOD and json.loads(raw.removeprefix(b"\xef\xbb\xbf")) == json.loads(SEALED)
    )


hostile_text = st.sampled_from(
    ["", "all", "../x", "A", "a/b", "string", "lithi_status", "csv", "\0"]
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | hostile_text
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
)
values = (
    scalars | st.lists(scalars, max_size=3) | st.dictionaries(hostile_text, scalars, max_size=3)
)


def mutated(data: st.DataObject) -> dict[str, Any]:
    document = json.loads(SEALED)
    for _ in range(data.draw(st.integers(1, 3))):
        steps = data.draw(st.sampled_from(members(document)))
        holder, name = place(document, steps), steps[-1]
        action = data.draw(st.sampled_from(["replace", "delete", "add", "copy"]))
        if action == "replace":
            holder[name] = data.draw(values)
        elif action == "delete":
            del holder[name]
        elif action == "add":
            holder[data.draw(hostile_text)] = data.draw(values)
        else:
            other = data.draw(st.sampled_from(members(document)))
            holder[name] = copy.deepcopy(value_at(document, other))
        if not members(document):
            break
    return document  # type: ignore[no-any-return]


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_a_mutated_document_is_refused_or_the_same(data: st.DataObject) -> None:
    document = mutated(data)
    result = outcome(json.dumps(document).encode())
    if isinstance(result, LithiError):
        assert isinstance(result, (ManifestInvalid, SnapshotMismatch, UnsupportedManifestVersion))
    else:
        assert result == GOOD
        assert document == json.loads(SEALED)


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_a_mutated_and_resealed_document_is_refused_or_holds_what_it_says(
    data: st.DataObject,
) -> None:
    document = mutated(data)
    try:
        raw = sealed_by_hand(document)
    except (KeyError, TypeError, AttributeError):
        return  # The mutation took the snapshot away, so there is no digest to make.
    result = outcome(raw)
    if isinstance(result, LithiError):
        assert isinstance(result, (ManifestInvalid, UnsupportedManifestVersion))
        assert str(result.path).startswith("$")
    else:
        dumped = json.loads(result.model_dump_json(by_alias=True, exclude_unset=True))
        assert without_nulls(dumped) == without_nulls(document)
        assert sum(part.rows for part in result.parts) == result.counts.rows


def without_nulls(value: Any) -> Any:
    """The document as it means: null is absent, and an absent optional member its default."""
    if isinstance(value, list):
        return [without_nulls(each) for each in value]
    if not isinstance(value, dict):
        return value
    defaults = {"nullable": True, "split": "train", "derived_from": [], "attachments": []}
    return {
        name: without_nulls(each)
        for name, each in value.items()
        if each is not None and each != defaults.get(name)
    }
