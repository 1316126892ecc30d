"""Nulls in wide fixed-size lists: a few bytes of a part that ask for gigabytes of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from binary_parts import PART, batches, fields_of, ipc_file, ipc_stream, parquet

from lithi_datasets.errors import PartDecodeError
from lithi_datasets.formats.physical import BATCH_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

WIDE = 10**6
LIST = {"list": "int64", "length": WIDE}
# No value of it fits into a petabyte.
LONGEST = {"list": {"list": "int64", "length": 2**31 - 1}, "length": 2**31 - 1}


def jsonl(table: pa.Table) -> bytes:
    """All values are null, or lists of nulls."""
    lines = (
        "null" if row is None else f"[{', '.join(['null'] * len(row))}]" for row in rows_of(table)
    )
    return "".join(f'{{"x": {line}}}\n' for line in lines).encode()


def rows_of(table: pa.Table) -> list[Any]:
    rows: list[Any] = table["x"].to_pylist()
    return rows


WRITERS: dict[str, tuple[str, Callable[[pa.Table], bytes]]] = {
    "parquet": ("parquet", parquet),
    "ipc-file": ("arrow", ipc_file),
    "ipc-stream": ("arrow", ipc_stream),
    "jsonl": ("jsonl", jsonl),
}
every_writer = pytest.mark.parametrize("writer", WRITERS)


def declared(kind: Any, *, inside: str) -> Any:
    return {
        "nothing": kind,
        "a list": {"list": kind},
        "a struct": {"struct": [{"name": "a", "type": kind}]},
    }[inside]


@every_writer
def test_rows_of_nulls_come_in_batches_of_the_usual_size(writer: str) -> None:
    format, write = WRITERS[writer]
    raw = write(pa.table({"x": pa.array([None] * 100, pa.list_(pa.int64()))}))
    fields = fields_of(x=declared(LIST, inside="nothing"))
    seen = 0
    for batch in batches(format, raw, fields):
        assert batch.nbytes <= BATCH_BYTES + 2**20
        assert batch["x"].null_count == batch.num_rows
        seen += batch.num_rows
    assert seen == 100


def test_rows_of_nulls_that_parquet_stores_as_fixed_size_lists_do_too() -> None:
    lists = pa.array([None] * 20, pa.list_(pa.int64(), WIDE))
    raw = parquet(pa.table({"x": lists}))
    assert len(raw) < 2**14
    before = pa.total_allocated_bytes()
    sizes = []
    for batch in batches("parquet", raw, fields_of(x=declared(LIST, inside="nothing"))):
        sizes.append(batch.num_rows)
        assert pa.total_allocated_bytes() - before < 2 * BATCH_BYTES
    assert sum(sizes) == 20


@every_writer
def test_lists_of_nulls_come_in_batches_of_the_usual_size(writer: str) -> None:
    format, write = WRITERS[writer]
    kind = pa.list_(pa.list_(pa.int64()))
    raw = write(pa.table({"x": pa.array([[None, None]] * 30 + [None], kind)}))
    fields = fields_of(x=declared(LIST, inside="a list"))
    rows = [batch.num_rows for batch in batches(format, raw, fields)]
    assert sum(rows) == 31
    assert max(rows) < 10


@every_writer
@pytest.mark.parametrize("inside", ["nothing", "a list", "a struct"])
def test_a_row_that_no_machine_holds_is_refused_before_it_is_tried(
    writer: str, inside: str
) -> None:
    format, write = WRITERS[writer]
    kind = pa.list_(pa.list_(pa.int64()))
    rows: dict[str, pa.Array] = {
        "nothing": pa.array([None, None], kind),
        "a list": pa.array([None, [None] * 20], pa.list_(kind)),
        "a struct": pa.array([None], pa.struct([("a", kind)])),
    }
    raw = write(pa.table({"x": rows[inside]}))
    fields = fields_of(x=declared(LONGEST, inside=inside))
    before = pa.total_allocated_bytes()
    with pytest.raises(PartDecodeError, match="does not fit into this machine's memory") as caught:
        list(batches(format, raw, fields))
    assert caught.value.path == PART
    assert pa.total_allocated_bytes() - before < 2**20


@every_writer
def test_the_longest_list_may_be_declared_where_no_row_has_one(writer: str) -> None:
    format, write = WRITERS[writer]
    raw = write(pa.table({"x": pa.array([], pa.list_(pa.list_(pa.int64())))}))
    assert list(batches(format, raw, fields_of(x=declared(LONGEST, inside="nothing")))) == []
