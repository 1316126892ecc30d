"""Single members with rules of their own: splits, timestamps, version ids, digests, lineage."""

from __future__ import annotations

import pytest
from manifest_documents import LOG, SHA, part, result

from lithi_datasets.errors import ManifestInvalid
from lithi_datasets.manifest import Manifest, seal


@pytest.mark.parametrize("split", ["train", "a", "A_1", "a.b.c", "0", "_", "all.x", "ALL", "xall"])
def test_split_names_of_the_format(split: str) -> None:
    assert (
        Manifest.parse(seal(result(parts=[part(0, 10, None, split=split)]))).parts[0].split == split
    )


@pytest.mark.parametrize(
    "split",
    [
        "all",
        "",
        ".",
        "a.",
        ".a",
        "a..b",
        "a-b",
        "a b",
        "a\n",
        "\na",
        "é",
        "a/b",
        "a[0]",
        1,
        True,
        ["a"],
    ],
    ids=repr,
)
def test_split_names_that_are_refused(split: object) -> None:
    with pytest.raises(ManifestInvalid) as caught:
        seal(result(parts=[part(0, 10, None, split=split)]))
    assert caught.value.path == "$.parts[0].split"


MOMENTS = [
    "2026-11-02T10:00:00Z",
    "2026-11-02t10:00:00z",
    "2026-11-02T10:00:00.123456789012Z",
    "2026-11-02T10:00:00+05:30",
    "2026-11-02T10:00:00-00:00",
    "2026-11-02T23:59:59+23:59",
    "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59-23:59",
    "2024-02-29T00:00:00Z",
    "2000-02-29T00:00:00Z",
    "2016-12-31T23:59:60Z",
    "2016-12-31T23:59:60.5Z",
    "2017-01-01T08:59:60+09:00",
    "1990-12-31T15:59:60-08:00",
]
NO_MOMENTS = [
    *["", "now", "2026-11-02", "2026-11-02T10:00:00", "2026-11-02 10:00:00Z", "20261102T100000Z"],
    *["2026-11-02T10:00Z", "2026-11-02T10Z", "2026-11-02T10:00:00 Z", "2026-11-02T10:00:00Z\n"],
    *["2026-11-02T10:00:00+0530", "2026-11-02T10:00:00+05", "2026-11-02T10:00:00.Z"],
    *["2026-11-02T10:00:00,5Z", "2026-11-2T10:00:00Z", "26-11-02T10:00:00Z"],
    *["2026-13-02T10:00:00Z", "2026-00-02T10:00:00Z", "2026-11-31T10:00:00Z"],
    *["2026-11-00T10:00:00Z", "2026-02-29T10:00:00Z", "1900-02-29T10:00:00Z"],
    *["2026-11-02T24:00:00Z", "2026-11-02T10:60:00Z", "2026-11-02T10:00:61Z"],
    *["2026-11-02T10:00:60Z", "2016-12-31T22:59:60Z", "2016-12-30T23:59:60Z"],
    *["2016-12-31T23:59:60+01:00", "9999-12-31T23:59:60-01:00", "2026-11-02T10:00:00+24:00"],
    *["2026-11-02T10:00:00+05:60", "0000-01-01T00:00:00Z", "+2026-11-02T10:00:00Z"],
    *["2026-11-02T10:00:00UTC", "２026-11-02T10:00:00Z", "2026-W45-1T10:00:00Z"],
]


@pytest.mark.parametrize("moment", MOMENTS)
def test_created_at_is_kept_as_it_is_written(moment: str) -> None:
    assert Manifest.parse(seal(result(created_at=moment))).created_at == moment


@pytest.mark.parametrize("moment", [*NO_MOMENTS, 1762077600, True, ["2026-11-02T10:00:00Z"]])
def test_created_at_that_is_no_real_moment_is_refused(moment: object) -> None:
    with pytest.raises(ManifestInvalid) as caught:
        seal(result(created_at=moment))
    assert caught.value.path == "$.created_at"


@pytest.mark.parametrize("version_id", ["v", " ", "é😀", "v" * 256, "😀" * 256, "a\u00a0b\u2028"])
def test_version_ids_of_the_format(version_id: str) -> None:
    manifest = Manifest.parse(seal(result(snapshot={"version_id": version_id})))
    assert manifest.snapshot.version_id == version_id


@pytest.mark.parametrize(
    "version_id", ["", "\0", "a\nb", "a\n", "\x7f", "\x85", "\x9f", "v" * 257, 1]
)
def test_version_ids_that_are_refused(version_id: object) -> None:
    other = {"version_id": version_id, "content_sha256": SHA}
    for members, path in (
        ({"snapshot": {"version_id": version_id}}, "$.snapshot"),
        ({"supersedes": other}, "$.supersedes"),
        ({"derived_from": [other | {"version_id": "v"}, other]}, "$.derived_from[1]"),
    ):
        with pytest.raises(ManifestInvalid) as caught:
            seal(result(**members))
        assert caught.value.path == f"{path}.version_id"


@pytest.mark.parametrize(
    "digest", ["", "0" * 63, "0" * 65, "A" * 64, "g" * 64, "0" * 64 + "\n", 0, None]
)
def test_digests_that_are_refused(digest: object) -> None:
    for members, path in (
        (
            {"supersedes": {"version_id": "v", "content_sha256": digest}},
            "$.supersedes.content_sha256",
        ),
        ({"attachments": [LOG | {"sha256": digest}]}, "$.attachments[0].sha256"),
        ({"parts": [part(0, 10, None, sha256=digest)]}, "$.parts[0].sha256"),
    ):
        with pytest.raises(ManifestInvalid) as caught:
            seal(result(**members))
        assert caught.value.path == path


def test_lineage_is_kept_in_order() -> None:
    older = [{"version_id": name, "content_sha256": SHA} for name in "ba"]
    manifest = Manifest.parse(seal(result(supersedes=older[0], derived_from=older)))
    assert manifest.supersedes is not None
    assert manifest.supersedes.as_dict() == older[0]
    assert [each.version_id for each in manifest.derived_from] == ["b", "a"]
    assert Manifest.parse(seal(result(derived_from=[]))).derived_from == ()
