"""The item ids of a batch, whatever loader made it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from lithi_datasets.errors import UsageError

__all__ = ["ids_of"]


def ids_of(batch: Any, name: str) -> tuple[bytes, int, Sequence[str]]:
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
    except (KeyError, TypeError, IndexError, ValueError):
        ids = _ids_of_rows(batch, name)
    items = _listed(ids)
    try:
        return "\n".join(items).encode(), len(items), ()
    except UnicodeError:
        lone = [item for item in items if not _has_utf8(item)]
        texts = [item.encode() for item in items if _has_utf8(item)]
        return b"\n".join(texts), len(texts), lone


def _has_utf8(item: str) -> bool:
    try:
        item.encode()
    except UnicodeError:  # a lone surrogate
        return False
    return True


def _ids_of_rows(batch: Any, name: str) -> Any:
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
    try:
        for method in ("to_pylist", "tolist"):
            if hasattr(ids, method):
                ids = getattr(ids, method)()
                break
    except UnicodeDecodeError as error:  # Arrow itself does not look
        _refuse_ids(error.object)
    alone = isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable)
    items = [ids] if alone else list(ids)
    for item in items:
        if not isinstance(item, str):
            _refuse_ids(item)
    return items


def _refuse_ids(item: object) -> NoReturn:
    raise UsageError(
        "Item ids are strings.",
        expected="strings under the id column",
        found=f"{type(item).__name__} {item!r}"[:200],
        remedy="Leave the id column as it comes from the dataset.",
    )
