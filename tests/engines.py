"""Parts in Parquet and Arrow by Polars, DuckDB and fastparquet, from the cases of the matrix.

No byte of them comes from pyarrow, and the manifest beside them is sealed with the standard library
and JCS.
"""

from __future__ import annotations

import hashlib
import io
import json
import warnings
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import fastparquet
import numpy as np
import pandas as pd
import polars as pl
import rfc8785

from lithi_datasets.conformance_cases import SHAPES, Case

PATH = "parts/part-00000.bin"


@dataclass(frozen=True)
class Told:
    """What an engine is told of a column.

    Attributes:
        type: in the engine's own words.
        counts: the type of the counts that it makes moments from (Polars), or an expression around
            one (DuckDB).
        unit: from the count in the declared unit to the count that the engine stores.
        keep: the values that the engine's type can hold.
        also: values to write besides, where that leaves none at the ends.
        shapes: of `SHAPES`.
    """

    type: Any
    counts: Any = None
    _: KW_ONLY
    unit: Callable[[int], int] | None = None
    keep: Callable[[Any], bool] = lambda _: True
    also: tuple[Any, ...] = ()
    shapes: tuple[str, ...] = SHAPES


# --- the rows -------------------------------------------------------------------------------------


def rows_of(case: Case, told: Told) -> dict[str, list[Any]]:
    """Shape → rows of the case's values, all of one length."""
    values = [value for value, _ in case.values if told.keep(value)] + [*told.also]
    values = [float(value) if isinstance(value, np.float16) else value for value in values]
    nested: list[Any] = [{"one": value, "many": [value, None]} for value in values]
    nested += [{"one": None, "many": many} for many in (values, [], None)]
    if case.class_names is not None:  # names belong to a field, and elements of a list have none
        nested = [{"one": row["one"]} for row in nested]
    rows = {
        "required": (values * 5)[: len(values) + 4],
        "nullable": [*values, None, None, None, None],
        "nested": [*nested, None],
    }
    return {shape: rows[shape] for shape in told.shapes}


def fields_of(case: Case, told: Told) -> list[dict[str, Any]]:
    """The declared fields, one for each shape."""
    one: dict[str, Any] = {"type": case.type}
    if case.class_names is not None:
        one["class_names"] = [*case.class_names]
    members = [{"name": "one", **one}]
    if case.class_names is None:
        members.append({"name": "many", "type": {"list": case.type}})
    fields = {
        "required": {"name": "required", **one, "nullable": False},
        "nullable": {"name": "nullable", **one},
        "nested": {"name": "nested", "type": {"struct": members}},
    }
    item_id = {"name": "item_id", "type": "string", "nullable": False}
    return [item_id, *(fields[shape] for shape in told.shapes)]


def ids_of(rows: dict[str, list[Any]]) -> list[str]:
    return [f"i{number}" for number in range(len(rows["required"]))]


def in_unit(value: Any, unit: Callable[[int], int] | None) -> Any:
    """The same rows with each count in the unit of the engine."""
    if value is None or unit is None:
        return value
    if isinstance(value, list):
        return [in_unit(each, unit) for each in value]
    if isinstance(value, dict):
        return {name: in_unit(each, unit) for name, each in value.items()}
    return unit(value)


# --- the engines ----------------------------------------------------------------------------------


def by_polars(case: Case, told: Told, rows: dict[str, list[Any]], write: str, level: Any) -> bytes:
    series = [pl.Series("item_id", ids_of(rows), pl.String)]
    for shape, values in rows.items():
        kinds = [told.counts or told.type, told.type]
        if shape == "nested":
            many = case.class_names is None
            kinds = [
                pl.Struct({"one": kind, "many": pl.List(kind)} if many else {"one": kind})
                for kind in kinds
            ]
        made = pl.Series(shape, in_unit(values, told.unit), kinds[0])
        series.append(made.cast(kinds[1]))
    sink, frame = io.BytesIO(), pl.DataFrame(series)
    if write == "parquet":
        frame.write_parquet(sink)
    elif write == "arrow file":
        frame.write_ipc(sink, compat_level=level)
    else:
        frame.write_ipc_stream(sink, compat_level=level)
    return sink.getvalue()


