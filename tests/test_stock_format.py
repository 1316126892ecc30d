"""What the stock torch format does with the same data, and what `lithi_torch` does."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
import torch
from formatter_rows import dataset_of, every_column, untouched

from lithi_datasets.errors import UsageError
from lithi_datasets.reading.formatter import FORMAT


def _stock(query: Callable[[], Any]) -> Any:
    """What comes out; an exception is an outcome too."""
    try:
        return query()
    except Exception as error:
        return error


def test_stock_format_changes_dtypes_where_ours_keeps_them() -> None:
    ds = dataset_of(pa.table({"f": pa.array([1e300], pa.float64()), "i": pa.array([5], pa.int8())}))
    stock, ours = ds.with_format("torch")[:], ds.with_format(FORMAT)[:]
    assert stock["f"].dtype is not torch.float64 or stock["i"].dtype is not torch.int8
    assert (ours["f"].dtype, ours["f"].item()) == (torch.float64, 1e300)
    assert ours["i"].dtype is torch.int8


def test_stock_format_makes_large_unsigned_numbers_negative() -> None:
    ds = dataset_of(pa.table({"u": pa.array([2**63 + 1], pa.uint64())}))
    stock = _stock(lambda: int(ds.with_format("torch")[:]["u"][0]))
    assert stock != 2**63 + 1
    assert ds.with_format(FORMAT)[:]["u"].item() == 2**63 + 1


def test_stock_format_flips_a_nullable_integer_to_float_and_loses_it() -> None:
    ds = dataset_of(pa.table({"n": pa.array([2**53 + 1, 5, None], pa.int64())}))
    stock = ds.with_format("torch")
    assert stock[0:2]["n"].dtype is not stock[0:3]["n"].dtype
    assert stock[0:3]["n"][0].item() != 2**53 + 1
    ours = ds.with_format(FORMAT)
    assert ours[0:2]["n"].tolist() == [2**53 + 1, 5]
    assert ours[0]["n"].item() == 2**53 + 1
    with pytest.raises(UsageError):
        ours[0:3]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_stock_format_fails_on_a_list_column_whose_first_row_is_null() -> None:
    ds = dataset_of(pa.table({"v": pa.array([None, [1], [2, 3]], pa.list_(pa.int64()))}))
    stock = _stock(lambda: ds.with_format("torch")[:]["v"])
    right = isinstance(stock, list) and [None if r is None else r.tolist() for r in stock]
    assert isinstance(stock, Exception) or right == [None, [1], [2, 3]]
    first, *rest = ds.with_format(FORMAT)[:]["v"]
    assert first is None
    assert [row.tolist() for row in rest] == [[1], [2, 3]]


@pytest.mark.parametrize("name", ["date", "time", "at", "lasted", "price"])
def test_stock_format_fails_on_times_and_decimals(name: str) -> None:
    ds = dataset_of(every_column(3).select([name]))
    stock = _stock(lambda: ds.with_format("torch")[:][name])
    assert isinstance(stock, Exception)
    ours = ds.with_format(FORMAT)[:][name]
    if name == "price":
        assert ours == [Decimal("0.50"), Decimal("1.50"), Decimal("2.50")]
    else:
        assert (ours.dtype, ours.tolist()) == (torch.int64, [0, 1, 2])


def test_stock_format_gives_a_tensor_or_a_list_depending_on_the_batch() -> None:
    ds = dataset_of(pa.table({"r": pa.array([[1, 2], [3, 4], [5]], pa.list_(pa.int64()))}))
    stock, ours = ds.with_format("torch"), ds.with_format(FORMAT)
    assert type(stock[0:2]["r"]) is not type(stock[0:3]["r"])
    assert type(ours[0:2]["r"]) is type(ours[0:3]["r"]) is list
    assert [row.tolist() for row in ours[0:3]["r"]] == [[1, 2], [3, 4], [5]]


def test_stock_streams_take_no_dtype_where_ours_needs_none() -> None:
    ds = dataset_of(pa.table({"f": pa.array([1e300], pa.float64())})).to_iterable_dataset()
    stock = _stock(lambda: next(iter(ds.with_format("torch", dtype=torch.float64)))["f"].dtype)
    assert isinstance(stock, TypeError) or stock is torch.float64
    assert next(iter(ds.with_format("torch")))["f"].dtype is torch.float32
    assert next(iter(ds.with_format(FORMAT)))["f"].item() == 1e300


def test_stock_streams_lose_integers_beside_nulls_after_map() -> None:
    ds = dataset_of(pa.table({"n": pa.array([2**53 + 1, None], pa.int64())})).to_iterable_dataset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        stock = _stock(lambda: [row["n"] for row in ds.with_format("torch").map(untouched)])
    assert isinstance(stock, Exception) or stock[1] is not None
    assert [row["n"] for row in ds.with_format(FORMAT).map(untouched)] == [
        torch.tensor(2**53 + 1),
        None,
    ]
