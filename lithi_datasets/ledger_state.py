"""What a ledger knows, apart from its dataset: what ranks send each other and states keep."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from lithi_datasets.errors import StateError

__all__ = ["STATE_VERSION", "Holding", "check_index", "check_scope"]

STATE_VERSION = 1

Keys = npt.NDArray[np.uint64]
Times = npt.NDArray[np.uint8]

_REMEDIES = {
    "snapshot": "Use ledgers and states of one bundle; a newer bundle begins with a new ledger.",
    "split": "Make the ledger of the same split.",
    "statuses": "Load the dataset with the same statuses=.",
    "subset": "Make both ledgers with the same subset=.",
    "index": "Load the same rows: the same filters and the same share of split_by_node. The state "
    "of a ledger that was joined fits a ledger of all that was joined.",
}


def check_scope(found: Mapping[str, Any], own: Mapping[str, Any], whose: str) -> None:
    """Compare what two ledgers are of.

    Args:
        found: of a state or of another ledger.
        own: of this ledger.
        whose: what `found` is of, for the message.

    Raises:
        StateError: a member differs; both values are shown.
    """
    for name, expected in own.items():
        if found.get(name) != expected or type(found.get(name)) is not type(expected):
            raise StateError(
                f"{whose} is not of the rows of this ledger: its {name} differs.",
                path=name,
                expected=repr(expected),
                found=repr(found.get(name))[:500],
                remedy=_REMEDIES[name],
            )


def check_index(found: str, own: str) -> None:
    """Compare the digests of the rows that a state and a ledger are of.

    Raises:
        StateError: they differ; both are shown.
    """
    check_scope({"index": found}, {"index": own}, "The state")


@dataclass(frozen=True)
class Holding:
    """What a ledger counted.

    Attributes:
        scope: what it is of: `snapshot`, `split`, `statuses`, `subset`.
        attempt: the seed of its index.
        rows: ids in its index.
        digest: of its index.
        seen: how often each id was seen, `uint8[rows]` in the order of the index, deflated.
        entries: the index itself, `uint64[rows]`, little-endian; None where the digest is enough.
        foreign: the first foreign ids.
        foreign_total: how often a foreign id came.
        dropped: see `ledger_drops`.
    """

    scope: dict[str, Any]
    _: KW_ONLY
    attempt: int
    rows: int
    digest: str
    seen: bytes
    entries: bytes | None = None
    foreign: tuple[str, ...] = ()
    foreign_total: int = 0
    dropped: dict[str, int] = field(default_factory=dict)

    @property
    def counts(self) -> Times:
        """How often each id was seen: `uint8[rows]`."""
        return np.frombuffer(zlib.decompress(self.seen), dtype=np.uint8)

    @property
    def keys(self) -> Keys:
        """The index: `uint64[rows]`."""
        return np.frombuffer(self.entries or b"", dtype="<u8")

    def as_state(self) -> dict[str, Any]:
        """The same as plain JSON, without the index."""
        return {
            "version": STATE_VERSION,
            "kind": "ledger",
            **self.scope,
            "attempt": self.attempt,
            "rows": self.rows,
            "index": self.digest,
            "counts": base64.b64encode(self.seen).decode(),
            "foreign": {"total": self.foreign_total, "ids": list(self.foreign)},
            "dropped": dict(self.dropped),
        }

    @classmethod
    def of_state(cls, state: object) -> Holding:
        """What `as_state` made.

        Raises:
            StateError: it is not the state of a ledger, or broken.
        """
        if _taken(state, "version", int) != STATE_VERSION or _taken(state, "kind", str) != "ledger":
            _refuse("kind", f"a ledger's, in version {STATE_VERSION}", state)
        if not isinstance(state, Mapping):  # _taken refused it already
            raise TypeError
        seen = _bytes(state, "counts")
        rows, attempt = _taken(state, "rows", int), _taken(state, "attempt", int)
        counts = zlib.decompress(seen)
        if len(counts) != rows or attempt < 0:
            _refuse("counts", f"{rows} of them", len(counts))
        foreign, dropped = _taken(state, "foreign", Mapping), _taken(state, "dropped", Mapping)
        names = _taken(foreign, "ids", list)
        if not all(isinstance(item, str) for item in names):
            _refuse("foreign", "a list of ids", names)
        return cls(
            {name: state.get(name) for name in ("snapshot", "split", "statuses", "subset")},
            attempt=attempt,
            rows=rows,
            digest=_taken(state, "index", str),
            seen=seen,
            foreign=tuple(names),
            foreign_total=_taken(foreign, "total", int),
            dropped={str(name): _taken(dropped, name, int) for name in dropped},
        )


def _bytes(state: Mapping[str, Any], name: str) -> bytes:
    text = _taken(state, name, str)
    try:
        packed = base64.b64decode(text, validate=True)
        zlib.decompress(packed)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise StateError(
            f"This is not the state of a ledger: its {name} do not decode ({error}).", path=name
        ) from error
    return packed


def _taken(state: object, name: Any, kind: Any) -> Any:
    value = state.get(name) if isinstance(state, Mapping) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        _refuse(str(name), kind.__name__, value if isinstance(state, Mapping) else state)
    return value


def _refuse(name: str, expected: str, found: object) -> None:
    raise StateError(
        f"This is not the state of a ledger: {name} is broken.",
        path=name,
        expected=expected,
        found=repr(found)[:200],
        remedy="Pass what state_dict() returned, or what json.loads made of it.",
    )
