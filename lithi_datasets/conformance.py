"""The conformance matrix: every declared type in every format arrives exactly, or is refused.

    cells = conformance.run()
    assert all(cell.ok for cell in cells)

Each cell writes a table of hard values without the package's readers (Parquet and Arrow by pyarrow
from the table, JSON lines and CSV from texts that were written by hand), opens the bundle, reads
the part through the one verified reader, and compares types and values with the table, and the
`datasets` feature with the type. `lithi_datasets.conformance_cases` and `.conformance_refusals`
hold the data.

The level is `import_compatible`: bundles of this format are read as published here. It does not
claim that anything is submitted to Compute, that a training run is started, or that a wire
protocol, an SDK or an endpoint is spoken.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import math
import platform
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

import lithi_datasets
from lithi_datasets.bundle import Bundle, open_bundle
from lithi_datasets.conformance_cases import CASES, FORMATS, SHAPES, Case, Value
from lithi_datasets.conformance_refusals import REFUSALS, Refusal
from lithi_datasets.encoding import compress
from lithi_datasets.errors import LithiError, UsageError
from lithi_datasets.testing import PartSpec, write_bundle

__all__ = [
    "DIFFERENT",
    "EXACT",
    "LEVEL",
    "NOT_CLAIMED",
    "REFUSED",
    "UNWRITTEN",
    "Cell",
    "can_hold",
    "check",
    "check_refusal",
    "feature_kind",
    "features_of_old_datasets",
    "published",
    "published_cells",
    "run",
    "same_values",
    "versions",
]

LEVEL = "import_compatible"
NOT_CLAIMED = (
    "nothing is submitted to Compute",
    "no training run is started",
    "no compatibility with a wire protocol, an SDK or an endpoint",
)
EXACT = "exact"
DIFFERENT = "different"
UNWRITTEN = "not written"
"""The installed pyarrow cannot write the table: nothing was read, so nothing was shown."""

REFUSED = "refused"
"""The shape of a cell that comes from `conformance_refusals`."""

_ID = {"name": "item_id", "type": "string", "nullable": False}
_LEAST_DATASETS = 4


@dataclass(frozen=True)
class Cell:
    """One cell of the matrix.

    Attributes:
        format: a key of `conformance_cases.FORMATS`.
        type: name of the case, or of the refusal.
        shape: one of `SHAPES`, or `refused`.
        published: `exact`, or the name of the error that is raised.
        found: the same of this run; `different` where rows arrived that are not the table's, the
            name of a foreign exception where one came, `not written` where an old pyarrow could not
            write the table.
        detail: what was different, or the message.
    """

    format: str
    type: str
    shape: str
    published: str
    found: str
    detail: str = ""

    @property
    def ok(self) -> bool:
        """Whether the cell is what is published, as far as it could be written."""
        return self.found in (self.published, UNWRITTEN)

    def as_dict(self) -> dict[str, Any]:
        """The cell as JSON types."""
        return {**asdict(self), "ok": self.ok}


def versions() -> dict[str, str]:
    """The versions that decide what a cell shows."""
    import datasets

    return {
        "lithi-datasets": lithi_datasets.__version__,
        "python": platform.python_version(),
        "datasets": datasets.__version__,
        "pyarrow": pa.__version__,
    }


def run(formats: Collection[str] | None = None) -> list[Cell]:
    """Check the matrix on the installed versions.

    Args:
        formats: some of `conformance_cases.FORMATS`; None is all.

    Returns:
        A cell for each format, case and shape, then one for each format and refusal that the
        format can hold.

    Raises:
        UsageError: there is no such format.
    """
    wanted = list(FORMATS) if formats is None else list(formats)
    unknown = [name for name in wanted if name not in FORMATS]
    if unknown:
        raise UsageError(
            "no such format in the matrix",
            expected=", ".join(FORMATS),
            found=", ".join(unknown),
        )
    cells = [check(name, case, shape) for name in wanted for case in CASES for shape in SHAPES]
    refused = [check_refusal(name, case) for name in wanted for case in REFUSALS]
    return [*cells, *(cell for cell in refused if cell is not None)]


def check(format: str, case: Case, shape: str) -> Cell:
    """Check one type in one format.

    Args:
        format: a key of `conformance_cases.FORMATS`.
        case: one of `CASES`.
        shape: one of `SHAPES`.
    """
    column = _column(case, shape, finite=FORMATS[format].format == "jsonl")
    found, detail = _outcome(lambda folder: _difference(folder, format, column), says="value")
    stated = published(format, case, shape, old_datasets=features_of_old_datasets())
    return Cell(format, case.name, shape, stated, found, detail)


def check_refusal(format: str, refusal: Refusal) -> Cell | None:
    """Check one refusal in one format; None where the format can't hold it."""
    if not can_hold(format, refusal):
        return None
    table, text = pa.table({"item_id": ["i0"]}), ""
    if FORMATS[format].format == "jsonl":
        text = f'{{"item_id": "i0", {refusal.jsonl}}}\n'
    elif refusal.csv is not None and FORMATS[format].format == "csv":
        text = f"item_id,{refusal.csv[0]}\ni0,{refusal.csv[1]}\n"
    elif refusal.binary is not None:
        columns, names = refusal.binary.columns, refusal.binary.column_names
        table = pa.table([table["item_id"], *columns], names=["item_id", *names])
    fields = [_ID, *refusal.fields]

    def read(folder: str) -> str:
        data = _stored(format, table, text)
        bundle = _bundle(folder, format, fields, data, rows=1)
        return f"{sum(batch.num_rows for batch in bundle.scan_part(0))} rows arrived"

    found, detail = _outcome(read, says=refusal.says)
    return Cell(format, refusal.name, REFUSED, refusal.error, found, detail)


