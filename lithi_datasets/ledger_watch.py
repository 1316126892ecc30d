"""The ids of a batch, whatever loader made it, and a loader whose batches a ledger counts."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn, Protocol

from lithi_datasets.errors import UsageError

__all__ = ["Watched", "ids_of", "refuse_garbled", "refuse_worker"]


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


def ids_of(batch: Any, name: str) -> tuple[bytes, int, list[str]]:
    """The ids of a batch.

    Args:
        batch: has them under `name`, as a list, an array or one string; or is a list of rows that
            have.
        name: of the id column.

    Returns:
        Those that have UTF-8, joined by line feeds; how many they are; the others: no bundle holds
        them.

    Raises:
        UsageError: there are none, or they are no strings.
    """
    try:
        ids = batch[name]
        if type(ids) is list:
            return "\n".join(ids).encode(), len(ids), []
    except UnicodeError:
        pass
    except (KeyError, TypeError, IndexError, ValueError):
        ids = _ids_of_rows(batch, name)
    texts, lone = [], []
    for item in _listed(ids):
        try:
            texts.append(item.encode())
        except UnicodeError:  # noqa: PERF203 - only ids that are no UTF-8 come here
            lone.append(item)
    return b"\n".join(texts), len(texts), lone


def _ids_of_rows(batch: Any, name: str) -> Any:
    if isinstance(batch, Mapping) and name in batch:
        return batch[name]  # they are no strings
    if isinstance(batch, (list, tuple)):
        try:
            return [row[name] for row in batch]
        except (KeyError, TypeError, IndexError):
            pass
    found = type(batch).__name__
    if isinstance(batch, Mapping):
        found += f" of {', '.join(map(str, batch))}"
    raise UsageError(
        "The batch does not carry the item ids.",
        expected=f"a batch with {name!r}",
        found=found,
        remedy="Keep the id column in the batches: a collate function can hand it on as a list, "
        "and transformers.Trainer needs remove_unused_columns=False.",
    )


def _listed(ids: Any) -> list[str]:
    for method in ("to_pylist", "tolist"):
        if hasattr(ids, method):
            ids = getattr(ids, method)()
            break
    alone = isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable)
    items = [ids] if alone else list(ids)
    for item in items:
        if not isinstance(item, str):
            _refuse_ids(item)
    return items


def refuse_garbled(texts: Iterable[bytes], sizes: Iterable[int]) -> None:
    """Refuse ids that hold a line feed, which no id of a bundle does.

    Args:
        texts: of batches, as `ids_of` gives them.
        sizes: how many ids each has.

    Raises:
        UsageError: some of them do.
    """
    for text, size in zip(texts, sizes, strict=True):
        if text.count(b"\n") != size - 1:
            raise UsageError(
                "A batch holds ids with a line feed; no id of a bundle has one.",
                expected=f"{size} ids",
                found=repr(text.decode()[:200]),
                remedy="Leave the id column as it comes from the dataset.",
            )


def _refuse_ids(item: object) -> NoReturn:
    raise UsageError(
        "Item ids are strings.",
        expected="strings under the id column",
        found=f"{type(item).__name__} {item!r}"[:200],
        remedy="Leave the id column as it comes from the dataset.",
    )


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
