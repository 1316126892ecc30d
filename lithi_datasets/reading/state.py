"""The state of a loader: plain JSON, and refused with both values where it does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lithi_datasets.errors import SnapshotMismatch, StateError
from lithi_datasets.provenance import replaces

__all__ = ["STATE_VERSION", "check_state", "taken"]

STATE_VERSION = 1

_REMEDIES = {
    "snapshot": "Load the bundle of the state, or start this one from its beginning.",
    "view": "Load the same splits, statuses and columns, with the same maps and filters.",
    "rows": "Load the same splits and statuses, with the same filters.",
    "seed": "Make the loader with the seed of the state.",
    "shuffle": "Make the loader with the shuffle= of the state.",
}


def taken(
    state: object, name: str, kind: type, *, least: int | None = None, most: int | None = None
) -> Any:
    """A member of a state.

    Raises:
        StateError: it is absent, of another kind, below `least` or above `most`.
    """
    value: Any = state.get(name) if isinstance(state, Mapping) else None
    fits = isinstance(value, kind) and not (kind is int and isinstance(value, bool))
    if fits and least is not None:
        fits = value >= least and (most is None or value <= most)
    if not fits:
        within = "" if least is None else f" of at least {least}"
        raise StateError(
            f"This is not the state of a loader: {name} is broken.",
            path=name,
            expected=kind.__name__ + (within if most is None else f"{within} and at most {most}"),
            found=repr(value)[:200] if isinstance(state, Mapping) else type(state).__name__,
            remedy="Pass what state_dict() returned, or what json.loads made of it.",
        )
    return value


def check_state(
    state: object, own: Mapping[str, Any], *, supersedes: Mapping[str, str] | None = None
) -> None:
    """Compare what identifies the rows of a state with the loader's own.

    Args:
        state: what the caller gives.
        own: member → value of this loader, in the order of the checks.
        supersedes: the snapshot of the older bundle that the loader's bundle replaces.

    Raises:
        SnapshotMismatch: the state is of another bundle; both snapshots are shown.
        StateError: another member differs; both values are shown side by side.
    """
    taken(state, "version", int)
    for name, expected in own.items():
        found = state.get(name) if isinstance(state, Mapping) else None
        if found != expected or type(found) is not type(expected):
            error, problem = (
                StateError,
                f"The state was saved on another loader: its {name} differs.",
            )
            if name == "snapshot":
                error = SnapshotMismatch
            if name == "snapshot" and isinstance(found, Mapping) and replaces(supersedes, found):
                problem = (
                    f"The state was saved on the bundle {found.get('version_id')}, which a newer "
                    f"manifest replaces: that of {expected['version_id']}."
                )
            raise error(
                problem,
                path=name,
                expected=repr(expected),
                found=repr(found)[:500],
                remedy=_REMEDIES.get(name, f"Make the loader with the {name} of the state."),
            )
