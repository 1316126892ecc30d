"""Tensors of any nesting, chunks and slices say what Arrow says."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
import torch

from lithi_datasets.reading.tensors import (
    batch_values,
    row_values,
)


def _random_kind(rng: random.Random, depth: int) -> tuple[pa.DataType, Callable[[], Any]]:
    """A type, and a maker of its values, without nulls inside lists of numbers."""
    choice = rng.randrange(7 if depth else 3)
    if choice == 0:
        return pa.int16(), lambda: rng.randrange(-(2**15), 2**15)
    if choice == 1:
        return pa.bool_(), lambda: rng.random() < 0.5
    if choice == 2:
        return pa.string(), lambda: rng.choice(["", "a", "bcd"])
    kind, make = _random_kind(rng, depth - 1)
    if choice == 3:
        return pa.list_(kind, 2), lambda: [make(), make()]
    if choice in (4, 5):
        outer = pa.list_ if choice == 4 else pa.large_list
        return outer(kind), lambda: [make() for _ in range(rng.randrange(4))]
    other, make_other = _random_kind(rng, depth - 1)
    return pa.struct([("a", kind), ("b", other)]), lambda: {"a": make(), "b": make_other()}


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("seed", range(60))
def test_rows_and_batches_say_what_arrow_says_for_any_nesting_chunks_and_slices(seed: int) -> None:
    rng = random.Random(seed)
    kind, make = _random_kind(rng, 3)
    values = [make() if rng.random() < 0.8 else None for _ in range(20)]
    pieces = [pa.array(values[:9], kind).slice(rng.randrange(5)), pa.array(values[9:], kind)]
    data = pa.chunked_array(
        [pieces[0], pieces[1].slice(0, 0), pieces[1].slice(2, rng.randrange(9))], kind
    )
    expected = data.to_pylist()
    assert _plain(row_values("c", data)) == expected
    whole = data.drop_null()
    batch = batch_values("c", whole)
    apart = [batch[row] for row in range(len(whole))]
    assert _plain(apart) == _plain(row_values("c", whole)) == whole.to_pylist()
