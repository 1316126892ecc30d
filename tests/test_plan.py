"""Steps, ranges and parts: who reads what, as arithmetic alone."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from cpu_time import least_seconds
from hypothesis import given, settings
from hypothesis import strategies as st

from lithi_datasets.errors import UsageError
from lithi_datasets.reading.plan import (
    StepPlan,
    assign_parts,
    check_rank,
    index_range,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


NOT_WHOLE: list[Any] = [True, False, 1.0, "1", None, np.bool_(True), [1], float("nan")]

# ---------------------------------------------------------------------------------- steps


def small_plans() -> Iterator[StepPlan]:
    for rows, world, batch, drop in itertools.product(
        range(41), range(1, 6), range(1, 7), (False, True)
    ):
        yield StepPlan(rows, world, batch, drop_last=drop)


def pieces(plan: StepPlan) -> list[list[tuple[int, int]]]:
    """(start, stop) for each step, for each rank."""
    return [
        [plan.piece(step, rank) for rank in range(plan.world_size)] for step in range(plan.steps)
    ]


def sizes_by_the_rule(rows: int, world: int, batch: int, *, drop_last: bool) -> list[int]:
    """Rows of each step, written down the way the rule is said."""
    full, rest = divmod(rows, world * batch)
    sizes = [world * batch] * full
    if rest and not drop_last:
        sizes.append(rest)
        if rest < world and len(sizes) > 1 and batch > 1:
            sizes[-2] -= world - rest
            sizes[-1] = world
    return sizes


def test_steps_follow_the_rule() -> None:
    for plan in small_plans():
        ends = [0, *(plan.consumed_after(step) for step in range(plan.steps))]
        sizes = sizes_by_the_rule(
            plan.rows, plan.world_size, plan.batch_size, drop_last=plan.drop_last
        )
        assert np.diff(ends).tolist() == sizes, plan
        assert [plan.bounds(step) for step in range(plan.steps)] == list(itertools.pairwise(ends))
        assert plan.dropped == plan.rows - sum(sizes), plan


def test_ranks_take_consecutive_near_equal_pieces_of_a_step() -> None:
    for plan in small_plans():
        for step, ranks in enumerate(pieces(plan)):
            start, stop = plan.bounds(step)
            assert [start, *(end for _, end in ranks)] == [*(begin for begin, _ in ranks), stop]
            sizes = [end - begin for begin, end in ranks]
            assert max(sizes) - min(sizes) <= 1, plan
            assert 0 < max(sizes) <= plan.batch_size, plan


def test_each_row_has_one_owner() -> None:
    for plan in small_plans():
        read = [row for ranks in pieces(plan) for begin, end in ranks for row in range(begin, end)]
        assert read == list(range(plan.rows - plan.dropped)), plan
        assert plan.dropped == 0 or plan.drop_last


def test_a_batch_is_empty_only_where_it_has_to_be() -> None:
    empty = 0
    for plan in small_plans():
        for step, ranks in enumerate(pieces(plan)):
            if any(begin == end for begin, end in ranks):
                left = plan.rows - plan.bounds(step)[0]
                assert plan.batch_size == 1 or left < plan.world_size, plan
                assert plan.batch_size == 1 or plan.steps == 1, plan
                assert not plan.drop_last
                empty += 1
    assert empty


def test_with_drop_last_all_batches_are_full() -> None:
    for plan in small_plans():
        if plan.drop_last:
            sizes = {end - begin for ranks in pieces(plan) for begin, end in ranks}
            assert sizes <= {plan.batch_size}, plan
            assert plan.dropped < plan.step_rows


@pytest.mark.parametrize(
    ("rows", "batch", "world", "expected"),
    [
        (13, 3, 2, [[3, 3], [3, 2], [1, 1]]),
        (25, 4, 3, [[4, 4, 4], [4, 3, 3], [1, 1, 1]]),
        (38, 4, 3, [[4, 4, 4], [4, 4, 4], [4, 4, 3], [1, 1, 1]]),
        (3, 2, 5, [[1, 1, 1, 0, 0]]),
        (5, 1, 3, [[1, 1, 1], [1, 1, 0]]),
    ],
)
def test_ranks_make_equal_steps(
    rows: int, batch: int, world: int, expected: list[list[int]]
) -> None:
    plan = StepPlan(rows, world, batch)
    assert plan.steps == len(expected)
    assert [[end - begin for begin, end in ranks] for ranks in pieces(plan)] == expected


def test_a_resume_with_the_same_ranks_and_batches_goes_on_as_before() -> None:
    for plan in small_plans():
        before = pieces(plan)
        for step in range(plan.steps):
            rest = StepPlan(
                plan.rows,
                plan.world_size,
                plan.batch_size,
                consumed=plan.consumed_after(step),
                drop_last=plan.drop_last,
            )
            assert pieces(rest) == before[step + 1 :], (plan, step)
            assert rest.dropped == plan.dropped


legs = st.lists(
    st.tuples(st.integers(1, 7), st.integers(1, 9), st.integers(0, 4)), min_size=1, max_size=8
)


def chain(
    rows: int, legs: Sequence[tuple[int, int, int]], *, drop_last: bool
) -> tuple[list[int], StepPlan]:
    """The rows read by a run that is stopped and resumed at another W and B again and again."""
    read: list[int] = []
    consumed = 0
    for world, batch, steps in legs:
        plan = StepPlan(rows, world, batch, consumed=consumed, drop_last=drop_last)
        for step in range(min(steps, plan.steps)):
            for rank in range(world):
                start, stop = plan.piece(step, rank)
                assert not drop_last or stop - start == batch
                read.extend(range(start, stop))
            consumed = plan.consumed_after(step)
    world, batch, _ = legs[-1]
    last = StepPlan(rows, world, batch, consumed=consumed, drop_last=drop_last)
    for step, rank in itertools.product(range(last.steps), range(world)):
        read.extend(range(*last.piece(step, rank)))
    return read, last


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 200), legs)
def test_any_chain_of_resumes_reads_each_row_once(
    rows: int, legs: list[tuple[int, int, int]]
) -> None:
    read, _ = chain(rows, legs, drop_last=False)
    assert read == list(range(rows))


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 200), legs)
def test_any_chain_of_resumes_with_drop_last_leaves_what_its_last_plan_drops(
    rows: int, legs: list[tuple[int, int, int]]
) -> None:
    read, last = chain(rows, legs, drop_last=True)
    assert read == list(range(rows - last.dropped))


def test_what_is_dropped_is_decided_by_the_plan_that_ends_the_epoch() -> None:
    first = StepPlan(26, 2, 4, drop_last=True)
    assert (first.steps, first.dropped) == (3, 2)
    resumed = StepPlan(26, 1, 5, consumed=first.consumed_after(1), drop_last=True)
    assert (resumed.steps, resumed.dropped) == (2, 0)
    ended = StepPlan(26, 2, 4, consumed=first.consumed_after(2), drop_last=True)
    assert (ended.steps, ended.dropped) == (0, 2)


def test_a_plan_costs_the_same_for_any_number_of_rows() -> None:
    plan = StepPlan(10**15 + 1, 1_000, 256)
    assert plan.steps == 3_906_250_001
    assert plan.piece(plan.steps - 1, 999) == (10**15, 10**15 + 1)
    assert plan.bounds(plan.steps - 1) == (10**15 - 999, 10**15 + 1)
    assert plan.bounds(plan.steps - 2) == (10**15 - 256_000, 10**15 - 999)
    assert plan.consumed_after(0) == 256_000


def test_no_rows_are_no_steps() -> None:
    assert StepPlan(0, 3, 4).steps == 0
    assert StepPlan(9, 3, 4, consumed=9).steps == 0
    with pytest.raises(UsageError, match="no such step"):
        StepPlan(0, 3, 4).bounds(0)


@pytest.mark.parametrize("name", ["rows", "world_size", "batch_size", "consumed"])
@pytest.mark.parametrize("wrong", [*NOT_WHOLE, -1])
def test_a_step_plan_takes_whole_numbers_only(name: str, wrong: Any) -> None:
    right: dict[str, Any] = {"rows": 9, "world_size": 2, "batch_size": 3, "consumed": 1}
    with pytest.raises(UsageError, match=f"{name}="):
        StepPlan(**{**right, name: wrong})


def test_a_step_plan_of_no_rank_no_batch_or_too_much_consumed_is_refused() -> None:
    for arguments, consumed in (((9, 0, 3), 0), ((9, 2, 0), 0), ((9, 2, 3), 10)):
        with pytest.raises(UsageError):
            StepPlan(*arguments, consumed=consumed)
    with pytest.raises(UsageError, match="drop_last="):
        StepPlan(9, 2, 3, drop_last=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(("step", "rank"), [(2, 0), (-1, 0), (0, 2), (0, -1), (True, 0), (0, 0.0)])
def test_steps_and_ranks_that_are_not_there_are_refused(step: Any, rank: Any) -> None:
    plan = StepPlan(9, 2, 3)
    assert plan.piece(np.int64(1), np.int64(1)) == (8, 9)  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        plan.piece(step, rank)


# ---------------------------------------------------------------------------------- ranges


def test_index_ranges_are_consecutive_disjoint_and_near_equal() -> None:
    for rows, world in itertools.product(range(30), range(1, 40)):
        ranges = [index_range(rows, rank, world) for rank in range(world)]
        assert [0, *(stop for _, stop in ranges)] == [*(start for start, _ in ranges), rows]
        sizes = [stop - start for start, stop in ranges]
        assert max(sizes) - min(sizes) <= 1
        assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize(("rank", "world"), [(2, 2), (-1, 2), (0, 0), (0, -1), (5, 3)])
def test_a_rank_outside_the_world_is_a_value_error(rank: int, world: int) -> None:
    for refused in (UsageError, ValueError):
        with pytest.raises(refused, match=r"rank|world_size"):
            index_range(10, rank, world)
        with pytest.raises(refused, match=r"rank|world_size"):
            check_rank(rank, world)


@pytest.mark.parametrize("wrong", NOT_WHOLE)
def test_ranks_and_worlds_are_whole_numbers(wrong: Any) -> None:
    for arguments in ((10, wrong, 2), (10, 0, wrong), (wrong, 0, 2)):
        with pytest.raises(UsageError):
            index_range(*arguments)
    assert check_rank(np.int32(1), np.uint8(2)) == (1, 2)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------- parts

UNEVEN = (10, 1, 1, 10, 15)


def loads(rows: Sequence[int], world: int, workers: int = 1) -> list[int]:
    return [
        sum(rows[part] for worker in rank for part in worker)
        for rank in assign_parts(rows, world, workers)
    ]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_each_part_has_one_owner(world: int, workers: int) -> None:
    owners = assign_parts(UNEVEN, world, workers)
    assert [len(rank) for rank in owners] == [max(1, workers)] * world
    parts = [part for rank in owners for worker in rank for part in worker]
    assert sorted(parts) == [0, 1, 2, 3, 4]


def test_the_largest_part_goes_to_the_rank_with_the_fewest_rows_first() -> None:
    assert assign_parts(UNEVEN, 2) == (((1, 2, 4),), ((0, 3),))
    assert assign_parts(UNEVEN, 3, 2) == (((4,), ()), ((0,), (1,)), ((3,), (2,)))
    # Equal parts and equal ranks: by index.
    assert assign_parts([5, 5, 5, 5], 3) == (((0, 3),), ((1,),), ((2,),))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 8), st.integers(0, 5))
def test_parts_are_balanced_by_rows_whatever_the_workers(
    rows: list[int], world: int, workers: int
) -> None:
    owners = assign_parts(rows, world, workers)
    parts = [part for rank in owners for worker in rank for part in worker]
    assert sorted(parts) == list(range(len(rows)))
    assert all(list(worker) == sorted(worker) for rank in owners for worker in rank)
    largest = max(rows, default=0)
    for group in (owners, *[[[worker] for worker in rank] for rank in owners]):
        held = [sum(rows[part] for worker in one for part in worker) for one in group]
        assert max(held) - min(held) <= largest
        assert max(held) <= sum(held) / len(held) + largest
    alone = assign_parts(rows, world, 1)
    assert [sorted(sum(rank, ())) for rank in owners] == [list(rank[0]) for rank in alone]


def test_parts_without_rows_and_more_owners_than_parts_are_fine() -> None:
    assert assign_parts([], 2, 2) == (((), ()), ((), ()))
    assert assign_parts([0, 0, 0], 2) == (((0, 1, 2),), ((),))
    assert loads([7, 0, 3], 5) == [7, 3, 0, 0, 0]
    assert assign_parts([7, 0, 3], 5) == (((0,),), ((2,),), ((1,),), ((),), ((),))
    assert assign_parts([4], 1, 3) == (((0,), (), ()),)


def test_a_hundred_thousand_parts_for_a_thousand_ranks_take_near_linear_time() -> None:
    rows = [(index * 7_919) % 1_000 for index in range(100_000)]

    def seconds(some: list[int]) -> float:
        return least_seconds(lambda: loads(some, 1_000, 4), times=2)

    # Quadratic time would be 100 times as much.
    assert seconds(rows) < 40 * seconds(rows[:10_000]) + 0.1
    held = loads(rows, 1_000, 4)
    assert max(held) - min(held) <= 10
    assert sum(held) == sum(rows)


@pytest.mark.parametrize("wrong", [*NOT_WHOLE, -1])
def test_numbers_of_ranks_and_workers_are_whole(wrong: Any) -> None:
    for arguments in (([3], wrong, 1), ([3], 1, wrong), ([wrong], 1, 1)):
        with pytest.raises(UsageError):
            assign_parts(*arguments)
    with pytest.raises(UsageError, match="world_size="):
        assign_parts([3], 0)