def can_hold(format: str, refusal: Refusal) -> bool:
    """Whether files of a format can hold what a refusal is about."""
    forms = {"jsonl": refusal.jsonl, "csv": refusal.csv}
    held = forms.get(FORMATS[format].format, refusal.binary)
    return held is not None and format not in refusal.cannot


def features_of_old_datasets() -> bool:
    """Whether the installed `datasets` is before 4.0, which has fewer features."""
    return int(importlib.metadata.version("datasets").partition(".")[0]) < _LEAST_DATASETS


def published(format: str, case: Case, shape: str, *, old_datasets: bool) -> str:
    """What is published of a cell: `exact`, or the name of an error.

    Args:
        format: a key of `conformance_cases.FORMATS`.
        case: one of `CASES`.
        shape: one of `SHAPES`.
        old_datasets: for `datasets` before 4.0.
    """
    if FORMATS[format].format == "csv" and (case.composite or shape == "nested"):
        return "ManifestInvalid"
    if case.name == "list of 2 structs" and old_datasets:
        return "UsageError"
    return EXACT


def published_cells(*, old_datasets: bool) -> list[Cell]:
    """The matrix as it is published, without reading anything; in the order of `run`."""
    cells = []
    for format, case, shape in itertools.product(FORMATS, CASES, SHAPES):
        stated = published(format, case, shape, old_datasets=old_datasets)
        cells.append(Cell(format, case.name, shape, stated, stated))
    for format, refusal in itertools.product(FORMATS, REFUSALS):
        if can_hold(format, refusal):
            cells.append(Cell(format, refusal.name, REFUSED, refusal.error, refusal.error))
    return cells


@dataclass(frozen=True)
class _Column:
    """A column in every form: declared, as it must arrive, as it is written, as text."""

    case: Case
    shape: str
    field: dict[str, Any]
    expected: pa.Array
    written: pa.Array
    texts: tuple[str | None, ...]
    feature: str


def _column(case: Case, shape: str, *, finite: bool) -> _Column:
    values = [value for value in case.values if not finite or _is_finite(value[0])]
    held, texts = [value[0] for value in values], [_token(case, value) for value in values]
    field: dict[str, Any] = {"name": "value", "type": case.type}
    arrow, written, kind = case.arrow, case.written or case.arrow, feature_kind(case)
    if case.class_names is not None:
        field["class_names"] = list(case.class_names)
    if shape == "nested":
        held, texts = _nested_rows(held, texts, many=case.class_names is None)
        members = [{**field, "name": "one"}]
        if case.class_names is None:
            members.append({"name": "many", "type": {"list": case.type}})
        field = {"name": "value", "type": {"struct": members}}
        arrow, written = (_nested_type(one, len(members)) for one in (arrow, written))
        kind = "dict"
    field["nullable"] = shape != "required"
    rows: list[Any] = [*held, *([None] if field["nullable"] else [])]
    shown: list[str | None] = [*texts, *([None] if field["nullable"] else [])]
    return _Column(
        *(case, shape, field, pa.array(rows, arrow), pa.array(rows, written), tuple(shown), kind)
    )


def _is_finite(held: Any) -> bool:
    return isinstance(held, (list, dict, str, bytes)) or math.isfinite(held)


def _token(case: Case, value: Value) -> str:
    """The value as JSON text."""
    return json.dumps(value[1]) if case.quoted else value[1]


def _nested_rows(
    held: Sequence[Any], texts: Sequence[str], *, many: bool
) -> tuple[list[Any], list[str]]:
    if not many:
        rows: list[Any] = [{"one": one} for one in (*held, None)]
        return rows, [f'{{"one": {text}}}' for text in (*texts, "null")]
    rows = [{"one": one, "many": [one, None]} for one in held]
    shown = [f'{{"many": [{text}, null], "one": {text}}}' for text in texts]
    rows += [{"one": None, "many": [*held]}, {"one": None, "many": []}, {"one": None, "many": None}]
    shown += [f'{{"one": null, "many": [{", ".join(texts)}]}}', '{"many": []}', "{}"]
    return rows, shown


def _nested_type(arrow: pa.DataType, members: int) -> pa.DataType:
    return pa.struct([("one", arrow), ("many", pa.list_(arrow))][:members])


def feature_kind(case: Case) -> str:
    """The class of the `datasets` feature, as datasets 4 calls it."""
    if case.class_names is not None:
        return "ClassLabel"
    if isinstance(case.type, str):
        return "Value"
    return {"struct": "dict", "large_list": "LargeList", "list": "List"}[next(iter(case.type))]


