"""What a caller may pin a bundle with."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from lithi_datasets.errors import UsageError
from lithi_datasets.manifest import Snapshot

PIN = {"version_id": "v", "content_sha256": "0" * 64}


def test_a_snapshot_is_coerced_from_its_two_members() -> None:
    snapshot = Snapshot.coerce(PIN)
    assert snapshot.as_dict() == PIN
    assert Snapshot.coerce(snapshot) is snapshot
    assert Snapshot.coerce(MappingProxyType(PIN)) == snapshot
    assert len({snapshot, Snapshot.coerce(PIN)}) == 1
    assert snapshot != Snapshot.coerce(PIN | {"version_id": "w"})
    assert snapshot != PIN


@pytest.mark.parametrize(
    "value",
    [
        None,
        "v",
        b"v",
        1,
        ["v", "0" * 64],
        {},
        {"version_id": "v"},
        {"content_sha256": "0" * 64},
        PIN | {"x": 1},
        PIN | {"version_id": ""},
        PIN | {"version_id": "v\n"},
        PIN | {"version_id": "\x80"},
        PIN | {"version_id": "v" * 257},
        PIN | {"version_id": "\ud800"},
        PIN | {"version_id": None},
        PIN | {"version_id": 1},
        PIN | {"version_id": b"v"},
        PIN | {"content_sha256": "0" * 63},
        PIN | {"content_sha256": "0" * 64 + "\n"},
        PIN | {"content_sha256": "A" * 64},
        PIN | {"content_sha256": int("1" * 64)},
        {1: "v", "content_sha256": "0" * 64},
    ],
    ids=lambda value: repr(value)[:60],
)
def test_anything_else_is_no_snapshot(value: Any) -> None:
    with pytest.raises(UsageError, match="no snapshot"):
        Snapshot.coerce(value)
