"""What a loop yields becomes Arrow columns exactly, or is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, time, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest
import torch
from conftest import MakeTable

import lithi_datasets as lithi
from lithi_datasets.testing import write_bundle

ROWS = 6
IDS = [f"item-{n:06d}" for n in range(ROWS)]


@pytest.fixture
def source(tmp_path: Path, make_table: MakeTable) -> lithi.Bundle:
    """A bundle of 6 rows."""
    write_bundle(tmp_path / "b", make_table(ROWS))
    return lithi.open_bundle(tmp_path / "b")


def _stage(source: lithi.Bundle, predictions: Any, name: str = "p", **keywords: Any) -> Any:
    folder = Path(str(source.location)).parent / name
    return lithi.stage_predictions(
        folder, predictions, source=source, version_id="pred_1", **keywords
    )


def _column(bundle: Any, name: str = "x") -> pa.Array:
    batches = [b for n in range(len(bundle.parts)) for b in bundle.read_part(n)]
    return pa.Table.from_batches(batches).column(name).combine_chunks()


def test_a_buffer_that_is_filled_again_for_each_batch_keeps_its_values(
    source: lithi.Bundle,
) -> None:
    array, tensor = np.zeros(2, dtype=np.int64), torch.zeros(2, 3)

    def batches() -> Iterator[dict[str, Any]]:
        for start in range(0, ROWS, 2):
            array[:] = (start, start + 1)
            tensor[:] = start
            yield {"item_id": IDS[start : start + 2], "x": array, "t": tensor}

    bundle = _stage(source, batches())
    assert _column(bundle).to_pylist() == list(range(ROWS))
    assert _column(bundle, "t").to_pylist()[::2] == [[0.0] * 3, [2.0] * 3, [4.0] * 3]


def test_masked_elements_are_nulls_in_every_shape(source: lithi.Bundle) -> None:
    flat = np.ma.masked_array(np.arange(ROWS), mask=[True, False] * 3)
    wide = np.ma.masked_array(np.arange(2 * ROWS).reshape(ROWS, 2), mask=[[True, False]] * ROWS)
    bundle = _stage(source, {"item_id": IDS, "x": flat, "y": wide, "z": list(wide)})
    assert _column(bundle).to_pylist() == [None, 1, None, 3, None, 5]
    expected = [[None, 2 * n + 1] for n in range(ROWS)]
    assert _column(bundle, "y").to_pylist() == expected
    assert _column(bundle, "z").to_pylist() == expected


def test_a_batch_of_the_loader_comes_back_as_the_columns_that_it_was_made_of(
    tmp_path: Path,
) -> None:
    table = pa.table(
        {
            "item_id": IDS,
            "big": pa.array([2**53 + 1, None, -(2**63), 0, None, 1], pa.int64()),
            "emb": pa.array([[1, None], None, [2, 3]] * 2, pa.list_(pa.float16(), 2)),
            "rag": pa.array([[1], None, []] * 2, pa.list_(pa.uint16())),
            "meta": pa.array(
                [{"a": 2**63 + 1, "b": None}, {"a": None, "b": "x"}] * 3,
                pa.struct([("a", pa.uint64()), ("b", pa.string())]),
            ),
            "lithi_status": ["accepted"] * ROWS,
        }
    )
    write_bundle(tmp_path / "b", table)
    ds = lithi.load(tmp_path / "b", cache_dir=tmp_path / "cache")
    bundle = _stage(lithi.open_bundle(tmp_path / "b"), iter(lithi.torch_loader(ds, 4)))
    for name in table.column_names:
        assert _column(bundle, name).type == table.schema.field(name).type, name
        assert _column(bundle, name).to_pylist() == table[name].to_pylist(), name


def test_batches_without_rows_say_nothing_about_types(source: lithi.Bundle) -> None:
    batches = [
        {"item_id": [], "x": [], "y": torch.zeros(0)},
        {"item_id": IDS, "x": [1] * ROWS, "y": torch.zeros(ROWS, 3)},
        {"item_id": [], "x": np.zeros(0), "y": torch.zeros(0, 3)},
    ]
    bundle = _stage(source, batches)
    assert bundle.arrow_schema.field("x").type == pa.int64()
    assert bundle.arrow_schema.field("y").type == pa.list_(pa.float32(), 3)


def test_no_predictions_of_known_types_leave_every_item_outstanding(source: lithi.Bundle) -> None:
    table = pa.table({"item_id": pa.array([], pa.string()), "x": pa.array([], pa.int8())})
    bundle = _stage(source, table, missing="outstanding")
    assert bundle.outstanding_items() == IDS
    assert bundle.parts == ()
    assert bundle.verify().rows == 0


@pytest.mark.parametrize(
    ("first", "later", "kind"),
    [
        ([[], []], [[1], None, [], []], pa.list_(pa.int64())),
        ([{"a": None}] * 2, [{"a": "x"}] * 4, pa.struct([("a", pa.string())])),
        ([[None]] * 2, [[[1.5]]] * 4, pa.list_(pa.list_(pa.float64()))),
    ],
)
def test_a_type_inside_a_type_comes_from_later_batches_too(
    first: list[Any], later: list[Any], kind: pa.DataType, source: lithi.Bundle
) -> None:
    batches = [{"item_id": IDS[:2], "x": first}, {"item_id": IDS[2:], "x": later}]
    for name, order in (("p", batches), ("q", batches[::-1])):
        bundle = _stage(source, order, name)
        assert bundle.arrow_schema.field("x").type == kind
        values = [value for batch in order for value in batch["x"]]
        assert _column(bundle).to_pylist() == values


@pytest.mark.parametrize(
    "mixed",
    [
        [datetime(2020, 1, 1), datetime(2020, 1, 1, tzinfo=timezone.utc)],
        [date(2020, 1, 1), datetime(2020, 1, 1, 5)],
        [time(1, tzinfo=timezone.utc)] * 2,
        ["a", b"a"],
        [Decimal("1.5"), 1],
        [1, True],
        [{1}, {2}],
        [[date(2020, 1, 1)], [datetime(2020, 1, 1, 5)]],
        [{"a": date(2020, 1, 1)}, {"a": datetime(2020, 1, 1, 5)}],
        [2**53 + 1, 1.5],
    ],
    ids=str,
)
def test_values_that_no_one_type_keeps_are_refused(mixed: list[Any], source: lithi.Bundle) -> None:
    for values in (mixed * 3, [*mixed, None, *mixed, None]):
        with pytest.raises(lithi.UsageError, match="'x") as caught:
            _stage(source, {"item_id": IDS, "x": values})
        assert "pa.array(values, type)" in str(caught.value)


@pytest.mark.parametrize("column", ["abcdef", b"abcdef", set(range(ROWS)), 5, None], ids=repr)
def test_what_is_no_column_is_refused(column: Any, source: lithi.Bundle) -> None:
    with pytest.raises(lithi.UsageError, match="no column"):
        _stage(source, {"item_id": IDS, "x": column})


def test_encodings_are_not_types_for_ids_and_values(source: lithi.Bundle) -> None:
    plain = pa.array(list("abcdef"))
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([ROWS], pa.int32()), pa.array([7]))
    columns = {
        "item_id": pa.array(IDS).dictionary_encode(),
        "d": plain.dictionary_encode(),
        "r": runs,
        "v": plain.cast(pa.string_view()),
        "l": pa.array([["a"]] * ROWS, pa.list_(pa.dictionary(pa.int8(), pa.string()))),
    }
    encoded = pa.table(columns)
    for format in ("parquet", "arrow", "jsonl"):
        bundle = _stage(source, encoded, format, format=format)
        assert _column(bundle, "d").to_pylist() == plain.to_pylist()
        assert _column(bundle, "r").to_pylist() == [7] * ROWS
    # A later batch may come decoded: the type is the same.
    pieces = [encoded.slice(0, 2), pa.table({**columns, "d": plain, "item_id": IDS}).slice(2)]
    assert _column(_stage(source, pieces, "q"), "d").to_pylist() == plain.to_pylist()


def test_byte_order_and_lazy_conjugates_of_arrays_are_no_obstacle(source: lithi.Bundle) -> None:
    swapped = np.arange(ROWS).astype(">i4")
    negated = torch._neg_view(torch.ones(ROWS))
    bundle = _stage(source, {"item_id": IDS, "x": swapped, "y": negated})
    assert bundle.arrow_schema.field("x").type == pa.int32()
    assert _column(bundle).to_pylist() == list(range(ROWS))
    assert _column(bundle, "y").to_pylist() == [-1.0] * ROWS


@pytest.mark.parametrize(
    "predictions",
    [
        pa.Table.from_arrays([pa.array(IDS), pa.array(IDS)], names=["item_id", "item_id"]),
        pa.Table.from_arrays([pa.array(IDS), *[pa.nulls(ROWS)] * 2], names=["item_id", "x", "x"]),
        {"item_id": IDS, "\ud800": [1] * ROWS},
        {"item_id": IDS, 1: [1] * ROWS, "1": [2] * ROWS},
        {"item_id": IDS, "lithi_status": ["accepted"] * (ROWS - 1) + [None]},
        {"item_id": IDS, "lithi_status": [1] * ROWS},
        {"item_id": IDS, "lithi_confidence": np.ones(ROWS, np.float16)},
        {"item_id": IDS, "lithi_confidence": [2.0] * ROWS},
        {"item_id": IDS, "x": torch.empty(ROWS, device="meta")},
        {"item_id": IDS, "x": {}},
    ],
    ids=lambda value: str(value)[:40].replace("\ud800", "surrogate"),
)
def test_columns_that_break_a_rule_are_a_usage_error(
    predictions: Any, source: lithi.Bundle
) -> None:
    with pytest.raises(lithi.UsageError):
        _stage(source, predictions)


def test_rules_that_the_columns_break_are_found_with_the_first_batch(source: lithi.Bundle) -> None:
    taken = []

    def batches() -> Iterator[dict[str, Any]]:
        for start in range(0, ROWS, 2):
            taken.append(start)
            confidences = np.ones(2, np.float16)
            yield {"item_id": IDS[start : start + 2], "lithi_confidence": confidences}

    with pytest.raises(lithi.UsageError, match="lithi_confidence"):
        _stage(source, batches())
    assert taken == [0]
    with pytest.raises(lithi.UsageError, match="version_id"):
        lithi.stage_predictions(
            Path(str(source.location)).parent / "v", batches(), source=source, version_id=""
        )
    assert taken == [0]


def test_a_null_in_a_column_that_said_it_has_none_is_refused(source: lithi.Bundle) -> None:
    required = pa.schema([("item_id", pa.string()), pa.field("x", pa.int8(), nullable=False)])
    first = pa.table({"item_id": IDS[:2], "x": [1, 2]}, schema=required)
    later = pa.table({"item_id": IDS[2:], "x": pa.array([None] * 4, pa.int8())})
    with pytest.raises(lithi.UsageError, match="'x'"):
        _stage(source, [first, later])


def test_class_names_of_a_dataset_come_with_it(source: lithi.Bundle) -> None:
    features = datasets.Features(
        {"item_id": datasets.Value("string"), "x": datasets.ClassLabel(names=["ham", "spam"])}
    )
    rows = datasets.Dataset.from_dict({"item_id": IDS, "x": [0, 1] * 3}, features=features)
    assert _stage(source, rows.with_format("torch")).features["x"] == features["x"]
    share = _stage(source, rows, "r", rank=0, world_size=2)
    _stage(source, rows.select([]), "r", rank=1, world_size=2)
    assert share.rows == ROWS
    folder = Path(str(source.location)).parent / "r"
    joined = lithi.commit_predictions(folder, source=source, version_id="pred_1", world_size=2)
    assert joined.features["x"] == features["x"]
