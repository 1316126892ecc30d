from __future__ import annotations

import hashlib
import itertools
import os
import pickle
import subprocess
import sys
import tracemalloc
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lithi_datasets.errors import UsageError
from lithi_datasets.reading import order as order_module
from lithi_datasets.reading.mixing import mixing_quality
from lithi_datasets.reading.order import (
    RUN_ROWS,
    WINDOW_RUNS,
    EpochOrder,
    Piece,
    runs_of,
    shuffled_parts,
)

Rows = npt.NDArray[np.int64]

ONE_WINDOW = 2 * WINDOW_RUNS * RUN_ROWS - RUN_ROWS
"""The most rows that one window holds."""

SIZES = (0, 1, 2, 31, 32, 33, 1_000, ONE_WINDOW, ONE_WINDOW + 1, 32_768, 40_000, 50_001, 65_537)


def shuffled(rows: int, *, key: str = "digest:view", seed: int = 7, epoch: int = 0) -> EpochOrder:
    return EpochOrder(key, rows, shuffle=True, seed=seed, epoch=epoch)


def everything(order: EpochOrder) -> Rows:
    return order.indices(0, order.rows)


def read(piece: Piece) -> Rows:
    """What a reader gets: the runs joined, then taken from."""
    joined = [np.arange(first, first + count) for first, count in piece.runs]
    rows = np.concatenate(joined) if joined else np.empty(0, np.int64)
    return rows if piece.take is None else rows[piece.take]


def digest(rows: Rows) -> str:
    return hashlib.sha256(rows.astype("<i8").tobytes()).hexdigest()


# One order for all tests that only look at it: three windows, a short last run, a last stratum
# that does not reach all windows.
THREE_WINDOWS = shuffled(50_001)
THREE_WINDOWS_ROWS = everything(THREE_WINDOWS)


@pytest.mark.parametrize("rows", SIZES)
def test_a_shuffled_order_has_each_row_once(rows: int) -> None:
    assert np.array_equal(np.sort(everything(shuffled(rows))), np.arange(rows))


