from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.lanes.batching import Joint, Waiting, batch_size, cover, frozen_times, joint_run, patience

FLAT = frozen_times({1: 1.0, 2: 1.1, 4: 1.2})  # batching pays
LINEAR = frozen_times({1: 1.0, 2: 2.5, 4: 6.0})  # batching costs


def cheapest(rows: int, times: dict[int, float]) -> float:
    """The cost of covering rows by trying everything."""
    best = float("inf")
    for count in range(1, rows + 1):
        for sizes in itertools.combinations_with_replacement(times, count):
            if sum(sizes) >= rows:
                best = min(best, sum(times[size] for size in sizes))
    return best


@given(st.dictionaries(st.integers(1, 4), st.floats(0.1, 9), min_size=1, max_size=3), st.integers(1, 6))
def test_cover_is_the_cheapest_there_is(times: dict[int, float], rows: int) -> None:
    seconds, largest = cover(rows, frozen_times(times))
    if rows < 2 * max(times):
        assert seconds == pytest.approx(cheapest(rows, dict(frozen_times(times))))
    assert largest in times


@given(st.dictionaries(st.integers(1, 8), st.floats(0.1, 9), min_size=1), st.integers(1, 300))
def test_a_batch_size_is_planned_and_holds_the_oldest_request(times: dict[int, float], rows: int) -> None:
    head = min(rows, max(times))
    size = batch_size(rows, head, frozen_times(times))
    assert size in times
    assert size >= head


@pytest.mark.parametrize(("rows", "times", "size"), [(3, FLAT, 4), (3, LINEAR, 1), (2, FLAT, 2), (100, FLAT, 4)])
def test_size_follows_the_measured_times(rows: int, times: object, size: int) -> None:
    assert batch_size(rows, 1, times) == size  # type: ignore[arg-type]


def test_a_larger_batch_is_not_run_because_it_seemed_faster_once() -> None:
    assert batch_size(1, 1, frozen_times({1: 1.0, 2: 0.9, 4: 0.8})) == 1


def test_waits_for_company_only_where_it_pays() -> None:
    assert patience(1, FLAT, arrivals=10.0, left=0.5) == pytest.approx(0.1)  # saves 0.9 s for a gap of 0.1 s
    assert patience(1, LINEAR, arrivals=10.0, left=0.5) == 0
    assert patience(1, FLAT, arrivals=1.0, left=0.5) == 0  # the next row would come too late
    assert patience(4, FLAT, arrivals=10.0, left=0.5) == 0  # the batch is full
    assert patience(1, FLAT, arrivals=0.0, left=0.5) == 0
    assert patience(1, FLAT, arrivals=10.0, left=0.0) == 0


def test_groups_run_together_where_padding_is_cheaper_than_two_runs() -> None:
    small = Waiting(1, frozen_times({1: 1.0, 2: 1.1}), holders=(1,))
    large = Waiting(1, frozen_times({1: 1.2, 2: 1.3}))
    assert joint_run(0, [small, large]) == Joint(holder=1, guest=0)
    assert joint_run(1, [small, large]) == Joint(holder=1, guest=0)
    dear = Waiting(1, frozen_times({1: 1.2, 2: 2.3}))
    assert joint_run(0, [small, dear]) is None


def test_a_full_batch_of_the_oldest_group_takes_no_guests() -> None:
    small = Waiting(1, frozen_times({1: 1.0, 2: 1.1}), holders=(1,))
    large = Waiting(2, frozen_times({1: 1.2, 2: 1.3}))
    assert joint_run(1, [small, large]) is None
