"""A loader whose batches a ledger counts as they come."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Protocol

from lithi_datasets.errors import UsageError

__all__ = ["Watched", "refuse_worker"]


class _Observer(Protocol):
    def observe(self, batch: Any) -> None: ...

    def account_dropped(self, loader: Any) -> None: ...


class Watched:
    """A loader whose batches a ledger counts; made by `Ledger.watch`.

    It can be iterated as often as the loader, has its length, and hands on its attributes.
    """

    def __init__(self, ledger: _Observer, loader: Any) -> None:
        self._ledger, self._loader = ledger, loader

    def __getattr__(self, name: str) -> Any:
        if name in ("_ledger", "_loader") or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        ledger, last = self._ledger, _length(self._loader)
        settled = False
        for number, batch in enumerate(self._loader, 1):
            ledger.observe(batch)
            if number == last:
                # A loop that counts its steps never asks for the end.
                ledger.account_dropped(self._loader)
                settled = True
            yield batch
        if not settled:
            ledger.account_dropped(self._loader)


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None


def refuse_worker() -> None:
    """Refuse to count in a DataLoader worker.

    Raises:
        UsageError: this is one.
    """
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is not None and torch_data.get_worker_info() is not None:
        raise UsageError(
            "A ledger in a DataLoader worker counts for nobody: its counts end with the worker.",
            remedy="Observe batches in the process that iterates over the loader.",
        )
