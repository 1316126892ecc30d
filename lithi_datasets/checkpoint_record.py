"""What is written beside a checkpoint, and how it is compared; see `lithi_datasets.checkpoint`."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from lithi_datasets.bundle import Bundle
from lithi_datasets.cache import sync_folder, write_synced
from lithi_datasets.errors import SnapshotMismatch, StateError, StorageError, UsageError
from lithi_datasets.provenance import Provenance, provenance_of, replaces

__all__ = [
    "RECORD_NAME",
    "check_record",
    "check_snapshot",
    "known_of",
    "record_snapshot",
    "scope_of",
    "snapshot_record",
]

RECORD_NAME = "lithi-snapshot.json"
RECORD_VERSION = 1

_SURROGATE = re.compile("[\ud800-\udfff]")
_JSON = "Give extra= strings, finite numbers, booleans, None, lists and dicts."

_DIFFERS = {
    "split": "the split differs",
    "statuses": "their statuses differ",
    "rows": "their rows differ",
    "view": "the view of them differs",
}
_REMEDIES = {
    "split": "Load the split that the checkpoint was trained on.",
    "statuses": "Load with the statuses= of the checkpoint.",
    "rows": "Load the same splits and statuses, with the same filters.",
    "view": "Load the same splits, statuses and columns, with the same format, maps and filters.",
}


def snapshot_record(
    ds: Any,
    *,
    loader: Any = None,
    ledger: Any = None,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What `record_snapshot` writes, as plain JSON; see there for the arguments and errors."""
    known = known_of(ds)
    record = {
        "version": RECORD_VERSION,
        "snapshot": known.snapshot.as_dict(),
        "supersedes": known.supersedes,
        "item_id_field": known.item_id_field,
        "counts": dict(known.counts),
        **scope_of(ds, known),
        "packages": _packages(),
    }
    for name, given in (("loader", loader), ("ledger", ledger)):
        if given is not None:
            record[name] = _state_of(name, given, record["snapshot"])
    if extra is not None:
        record["extra"] = _plain_extra(extra)
    _as_json(record)
    return record


def record_snapshot(
    folder: str | os.PathLike[str],
    ds: Any,
    *,
    loader: Any = None,
    ledger: Any = None,
    extra: Mapping[str, Any] | None = None,
) -> Path:
    """Write `lithi-snapshot.json` into the folder of a checkpoint: atomically, over an older one.

    It holds the snapshot, the item id field and the counts of the bundle; split, statuses, number
    of rows and identity of the view that were read; the versions of the packages. Of the share of
    one rank neither rows nor view are kept, so that every rank, and any number of them, may go on.

    Args:
        folder: of the checkpoint, local; made where it isn't there.
        ds: the dataset, or dictionary of splits, that is trained on; or its opened bundle, of which
            the snapshot alone is kept.
        loader: a loader of `torch_loader`, or its state; kept as `"loader"`.
        ledger: a `Ledger`, or its state; kept as `"ledger"`.
        extra: what else is to be kept, JSON; kept as `"extra"`.

    Returns:
        The path of the file.

    Raises:
        UsageError: the dataset is not of a bundle, the loader is not of it, or a value is not JSON.
        StorageError: the file can't be written; an older one is as it was.
    """
    record = snapshot_record(ds, loader=loader, ledger=ledger, extra=extra)
    path = _path_in(folder)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{RECORD_NAME}.", dir=path.parent)
        os.close(descriptor)
        temporary = Path(name)
        write_synced(temporary, _as_json(record))
        temporary.chmod(_usual_mode())  # mkstemp's would keep other users of the run out
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise StorageError(
            f"The snapshot can't be written beside the checkpoint: {error}", path=str(path)
        ) from error
    return path


