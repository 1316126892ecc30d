"""Values as another writer would write them, with the standard library alone.

`values(type)` gives pairs (written, held): what stands in a JSON document, and what `pa.array`
takes for the same value. In CSV a string stands as it is, and everything else as `as_cell` says.
"""

from __future__ import annotations

import base64
import io
from datetime import date, timedelta
from decimal import Context, Decimal
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from lithi_datasets.formats import ReadRequest, reader_for
from lithi_datasets.schema import declared_schema
from lithi_datasets.types import Field

JsonType: TypeAlias = "str | dict[str, Any]"
Pair: TypeAlias = tuple[Any, Any]

DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
DAY = 86_400
FIRST_DAY, LAST_DAY = -719_162, 2_932_896  # 0001-01-01 and 9999-12-31, in days since 1970

PLAIN_TYPES = (
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *("bool", "float16", "float32", "float64", "string", "large_string", "binary", "large_binary"),
    *("date32", "date64", "time32[s]", "time32[ms]", "time64[us]", "time64[ns]"),
    *(f"duration[{unit}]" for unit in DIGITS),
    *(f"timestamp[{unit}]" for unit in DIGITS),
    *("timestamp[s, tz=UTC]", "timestamp[ns, tz=Asia/Kathmandu]", "timestamp[us, tz=+05:30]"),
    *("decimal128(5, 2)", "decimal128(38, 0)", "decimal128(38, 38)", "decimal256(76, 30)"),
)

DEEP: JsonType = {
    "struct": [
        {"name": "day", "type": "date32"},
        {"name": "rows", "type": {"large_list": {"struct": [{"name": "z", "type": "float32"}]}}},
        {"name": "halves", "type": {"list": "float16", "length": 2}},
        {"name": "spans", "type": {"list": "duration[ms]"}},
    ]
}
"""A struct with lists of every kind in it."""


