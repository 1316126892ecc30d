"""100,000 parts are read in the time of a few `json.loads` of the same file."""

from __future__ import annotations

import copy
import json
import sys
from types import FrameType

import pytest
from cpu_time import least_seconds
from manifest_documents import counts, part, result

from lithi_datasets.errors import ManifestInvalid
from lithi_datasets.manifest import Manifest, content_digest

PARTS = 100_000


def of_parts(number_of_parts: int) -> bytes:
    n = number_of_parts
    document = result(
        counts=counts(5 * n, 5 * n, 3 * n, n, n, 0),
        parts=[
            part(
                number,
                5,
                (3, 1, 1),
                path=f"parts/part-{number:05d}.parquet",
                format="parquet",
                bytes=48_213 + number,
                sha256=f"{number:064x}",
                split="train",
            )
            for number in range(n)
        ],
    )
    document["snapshot"]["content_sha256"] = content_digest(document)
    return json.dumps(document).encode()


@pytest.fixture(scope="module")
def raw() -> bytes:
    return of_parts(PARTS)


def test_a_hundred_thousand_parts_cost_a_few_json_loads(
    raw: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = least_seconds(lambda: json.loads(raw))
    whole = least_seconds(lambda: Manifest.parse(raw), times=2)
    with capsys.disabled():
        print(
            f"\n  {PARTS} parts, {len(raw) / 1e6:.0f} MB: json.loads {plain:.2f} s, "
            f"Manifest.parse {whole:.2f} s, ratio {whole / plain:.1f}"
        )
    # Alone on a machine it is 4; among other tests it was 10 once. Quadratic work is thousands.
    assert whole < 40 * plain


def calls(raw: bytes) -> int:
    """Calls of functions, Python's and C's, while a manifest is parsed."""
    count = 0

    def on_event(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    previous = sys.getprofile()
    sys.setprofile(on_event)
    try:
        Manifest.parse(raw)
    finally:
        sys.setprofile(previous)
    return count


def test_each_part_costs_the_same_few_calls_however_many_there_are() -> None:
    Manifest.parse(of_parts(10))  # what is done once
    few, more, most = (calls(of_parts(number)) for number in (1_000, 2_000, 4_000))
    each = (most - more) / 2_000
    assert each == pytest.approx((more - few) / 1_000, rel=0.02)
    assert each < 100


def test_a_fault_in_the_last_part_is_found_and_named() -> None:
    raw = of_parts(2_000)
    last = f'"bytes": {48_213 + 1_999}, '.encode()
    for fault, path in (
        (b'"bytes": -1, ', "bytes"),
        (b'"bytes": 1, "bytes": 1, ', "bytes"),
        (b'"bytes": 1, "x": [NaN], ', "x[0]"),
        (b'"bytes": 1, "x": [1 2], ', "x[0]"),
    ):
        with pytest.raises(ManifestInvalid) as caught:
            Manifest.parse(raw.replace(last, fault))
        assert caught.value.path == f"$.parts[1999].{path}"


def test_equal_manifests_of_many_parts_are_equal_and_stay_so_as_copies(raw: bytes) -> None:
    manifest = Manifest.parse(raw)
    assert len(manifest.parts) == PARTS
    assert copy.copy(manifest) == manifest
    assert manifest.splits == {"train": tuple(range(PARTS))}