def check_snapshot(folder: str | os.PathLike[str], ds: Any) -> dict[str, Any]:
    """Refuse a checkpoint that was not trained on this dataset.

    Args:
        folder: of the checkpoint.
        ds: the dataset, or dictionary of splits, to train on with it; or an opened bundle, of which
            the snapshot alone is compared.

    Returns:
        What the file says; `"loader"` is what `load_state_dict` continues from, if it was given.

    Raises:
        SnapshotMismatch: it was trained on another bundle; both snapshots are shown, and whether
            one of the two bundles supersedes the other.
        StateError: there is no record or it is broken; or another split, other statuses, another
            number of rows, or another view was read; both values are shown.
        UsageError: the dataset is not of a bundle.
    """
    path = _path_in(folder)
    try:
        record = json.loads(path.read_bytes(), object_pairs_hook=_each_once)
    except FileNotFoundError as error:
        raise StateError(
            "The checkpoint does not say which bundle it was trained on.",
            path=str(path),
            expected=f"a file {RECORD_NAME}",
            found="none",
            remedy="Name the folder that record_snapshot wrote into, or a checkpoint with one.",
        ) from error
    except OSError as error:
        raise StorageError(
            f"The snapshot beside the checkpoint can't be read: {error}", path=str(path)
        ) from error
    except (ValueError, RecursionError) as error:
        _refuse_broken(str(path), "JSON", str(error), error)
    return check_record(record, ds, path=str(path))


def _path_in(folder: object) -> Path:
    text = os.fspath(folder) if isinstance(folder, (str, os.PathLike)) else None
    if not isinstance(text, str) or "\0" in text or "://" in text:
        raise UsageError(
            "The folder of a checkpoint is a local one.",
            expected="a path of this machine",
            found=repr(folder),
        )
    return Path(text) / RECORD_NAME


def _each_once(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) < len(members):
        raise ValueError("a name stands twice in an object")
    return found


def check_record(record: object, ds: Any, *, path: str) -> dict[str, Any]:
    """The same for a record that is held elsewhere, such as in a checkpoint of Lightning.

    Args:
        record: what `snapshot_record` made.
        ds: as in `check_snapshot`.
        path: where the record stands, for messages.

    Raises:
        SnapshotMismatch: as `check_snapshot`.
        StateError: as `check_snapshot`.
        UsageError: as `check_snapshot`.
    """
    if not isinstance(record, Mapping):
        _refuse_broken(path, "an object", repr(record)[:200])
    if record.get("version") != RECORD_VERSION:
        _refuse_broken(path, f"version {RECORD_VERSION}", repr(record.get("version"))[:200])
    recorded = record.get("snapshot")
    members = recorded.values() if isinstance(recorded, Mapping) else ()
    if len(members) != 2 or not all(isinstance(value, str) for value in members):
        _refuse_broken(path, "a snapshot", repr(recorded)[:200])
    known = known_of(ds)
    own = known.snapshot.as_dict()
    if recorded != own:
        _refuse_snapshot(record, known, path)
    for name, found in {} if isinstance(ds, Bundle) else scope_of(ds, known).items():
        expected = record.get(name)
        # A record of a bundle, or of a share, doesn't say which rows were read.
        if expected is None and (name != "statuses" or record.get("split") is None):
            continue
        if found is None and name in ("rows", "view"):
            continue
        if found != expected:
            raise StateError(
                f"The checkpoint was trained on other rows: {_DIFFERS[name]}.",
                path=path,
                expected=json.dumps(expected),
                found=json.dumps(found),
                remedy=_REMEDIES[name],
            )
    return dict(record)


def _refuse_snapshot(record: Mapping[str, Any], known: Provenance, path: str) -> NoReturn:
    recorded, own = record["snapshot"], known.snapshot
    name = recorded.get("version_id")
    problem, remedy = "The checkpoint was trained on another bundle.", None
    if replaces(known.supersedes, recorded):
        problem = (
            f"The checkpoint was trained on the bundle {name}, which a newer manifest replaces: "
            f"that of {own.version_id}."
        )
        remedy = "Go on with the older bundle, or start anew with the newer one on purpose."
    elif replaces(record.get("supersedes"), own.as_dict()):
        problem = (
            f"The checkpoint was trained on the bundle {name}, which replaces this older one: "
            f"{own.version_id}."
        )
        remedy = "Load the newer bundle."
    raise SnapshotMismatch(
        problem,
        path=path,
        expected=json.dumps(dict(recorded)),
        found=json.dumps(own.as_dict()),
        remedy=remedy,
    )