class Source:
    """Bytes in memory, as a reader gets them."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    @property
    def size(self) -> int:
        return len(self.data)

    def arrow(self) -> pa.NativeFile:
        return pa.BufferReader(self.data)

    def stream(self) -> BinaryIO:
        return io.BytesIO(self.data)


def request(types: dict[str, JsonType], **options: Any) -> ReadRequest:
    """A request for fields of these types; the part is called `parts/p`."""
    fields = tuple(Field.model_validate({"name": n, "type": t}) for n, t in types.items())
    return ReadRequest(fields=fields, declared=declared_schema(fields), path="parts/p", **options)


def batches(
    format: str, data: bytes, types: dict[str, JsonType], **options: Any
) -> list[pa.RecordBatch]:
    """What the reader of a format gives, each batch valid and of the declared schema."""
    asked = request(types, **options)
    read = list(reader_for(format)(Source(data), asked))
    for batch in read:
        batch.validate(full=True)
        assert batch.schema == asked.declared
        assert 0 < batch.num_rows <= asked.batch_rows
    return read


def table(format: str, data: bytes, types: dict[str, JsonType], **options: Any) -> pa.Table:
    """The same as one table."""
    read = batches(format, data, types, **options)
    return pa.Table.from_batches(read, request(types).declared)


def held(types: dict[str, JsonType], rows: list[dict[str, Any]]) -> pa.Table:
    """Rows of held values as a table of the declared types; a missing key is a null."""
    schema = request(types).declared
    return pa.table([pa.array([r.get(f.name) for r in rows], f.type) for f in schema], schema)


def as_cell(written: Any) -> str:
    """A JSON value of a primitive type as the text of a CSV cell."""
    if isinstance(written, bool):
        return "true" if written else "false"
    return written if isinstance(written, str) else repr(written)


def values(type: JsonType) -> st.SearchStrategy[Pair]:
    """Pairs (written, held) of a type, nulls only inside."""
    if isinstance(type, dict):
        return _nested(type)
    if "int" in type:
        bits = int(type.removeprefix("u").removeprefix("int"))
        ends = (
            (0, 2**bits - 1) if type.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        )
        return _same(st.integers(*ends) | st.sampled_from(ends))
    if type.startswith("float"):
        width: Any = int(type.removeprefix("float"))
        floats = st.floats(width=width, allow_nan=False, allow_infinity=False)
        # Before pyarrow 20, an array of halves takes numpy's alone.
        return floats.map(lambda value: (value, np.float16(value) if width == 16 else value))
    if type.endswith("string"):
        return _same(st.text() | st.sampled_from(["", "NA", "null", "00123", '"', "a,b", "\r\n"]))
    if type.endswith("binary"):
        return st.binary().map(lambda value: (base64.b64encode(value).decode(), value))
    if type == "bool":
        return _same(st.booleans())
    if type.startswith("decimal"):
        precision, scale = map(int, type.partition("(")[2].rstrip(")").split(","))
        return st.integers(-(10**precision) + 1, 10**precision - 1).map(
            lambda n: _decimal(n, scale)
        )
    return _temporal(type)


def nullable(type: JsonType) -> st.SearchStrategy[Pair]:
    """The same, with nulls."""
    return st.just((None, None)) | values(type)


def _same(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Pair]:
    return strategy.map(lambda value: (value, value))


def _nested(type: dict[str, Any]) -> st.SearchStrategy[Pair]:
    if "struct" in type:
        names = [field["name"] for field in type["struct"]]
        members = st.tuples(*(nullable(field["type"]) for field in type["struct"]))
        return members.map(lambda pairs: (_named(names, pairs, 0), _named(names, pairs, 1)))
    size = type.get("length")
    items = nullable(type["large_list"] if "large_list" in type else type["list"])
    lists = st.lists(items, min_size=size or 0, max_size=size or 3)
    return lists.map(lambda pairs: ([pair[0] for pair in pairs], [pair[1] for pair in pairs]))


def _named(names: list[str], pairs: tuple[Pair, ...], side: int) -> dict[str, Any]:
    return {name: pair[side] for name, pair in zip(names, pairs, strict=True)}


def _decimal(unscaled: int, scale: int) -> Pair:
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    point = len(digits) - scale
    text = "-" * (unscaled < 0) + digits[:point] + ("." + digits[point:] if scale else "")
    return text, Decimal(unscaled).scaleb(-scale, Context(prec=80))


def _temporal(type: str) -> st.SearchStrategy[Pair]:
    kind, _, rest = type.partition("[")
    unit = rest.partition(",")[0].rstrip("]")
    per_second = 10 ** DIGITS.get(unit, 0)
    if kind == "duration":
        return _same(st.integers(-(2**63), 2**63 - 1))
    if kind.startswith("date"):
        per_day = DAY * 1000 if kind == "date64" else 1
        days = st.integers(FIRST_DAY, LAST_DAY)
        return days.map(lambda day: (_day(day), day * per_day))
    if kind in ("time32", "time64"):
        ticks = st.integers(0, DAY * per_second - 1)
        return ticks.map(lambda tick: (_clock(tick, unit), tick))
    first, last = FIRST_DAY * DAY * per_second, (LAST_DAY + 1) * DAY * per_second - 1
    margin = DAY * per_second  # so that no offset leads out of the years 1 to 9999
    ticks = st.integers(max(first + margin, -(2**63)), min(last - margin, 2**63 - 1))
    if "tz=" not in rest:
        return ticks.map(lambda tick: (_moment(tick, unit), tick))
    minutes = st.integers(-23 * 60 - 59, 23 * 60 + 59)
    return st.builds(lambda tick, off: (_moment(tick, unit, off), tick), ticks, minutes)


def _day(days: int) -> str:
    return (date(1970, 1, 1) + timedelta(days=days)).isoformat()


def _clock(ticks: int, unit: str) -> str:
    seconds, rest = divmod(ticks, 10 ** DIGITS[unit])
    hours, minutes = divmod(seconds // 60, 60)
    fraction = f".{rest:0{DIGITS[unit]}d}" if rest else ""
    return f"{hours:02d}:{minutes:02d}:{seconds % 60:02d}{fraction}"


def _moment(ticks: int, unit: str, offset: int | None = None) -> str:
    local = ticks + (offset or 0) * 60 * 10 ** DIGITS[unit]
    days, rest = divmod(local, DAY * 10 ** DIGITS[unit])
    written = f"{_day(days)}T{_clock(rest, unit)}"
    if offset is None:
        return written
    hours, minutes = divmod(abs(offset), 60)
    return (
        f"{written}{'-' if offset < 0 else '+'}{hours:02d}:{minutes:02d}"
        if offset
        else written + "Z"
    )
