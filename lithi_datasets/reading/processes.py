"""What accelerate, if it is in use, says about the processes that train together."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["accelerate_place", "accelerate_processes"]


def _state() -> dict[str, Any]:
    # Only looked at where the program imported it: a loader needs no accelerate. The shared state
    # is read as it is, for making a PartialState would start what isn't running.
    shared = getattr(sys.modules.get("accelerate.state"), "PartialState", None)
    state: dict[str, Any] = getattr(shared, "_shared_state", {})
    return state


def accelerate_processes() -> int:
    """How many processes accelerate runs; 1 where it runs none."""
    return int(_state().get("num_processes", 1))


def accelerate_place() -> int:
    """The index of this process in them."""
    return int(_state().get("process_index", 0))