def _refuse_broken(
    path: str, expected: str, found: str, cause: Exception | None = None
) -> NoReturn:
    raise StateError(
        "The snapshot beside the checkpoint is broken.",
        path=path,
        expected=expected,
        found=found,
        remedy="Take another checkpoint: this one does not say what it was trained on.",
    ) from cause


def known_of(ds: Any) -> Provenance:
    """What a dataset, a dictionary of splits or an opened bundle knows.

    Raises:
        UsageError: the dataset is not of a bundle.
    """
    return Provenance.of_bundle(ds, statuses=None) if isinstance(ds, Bundle) else provenance_of(ds)


def scope_of(ds: Any, known: Provenance) -> dict[str, Any]:
    """Which rows of the bundle a dataset is; None where that is not to be compared."""
    if isinstance(ds, Bundle):
        return {"split": None, "statuses": None, "rows": None, "view": None}
    splits = dict(ds) if isinstance(ds, Mapping) else {str(ds.split): ds}
    whole = known.node is None
    return {
        "split": sorted(splits) if isinstance(ds, Mapping) else str(ds.split),
        "statuses": None if known.statuses is None else list(known.statuses),
        "rows": _rows(splits) if whole else None,
        "view": {name: _view(split) for name, split in splits.items()} if whole else None,
    }


def _rows(splits: Mapping[str, Any]) -> int | None:
    sized = [len(split) for split in splits.values() if hasattr(split, "__len__")]
    return sum(sized) if len(sized) == len(splits) else None


def _view(ds: Any) -> str:
    import datasets

    if isinstance(ds, datasets.IterableDataset):
        from lithi_datasets.builder import stream_view

        return f"stream:{stream_view(ds).identity}"
    return f"map:{ds._fingerprint}"


def _packages() -> dict[str, str]:
    modules = {name: sys.modules.get(name) for name in ("datasets", "pyarrow", "torch")}
    modules = {"lithi-datasets": sys.modules.get(__package__), **modules}
    return {name: str(getattr(m, "__version__", "unknown")) for name, m in modules.items() if m}


def _state_of(name: str, given: Any, snapshot: Mapping[str, str]) -> dict[str, Any]:
    state = given if isinstance(given, Mapping) else getattr(given, "state_dict", dict)()
    if not isinstance(state, Mapping) or state.get("snapshot") != snapshot:
        found = state.get("snapshot") if isinstance(state, Mapping) else state
        raise UsageError(
            f"The {name} is not of this dataset's bundle.",
            expected=f"a {name} of {snapshot['version_id']}, or its state",
            found=repr(found)[:200] if found else type(given).__name__,
            remedy=f"Pass the {name} that was made of ds.",
        )
    return dict(state)


def _plain_extra(extra: object) -> dict[str, Any]:
    """A mapping that JSON gives back as it is: a key that is no string would come back as one."""
    inside: list[object] = [extra]
    for value in inside:
        if isinstance(value, Mapping):
            inside += [*value, *value.values()]
        elif isinstance(value, (list, tuple)):
            inside += value
    mappings = [value for value in inside if isinstance(value, Mapping)]
    texts = [value for value in inside if isinstance(value, str)]
    names = all(isinstance(name, str) for mapping in mappings for name in mapping)
    if not isinstance(extra, Mapping) or not names or any(map(_SURROGATE.search, texts)):
        raise UsageError(
            "extra= is not what JSON can keep.",
            expected="a dictionary of JSON with strings as keys, in Unicode",
            found=repr(extra)[:200],
            remedy=_JSON,
        )
    return dict(extra)


def _as_json(record: Mapping[str, Any]) -> bytes:
    try:
        return f"{json.dumps(record, indent=2, allow_nan=False)}\n".encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"What is to be kept beside the checkpoint is not JSON: {error}",
            remedy=_JSON,
        ) from error


def _usual_mode() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return 0o666 & ~mask