def test_an_order_has_each_row_once_however_runs_and_windows_fall(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(order_module, "RUN_ROWS", 3)
    monkeypatch.setattr(order_module, "WINDOW_RUNS", 4)
    for rows in range(160):
        order = shuffled(rows)
        whole = everything(order)
        assert np.array_equal(np.sort(whole), np.arange(rows)), rows
        pieces = list(order.windows(0, rows))
        assert np.array_equal(np.concatenate([np.empty(0, int), *map(read, pieces)]), whole), rows
        assert [piece.window for piece in pieces] == list(range(len(pieces)))
        assert len(pieces) == (max(1, -(-rows // 3) // 4) if rows else 0)


def test_an_order_that_is_not_shuffled_is_the_rows_as_they_are() -> None:
    for seed, epoch in ((None, 0), (3, 5)):
        order = EpochOrder("k", 100_000, shuffle=False, seed=seed, epoch=epoch)
        assert np.array_equal(everything(order), np.arange(100_000))
        (piece,) = order.windows(10, 99_990)
        assert (piece.runs, piece.take, piece.window) == (((10, 99_980),), None, None)
        assert order.gather(10, 99_990).runs == piece.runs
        assert piece.rows == 99_980
        assert list(order.windows(5, 5)) == []
        assert order.gather(5, 5).rows == 0


def test_splitmix_is_the_published_generator() -> None:
    # The first numbers for seed 1234567 of the reference implementation in C (prng.di.unimi.it).
    assert order_module._splitmix(1_234_567, 5).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_orders_never_change_while_the_format_number_stays() -> None:
    assert order_module.ORDER_FORMAT == 1
    assert everything(shuffled(12)).tolist() == [8, 1, 0, 10, 4, 6, 2, 7, 5, 11, 3, 9]
    assert digest(THREE_WINDOWS_ROWS) == (
        "9471131fb5b5931304c28f5ea1248a46c9924063510d57d741507296a22afd18"
    )
    assert shuffled_parts(range(8), key="k", seed=1, epoch=2) == (7, 4, 5, 3, 1, 2, 6, 0)


def test_an_order_does_not_depend_on_the_process() -> None:
    program = (
        "import sys; from lithi_datasets.reading.order import EpochOrder\n"
        "order = EpochOrder('digest:view', 50_001, shuffle=True, seed=7, epoch=0)\n"
        "sys.stdout.buffer.write(order.indices(0, 50_001).astype('<i8').tobytes())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        capture_output=True,
        check=True,
    )
    assert done.stdout == THREE_WINDOWS_ROWS.astype("<i8").tobytes()


@pytest.mark.parametrize("rows", [64, 40_000])
def test_another_key_seed_or_epoch_is_another_order(rows: int) -> None:
    orders = [
        shuffled(rows),
        shuffled(rows, key="digest:other"),
        shuffled(rows, seed=8),
        shuffled(rows, seed=-7),
        shuffled(rows, seed=7 + 2**64),
        shuffled(rows, epoch=1),
    ]
    for one, other in itertools.combinations(map(everything, orders), 2):
        # Two random permutations have one row in common places on average.
        assert np.count_nonzero(one == other) < 12


def test_numpy_integers_are_the_integers_that_they_are() -> None:
    rows: Any = np.int64(100)
    seed: Any = np.uint8(7)
    epoch: Any = np.int16(0)
    ours = EpochOrder("digest:view", rows, shuffle=True, seed=seed, epoch=epoch)
    assert ours == shuffled(100)
    assert np.array_equal(everything(ours), everything(shuffled(100)))


@settings(max_examples=60, deadline=None)
@given(st.tuples(st.integers(0, 50_001), st.integers(0, 50_001)).map(sorted))
def test_a_slice_of_the_order_is_the_same_however_it_is_asked_for(ends: list[int]) -> None:
    start, stop = ends
    wanted = THREE_WINDOWS_ROWS[start:stop]
    assert np.array_equal(THREE_WINDOWS.indices(start, stop), wanted)
    assert np.array_equal(read(THREE_WINDOWS.gather(start, stop)), wanted)
    pieces = list(THREE_WINDOWS.windows(start, stop))
    assert sum(piece.rows for piece in pieces) == stop - start
    assert np.array_equal(np.concatenate([wanted[:0], *map(read, pieces)]), wanted)
    # As the loader does it: the whole window in order, once, and slices of that.
    kept = [read(THREE_WINDOWS.window(piece.window or 0)) for piece in pieces]
    cut = [rows[p.first : p.first + p.rows] for rows, p in zip(kept, pieces, strict=True)]
    assert np.array_equal(np.concatenate([wanted[:0], *cut]), wanted)


def test_pieces_of_a_window_share_its_runs() -> None:
    pieces = [
        p for start in range(0, 2_560, 256) for p in THREE_WINDOWS.windows(start, start + 256)
    ]
    assert {piece.window for piece in pieces} == {0}
    assert all(piece.runs is pieces[0].runs for piece in pieces)
    assert [piece.first for piece in pieces] == list(range(0, 2_560, 256))


def test_runs_are_ascending_and_never_touch() -> None:
    for rows in (1_000, 33_000, 50_001):
        for piece in shuffled(rows).windows(0, rows):
            for (first, count), (following, _) in itertools.pairwise(piece.runs):
                assert first + count < following


def test_reading_a_window_takes_at_most_a_slice_for_a_run() -> None:
    for piece in shuffled(1_000_000).windows(0, 100_000):
        rows = sum(count for _, count in piece.runs)
        assert len(piece.runs) <= -(-rows // RUN_ROWS)
        assert rows >= WINDOW_RUNS * RUN_ROWS - RUN_ROWS
        assert rows <= (WINDOW_RUNS + 16) * RUN_ROWS


def test_a_caller_can_not_change_the_order_by_accident() -> None:
    (piece,) = THREE_WINDOWS.windows(0, 10)
    assert piece.take is not None
    with pytest.raises(ValueError, match="read-only"):
        piece.take[0] = 1
    mine = THREE_WINDOWS.indices(0, 10)
    mine[:] = -1
    assert np.array_equal(THREE_WINDOWS.indices(0, 10), THREE_WINDOWS_ROWS[:10])


def test_a_hundred_million_rows_are_never_held() -> None:
    order = shuffled(100_000_000)
    tracemalloc.start()
    try:
        found = [order.indices(start, start + 256) for start in (0, 61_234_567, 99_999_744)]
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 110 * 2**20  # P itself takes 763 MiB
    assert all(len(np.unique(rows // 1_000_000)) > 80 for rows in found)
    assert len(pickle.dumps(order)) < 500


def test_a_pickle_is_the_arguments_and_gives_the_same_order() -> None:
    again = pickle.loads(pickle.dumps(THREE_WINDOWS))
    assert again == THREE_WINDOWS
    assert len(pickle.dumps(THREE_WINDOWS)) < 500
    assert np.array_equal(again.indices(20_000, 40_000), THREE_WINDOWS_ROWS[20_000:40_000])


def test_small_datasets_have_a_full_permutation() -> None:
    # All 24 orders of 4 rows, each about equally often: chi-square, 23 degrees of freedom, whose
    # 99.9th percentile is 49.7.
    seen = Counter(tuple(everything(shuffled(4, seed=seed))) for seed in range(2_400))
    assert len(seen) == 24
    assert sum((count - 100) ** 2 / 100 for count in seen.values()) < 49.7


def test_a_row_can_come_anywhere_in_the_order() -> None:
    # One window's rows over 400 epochs: in sixteen sections of the order, each about 25 times
    # (15 degrees of freedom, 99.9th percentile 37.7), for the first, a middle and the last row.
    places: list[list[int]] = [[], [], []]
    for epoch in range(400):
        rows = everything(shuffled(40_000, epoch=epoch))
        for place, row in zip(places, (0, 20_017, 39_999), strict=True):
            place.append(int(np.flatnonzero(rows == row)[0]) // 2_500)
    for place in places:
        counts = Counter(place)
        assert sum((counts[section] - 25) ** 2 / 25 for section in range(16)) < 37.7


def test_a_layer_of_a_window_has_a_row_of_each_run() -> None:
    rows = everything(shuffled(1_000_000))
    window = next(shuffled(1_000_000).windows(0, 1_000_000))
    runs = window.rows // RUN_ROWS
    for layer in rows[: window.rows].reshape(RUN_ROWS, runs):
        assert len(np.unique(layer // RUN_ROWS)) == runs


def test_a_window_has_a_run_from_every_stretch_of_the_dataset() -> None:
    order = shuffled(1_000_000)
    windows = list(order.windows(0, order.rows))
    stretch = len(windows) * RUN_ROWS
    for window in windows:
        firsts = np.array([first for first, _ in window.runs])
        assert np.diff(firsts).max() < 2 * stretch
        assert firsts[0] < stretch
        assert firsts[-1] >= 1_000_000 - 2 * stretch


@pytest.mark.parametrize(("rows", "epoch"), [(200_000, 0), (1_000_000, 0), (1_000_000, 3)])
def test_a_batch_is_mixed_as_well_as_by_a_full_permutation(rows: int, epoch: int) -> None:
    found = mixing_quality(shuffled(rows, epoch=epoch))
    assert found["displacement"]["found"] == pytest.approx(1 / 3, rel=0.01)
    assert abs(found["correlation"]["found"]) < 0.005
    assert found["adjacent"]["found"] < 4e-5
    assert found["blocks_per_batch"]["found"] > 0.95 * found["blocks_per_batch"]["uniform"]
    assert found["crowding"]["found"] < 1.12
    assert found["spread"]["found"] < 0.75


def test_many_batches_of_sorted_data_stand_for_all_of_it_better_than_at_random() -> None:
    order = shuffled(1_000_000)
    for batch_rows in (1_024, 4_096, 16_384):
        assert mixing_quality(order, batch_rows=batch_rows)["spread"]["found"] < 0.3


def test_rows_of_a_run_come_in_one_window_which_is_the_price() -> None:
    # Said in the docs: where the rows of a run are alike, 4,096 rows in a row are worth about 512.
    crowding = mixing_quality(shuffled(1_000_000), batch_rows=4_096)["crowding"]
    assert 7 < crowding["found"] < 8.5
    assert crowding["uniform"] < 1.2


def test_the_measure_of_mixing_is_right_about_orders_that_are_known() -> None:
    count = 200_000
    full = mixing_quality(np.random.default_rng(5).permutation(count))
    for name in ("displacement", "blocks_per_batch", "crowding"):
        assert full[name]["found"] == pytest.approx(full[name]["uniform"], rel=0.01)
    assert full["spread"]["found"] == pytest.approx(1, rel=0.15)
    assert abs(full["correlation"]["found"]) < 0.01

    same = mixing_quality(np.arange(count))
    assert same["displacement"]["found"] == 0
    assert same["adjacent"]["found"] == 1
    assert same["correlation"]["found"] == pytest.approx(1)
    assert same["blocks_per_batch"]["found"] == 8
    assert same["crowding"]["found"] == 32
    assert same["spread"]["found"] > 200


def test_what_the_measure_expects_is_the_mean_over_all_permutations() -> None:
    # 40 rows (a block of 32 and one of 8) in batches of 3, by drawing.
    random = np.random.default_rng(1)
    found = [mixing_quality(random.permutation(40), batch_rows=3) for _ in range(2_000)]
    for name in ("displacement", "adjacent", "blocks_per_batch", "spread"):
        mean = np.mean([one[name]["found"] for one in found])
        assert mean == pytest.approx(found[0][name]["uniform"], rel=0.03), name


def test_mixing_is_not_measured_on_less_than_two_batches() -> None:
    with pytest.raises(UsageError, match="between batches"):
        mixing_quality(shuffled(511))
    assert mixing_quality(shuffled(512))["displacement"]["found"] > 0.2


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 300), max_size=60), st.integers(1, 40))
def test_rows_in_any_order_become_slices_and_positions(rows: list[int], gap: int) -> None:
    runs, take = runs_of(np.array(rows, dtype=np.int64), gap=gap)
    assert read(Piece(runs, take)).tolist() == rows
    for (first, count), (following, _) in itertools.pairwise(runs):
        assert following - (first + count - 1) > gap
    assert all({first, first + count - 1} <= set(rows) for first, count in runs)


def test_parts_are_shuffled_anew_each_epoch_and_alike_for_any_owner() -> None:
    orders = [shuffled_parts(range(50), key="k", seed=3, epoch=epoch) for epoch in range(5)]
    assert all(sorted(one) == list(range(50)) for one in orders)
    assert len(set(orders)) == 5
    assert shuffled_parts(range(50), key="k", seed=4, epoch=0) != orders[0]
    assert shuffled_parts(range(50), key="l", seed=3, epoch=0) != orders[0]
    some = [40, 3, 12, 49, 0]
    expected = tuple(part for part in orders[1] if part in some)
    assert shuffled_parts(some, key="k", seed=3, epoch=1) == expected
    assert shuffled_parts([], key="k", seed=3, epoch=1) == ()


BAD: list[tuple[dict[str, Any], str]] = [
    ({"rows": -1}, "rows="),
    ({"rows": 1.0}, "rows="),
    ({"rows": True}, "rows="),
    ({"rows": "10"}, "rows="),
    ({"epoch": -1}, "epoch="),
    ({"epoch": None}, "epoch="),
    ({"seed": None}, "needs a seed"),
    ({"seed": 1.5}, "seed="),
    ({"seed": np.bool_(True)}, "seed="),
    ({"seed": np.array([1, 2])}, "seed="),
    ({"shuffle": 1}, "shuffle="),
    ({"key": b"k"}, "key="),
]


@pytest.mark.parametrize(("wrong", "named"), BAD)
def test_an_order_of_wrong_arguments_is_refused(wrong: dict[str, Any], named: str) -> None:
    right: dict[str, Any] = {"key": "k", "rows": 10, "shuffle": True, "seed": 1, "epoch": 0}
    EpochOrder(**right)
    with pytest.raises(UsageError, match=named):
        EpochOrder(**{**right, **wrong})


@pytest.mark.parametrize("ends", [(-1, 5), (6, 5), (0, 101), (0, 5.0), (None, 5), (False, 5)])
def test_rows_that_the_order_does_not_have_are_refused(ends: tuple[Any, Any]) -> None:
    for order in (shuffled(100), EpochOrder("k", 100, shuffle=False, seed=None, epoch=0)):
        for ask in (order.indices, order.windows, order.gather):
            with pytest.raises(UsageError):
                ask(*ends)


def test_windows_that_the_order_does_not_have_are_refused() -> None:
    assert THREE_WINDOWS.window(2).rows > 0
    unshuffled = EpochOrder("k", 100, shuffle=False, seed=None, epoch=0)
    for order, number in (
        (THREE_WINDOWS, 3),
        (THREE_WINDOWS, -1),
        (unshuffled, 0),
        (shuffled(0), 0),
    ):
        with pytest.raises(UsageError, match="no such window"):
            order.window(number)