def _outcome(read: Callable[[str], str], *, says: str) -> tuple[str, str]:
    """(found, detail) of a reading that returns what was different."""
    # In memory: the matrix is many small bundles, and leaves nothing on the disk.
    memory = fsspec.filesystem("memory")
    folder = f"/lithi-conformance-{uuid.uuid4().hex}"
    try:
        difference = read(f"memory:/{folder}")
    except LithiError as error:
        named = says in f"{error.problem} {error.path} {error.expected} {error.found}"
        name = type(error).__name__
        return (name if named else f"{name} that does not name {says}"), str(error)
    except _NotWritten as error:
        return UNWRITTEN, str(error)
    except Exception as error:  # noqa: BLE001 - a foreign exception is what is looked for
        return type(error).__name__, str(error)
    finally:
        if memory.exists(folder):
            memory.rm(folder, recursive=True)
    return (DIFFERENT, difference) if difference else (EXACT, "")


def _difference(folder: str, format: str, column: _Column) -> str:
    """What is different after a write and a read; empty where nothing is."""
    rows = len(column.expected)
    ids = [f"i{number}" for number in range(rows)]
    required = pa.field("value", column.written.type, nullable=column.field["nullable"])
    table = pa.table(
        [pa.array(ids), column.written],
        schema=pa.schema([pa.field("item_id", pa.string(), nullable=False), required]),
    )
    data = _stored(format, table, _text(FORMATS[format].format, ids, column))
    bundle = _bundle(folder, format, [_ID, column.field], data, rows=rows)
    read = pa.Table.from_batches(bundle.scan_part(0))
    value = read["value"].combine_chunks()
    value = value.chunk(0) if isinstance(value, pa.ChunkedArray) else value
    if value.type != column.expected.type:
        return f"type {value.type}, expected {column.expected.type}"
    if read["item_id"].to_pylist() != ids or not same_values(value, column.expected):
        return f"found {value!r}, expected {column.expected!r}"
    return _feature_difference(bundle, column)


def same_values(found: pa.Array, expected: pa.Array) -> bool:
    """Equal in every value: NaN is equal to itself, and a zero has a sign."""
    if any(kind in str(expected.type) for kind in ("float", "double")):
        return repr(found.to_pylist()) == repr(expected.to_pylist())
    return bool(found.equals(expected))


def _feature_difference(bundle: Bundle, column: _Column) -> str:
    features = bundle.features
    held = features.arrow_schema.field("value").type
    if held != column.expected.type:
        return f"the feature holds {held}, expected {column.expected.type}"
    kind = type(features["value"]).__name__
    wanted = {"List": ("List", "Sequence", "list")}.get(column.feature, (column.feature,))
    return "" if kind in wanted else f"feature {kind}, expected {column.feature}"


def _bundle(
    folder: str, format: str, fields: Sequence[Mapping[str, Any]], data: bytes, *, rows: int
) -> Bundle:
    writing = FORMATS[format]
    part = PartSpec(
        pa.table({}),
        format=writing.format,
        compression=writing.compression,
        data=data,
        rows=rows,
        status_counts=False,
    )
    # Sealed as it is: what a reader refuses in the manifest must reach the reader.
    write_bundle(folder, part, fields=fields, kind="staged_input", mutate=lambda _: None)
    return open_bundle(folder)


def _stored(format: str, table: pa.Table, text: str) -> bytes:
    writing = FORMATS[format]
    if writing.format in ("jsonl", "csv"):
        return compress(text.encode(), writing.compression)
    sink = pa.BufferOutputStream()
    if writing.format == "parquet":
        _write_parquet(table, sink)
    else:
        new = pa.ipc.new_stream if writing.stream else pa.ipc.new_file
        with new(sink, table.schema) as writer:
            writer.write_table(table)
    return bytes(sink.getvalue())


class _NotWritten(Exception):  # never leaves this module
    """The installed pyarrow has no way to write a table."""


def _write_parquet(table: pa.Table, sink: pa.NativeFile) -> None:
    try:
        pq.write_table(table, sink)
    except pa.ArrowNotImplementedError as error:  # before 20: a null among fixed-size lists
        raise _NotWritten(str(error)) from error


def _text(format: str, ids: Sequence[str], column: _Column) -> str:
    if format == "jsonl":
        return "".join(
            f'{{"item_id": "{item}", "value": {"null" if token is None else token}}}\n'
            for item, token in zip(ids, column.texts, strict=True)
        )
    if column.case.composite or column.shape == "nested":
        return "item_id,value\n" + "".join(f"{item},x\n" for item in ids)
    cells = [_cell(column.case, token) for token in column.texts]
    return "item_id,value\n" + "".join(f"{i},{c}\n" for i, c in zip(ids, cells, strict=True))


def _cell(case: Case, token: str | None) -> str:
    if token is None:
        return ""
    text = json.loads(token) if case.quoted else token
    # `""` is the empty string, an empty cell is a null; RFC 4180 says what else needs quotes.
    needs = text == "" or any(mark in text for mark in ',"\r\n')
    return '"' + text.replace('"', '""') + '"' if needs else text
