"""The limits of a manifest, each with its unit (spec, sections 1 and 5)."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LIMITS", "MAX_INTEGER", "MAX_PATH_BYTES", "MAX_VERSION_ID_CHARACTERS", "Limits"]

MAX_INTEGER = 2**53 - 1
"""The largest magnitude of an integer token; up to it each one is an exact double."""

MAX_PATH_BYTES = 1024
"""The longest bound path, in bytes of UTF-8."""

MAX_VERSION_ID_CHARACTERS = 256
"""The longest version id, in code points."""


@dataclass(frozen=True)
class Limits:
    """Bounds that are checked before the work that they bound.

    The defaults are the format's own: a reader that raises them reads what others refuse.

    Args:
        manifest_bytes: size of `result-manifest.json`, in bytes.
        nesting_levels: objects and lists inside each other; the top object is level 1.
    """

    manifest_bytes: int = 256 * 1024 * 1024
    nesting_levels: int = 64


LIMITS = Limits()
