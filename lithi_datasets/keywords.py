"""What `load_dataset` may be told about a bundle, and what has no meaning for one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from lithi_datasets.errors import UsageError

__all__ = ["OPTIONS", "Source", "one_source", "refuse_keywords", "refuse_options"]

OPTIONS = ("snapshot", "allow_partial", "statuses", "columns", "credential_ref")


@dataclass(frozen=True)
class Source:
    """What the caller named; handed from the registration to the builder as it is."""

    source: Any


def one_source(data_dir: Any, data_files: Any) -> Source:
    """The one bundle that the caller names, through either keyword.

    Raises:
        UsageError: none, several, or files by split are named.
    """
    if isinstance(data_files, (list, tuple)) and len(data_files) == 1:
        (data_files,) = data_files
    if (data_dir is None) == (data_files is None):
        raise UsageError(
            "A bundle is named by data_dir= or by data_files=.",
            expected='data_dir="folder" or data_files="folder/result-manifest.json"',
            found="neither" if data_dir is None else "both",
        )
    if isinstance(data_files, (list, tuple, set, Mapping)):
        raise UsageError(
            "data_files= names one manifest; parts and splits come from it.",
            expected='data_files="folder/result-manifest.json"',
            found=f"{len(data_files)} entries in a {type(data_files).__name__}",
        )
    return Source(data_files if data_dir is None else data_dir)


def refuse_keywords(keywords: dict[str, Any]) -> None:
    """Refuse keywords of `load_dataset` that a bundle can't take.

    Raises:
        UsageError: types, secrets, or a keyword that nobody knows.
    """
    if keywords.get("features") is not None:
        raise UsageError(
            "The types of a bundle come from its manifest alone.",
            expected="no features=",
            remedy="Load it, then cast the dataset.",
        )
    if keywords.get("storage_options"):
        refuse_options("storage_options")
    if isinstance(keywords.get("token"), str):
        refuse_options("token")
    stock = {
        *("hash", "base_path", "info", "features", "token", "repo_id", "storage_options"),
        *("writer_batch_size", "config_id"),
    }
    unknown = sorted(set(keywords) - stock)
    if unknown:
        raise UsageError(
            f"Unknown keywords for a bundle: {', '.join(unknown)}.",
            expected=f"some of {', '.join(OPTIONS)}",
            found=", ".join(unknown),
        )


def refuse_options(name: str) -> NoReturn:
    """Refuse storage options: they hold secrets, and builders are pickled."""
    raise UsageError(
        f"{name}= would put secrets into what is pickled and cached.",
        expected="credential_ref= with a name that register_credential knows",
        found=f"{name}=…",
    )
