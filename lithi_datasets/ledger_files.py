"""Reconciling what was written down: states of ledgers, or a table of predictions.

Neither needs the dataset that was read: the expected ids are read from the bundle's parts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet

from lithi_datasets.bundle import Bundle
from lithi_datasets.errors import LithiError, StateError, UsageError
from lithi_datasets.ledger import Ledger
from lithi_datasets.ledger_report import Expected, Reconciliation
from lithi_datasets.ledger_source import PartRows
from lithi_datasets.ledger_state import Holding, check_scope
from lithi_datasets.provenance import Provenance
from lithi_datasets.reading.plan import assign_parts, check_rank, index_range
from lithi_datasets.selection import normal_statuses

__all__ = ["TABLE_FORMATS", "reconcile_states", "reconcile_table"]

_ROWS = 2**16


def reconcile_states(bundle: Bundle, files: Sequence[str]) -> Reconciliation:
    """Reconcile the states of the ledgers of all ranks with a bundle.

    Args:
        bundle: the opened bundle.
        files: JSON files: what `Ledger.state_dict` gave on each rank, or on one of a joined ledger.

    Raises:
        ReconcileError: they do not add up.
        StateError: one is broken, of another bundle, or of rows that only its program can load: a
            slice, or a dataset that was filtered.
        UsageError: a file can't be read.
        BundleError: a part broke a rule.
    """
    ledgers: dict[str, Ledger] = {}
    for file in files:
        _take_state(bundle, file, ledgers)
    if not ledgers:
        raise UsageError("There is no state to reconcile.", expected="at least one file")
    first, *others = ledgers.values()
    return first.merge(*others).reconcile()


def _take_state(bundle: Bundle, file: str, ledgers: dict[str, Ledger]) -> None:
    """Load a state, or join it to the one of the same share."""
    state = _state(file)
    try:
        Holding.of_state(state)  # it is one at all
        check_scope(state, {"snapshot": bundle.snapshot.as_dict()}, "The state")
        share = json.dumps([state.get(name) for name in ("split", "statuses", "node", "source")])
        if share in ledgers:
            ledgers[share].merge_states(state)
        else:
            ledgers[share] = _ledger_for(bundle, state)
            ledgers[share].load_state_dict(state)
    except (StateError, UsageError) as error:
        raise type(error)(
            f"The ledger in {file} can't be reconciled: {error.problem}",
            path=error.path,
            expected=error.expected,
            found=error.found,
            remedy=error.remedy,
        ) from error


def reconcile_table(
    bundle: Bundle,
    files: Sequence[str],
    format: str,
    *,
    split: str | None = None,
    statuses: Sequence[str] | None = None,
    id_column: str | None = None,
) -> Reconciliation:
    """Reconcile a table of predictions with a bundle: each row's id has to be there once.

    Args:
        bundle: the opened bundle.
        files: local files that make up the table.
        format: one of `TABLE_FORMATS`.
        split: the split that was predicted, or several joined by `+`; None for all.
        statuses: the statuses that were predicted; None for all.
        id_column: name of the column with the ids; None for the bundle's.

    Raises:
        ReconcileError: they do not add up.
        UsageError: a file can't be read, or has no such column of strings.
        BundleError: a part broke a rule.
    """
    name = id_column or bundle.item_id_field
    ledger = _ledger(bundle, split or "+".join(bundle.splits), normal_statuses(statuses))
    for file in files:
        _take_table(ledger, bundle.item_id_field, _ids(file, format, name), file)
    return ledger.reconcile()


def _take_table(ledger: Ledger, field: str, column: Iterator[Any], file: str) -> None:
    try:
        for ids in column:
            ledger.observe({field: ids})
        ledger._counted()  # while it is known which file they are of
    except UsageError as error:
        if error.path is not None:
            raise
        raise _unreadable(file, error, str(error.expected)) from error


def _state(file: str) -> Any:
    try:
        return json.loads(Path(file).read_bytes())
    except OSError as error:
        raise _unreadable(file, error) from error
    except (ValueError, RecursionError) as error:
        raise StateError(
            f"This is not the state of a ledger: it is no JSON ({error}).", path=file
        ) from error


def _ledger_for(bundle: Bundle, state: Any) -> Ledger:
    """A ledger of the rows that a state is of."""
    split, statuses, node = state.get("split"), state.get("statuses"), state.get("node")
    for name, kinds in (("split", str), ("statuses", (list, type(None)))):
        if not isinstance(state.get(name), kinds):
            raise StateError(
                "The state does not say which rows it is of.",
                path=name,
                expected="a split, and a list of statuses or null",
                found=repr(state.get(name))[:200],
            )
    if node is None:
        return _ledger(bundle, split, normal_statuses(statuses))
    try:
        rank, world_size = check_rank(node["rank"], node["world_size"])
    except (LithiError, KeyError, TypeError) as error:
        raise StateError(
            "The state's share is broken.",
            path="node",
            expected='{"rank", "world_size"}',
            found=repr(node),
        ) from error
    return _ledger(
        bundle,
        split,
        normal_statuses(statuses),
        share=(rank, world_size, state.get("source") == "PartRows"),
    )


def _ledger(
    bundle: Bundle,
    split: str,
    statuses: tuple[str, ...] | None,
    *,
    share: tuple[int, int, bool] | None = None,
) -> Ledger:
    names = split.split("+")
    if len(set(names)) < len(names) or not set(names) <= set(bundle.splits):
        raise UsageError(
            "These rows can't be told from the bundle alone.",
            path=str(bundle.location),
            expected=f"a split, {', '.join(bundle.splits)}, or several joined by +",
            found=repr(split),
            remedy="Reconcile a slice where its dataset is loaded, with Ledger(ds).",
        )
    known = Provenance.of_bundle(bundle, statuses=statuses)
    parts = tuple(index for name in names for index in bundle.splits[name])
    whole = PartRows(bundle, parts, statuses=statuses)
    if share is None:
        return Ledger.of_rows(known, split, whole)
    held = Expected.of(known, split, None).rows
    if held is None:
        held = sum(len(batch.ids) for batch in whole.batches())
    return Ledger.of_rows(known, split, _share(whole, held, *share), held=held)


def _share(whole: PartRows, count: int, rank: int, world_size: int, parts: bool) -> PartRows:
    """What `split_by_node` gives a rank: whole parts of a stream, else a range of rows."""
    if not parts:
        return replace(whole, window=index_range(count, rank, world_size))
    sizes = [whole.bundle.parts[index].rows for index in whole.parts]
    owned = assign_parts(sizes, world_size)[rank][0]
    return replace(whole, parts=tuple(whole.parts[own] for own in owned))


def _ids(file: str, format: str, name: str) -> Iterator[Any]:
    """The ids of a table, some thousands at a time."""
    if format not in _READERS:
        raise UsageError(
            "There is no such format of tables.",
            expected=", ".join(TABLE_FORMATS),
            found=repr(format),
        )
    try:
        yield from _READERS[format](file, name)
    except LithiError:
        raise
    except (OSError, ValueError, KeyError, pa.ArrowException, RecursionError) as error:
        raise _unreadable(file, error, f"{format} with a column {name!r}") from error


def _unreadable(file: str, error: Exception, expected: str | None = None) -> UsageError:
    return UsageError(
        f"The file can't be read: {getattr(error, 'problem', error)}",
        path=file,
        expected=expected,
        remedy="Name a local file of this format, with the ids as they are in the bundle.",
    )


def _parquet(file: str, name: str) -> Iterator[Any]:
    with pa.OSFile(file) as source, pa.parquet.ParquetFile(source) as table:
        if name not in table.schema_arrow.names:
            raise KeyError(f"its columns are {', '.join(table.schema_arrow.names)}")
        for batch in table.iter_batches(_ROWS, columns=[name], use_threads=False):
            yield batch.column(0)


def _arrow(file: str, name: str) -> Iterator[Any]:
    with pa.memory_map(file) as source:
        if source.read(6) == b"ARROW1":
            table = pa.ipc.open_file(source)
            batches = map(table.get_batch, range(table.num_record_batches))
        else:
            source.seek(0)
            batches = pa.ipc.open_stream(source)
        for batch in batches:
            ids = batch.column(name)
            ids.validate(full=True)  # nothing looks at its offsets before they are used
            yield ids


def _csv(file: str, name: str) -> Iterator[Any]:
    text = pa.csv.ConvertOptions(
        include_columns=[name], column_types={name: pa.string()}, strings_can_be_null=False
    )
    quoted = pa.csv.ParseOptions(newlines_in_values=True)
    with pa.csv.open_csv(file, convert_options=text, parse_options=quoted) as table:
        for batch in table:
            yield batch.column(0)


def _jsonl(file: str, name: str) -> Iterator[Any]:
    with Path(file).open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            row = json.loads(line)
            if not isinstance(row, dict) or name not in row:
                raise KeyError(f"line {number} has no {name!r}")
            yield [row[name]]


_READERS: dict[str, Callable[[str, str], Iterator[Any]]] = {
    "parquet": _parquet,
    "arrow": _arrow,
    "csv": _csv,
    "jsonl": _jsonl,
}

TABLE_FORMATS = tuple(_READERS)
"""Formats of tables that can be reconciled."""