def duck_literal(value: Any, told: Told) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, dict):
        members = (f"'{name}': {duck_literal(each, told)}" for name, each in value.items())
        return f"{{{', '.join(members)}}}"
    if isinstance(value, list):
        return f"[{', '.join(duck_literal(each, told) for each in value)}]"
    if isinstance(value, bytes):
        return "'" + "".join(f"\\x{byte:02X}" for byte in value) + "'::BLOB"
    if told.counts is not None:
        return f"CAST({told.counts.format(value)} AS {told.type})"
    text = f"{value:f}" if isinstance(value, Decimal) else str(value)
    return "'" + text.replace("'", "''") + "'"


def by_duckdb(case: Case, told: Told, rows: dict[str, list[Any]], folder: Path) -> bytes:
    many = f", many {told.type}[]" if case.class_names is None else ""
    kinds = [f"STRUCT(one {told.type}{many})" if s == "nested" else told.type for s in rows]
    lines = []
    for item_id, *row in zip(ids_of(rows), *rows.values(), strict=True):
        cells = [duck_literal(in_unit(cell, told.unit), told) for cell in row]
        typed = (f"CAST({c} AS {kind})" for c, kind in zip(cells, kinds, strict=True))
        lines.append(f"('{item_id}', {', '.join(typed)})")
    names = ", ".join(["item_id", *rows])
    table = f"SELECT * FROM (VALUES {', '.join(lines)}) AS t({names})"
    path = folder / "duck.parquet"
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'America/Lima'")
        connection.execute(f"COPY ({table}) TO '{path}' (FORMAT parquet)")
    return path.read_bytes()


def by_fastparquet(told: Told, rows: dict[str, list[Any]], folder: Path) -> bytes:
    frame = pd.DataFrame({"item_id": ids_of(rows)})
    encoding = {"item_id": "utf8"}
    for shape, values in rows.items():
        if told.type in ("utf8", "bytes"):
            frame[shape] = pd.Series(values, dtype=object)
            encoding[shape] = told.type
        elif told.type.startswith("datetime64"):
            counts = np.array([-(2**63) if v is None else v for v in values], np.int64)
            unit = told.type[len("datetime64[") :].rstrip("]").split(", ")
            moments = pd.Series(counts.view(f"datetime64[{unit[0]}]"))
            frame[shape] = moments.dt.tz_localize("UTC") if len(unit) == 2 else moments
        else:
            frame[shape] = pd.Series(values, dtype=told.type)
    path = folder / "fast.parquet"
    with warnings.catch_warnings():
        # How fastparquet uses pandas is not the subject.
        warnings.simplefilter("ignore")
        fastparquet.write(str(path), frame, object_encoding=encoding, write_index=False)
    return path.read_bytes()


def written(format: str, engine: str, case: Case, told: Told, folder: Path) -> bytes:
    rows = rows_of(case, told)
    if engine == "duckdb":
        return by_duckdb(case, told, rows, folder)
    if engine == "fastparquet":
        return by_fastparquet(told, rows, folder)
    level = pl.CompatLevel.newest() if engine == "polars" else pl.CompatLevel.oldest()
    return by_polars(case, told, rows, format, level)


def sealed(folder: Path, format: str, data: bytes, fields: list[dict[str, Any]], rows: int) -> Path:
    """A bundle of one part, its manifest written and sealed by the standard library and JCS."""
    counts = {"items": rows, "rows": rows, "accepted": rows}
    part = {"path": PATH, "format": format, "bytes": len(data), "rows": rows}
    part["sha256"] = hashlib.sha256(data).hexdigest()
    manifest: dict[str, Any] = {
        "manifest_version": "1.0",
        "bundle_kind": "staged_input",
        "status": "COMPLETE",
        "snapshot": {"version_id": "engines_1"},
        "item_id_field": "item_id",
        "schema": {"fields": fields},
        "counts": {**counts, "failed": 0, "abstained": 0, "outstanding": 0},
        "parts": [part],
    }
    digest = hashlib.sha256(rfc8785.dumps(manifest)).hexdigest()
    manifest["snapshot"] = {"version_id": "engines_1", "content_sha256": digest}
    (folder / PATH).parent.mkdir(parents=True)
    (folder / PATH).write_bytes(data)
    (folder / "result-manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return folder
