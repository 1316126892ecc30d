"""CPU time that can be compared, in a process that holds the objects of many tests."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

__all__ = ["least_seconds"]


def least_seconds(function: Callable[[], object], *, times: int = 3) -> float:
    """The least CPU time of some calls.

    Without garbage collection: a full one goes through all that other tests left, which takes a
    second, and comes when it will.
    """
    best = float("inf")
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for _ in range(times):
            start = time.process_time()
            kept = function()
            best = min(best, time.process_time() - start)
            del kept
    finally:
        if was_on:
            gc.enable()
    return best
