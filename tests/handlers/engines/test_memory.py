from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from handlers.engines.memory import Need, admitted, largest_first, scaled
from handlers.shapes import Shape


def shape(side: int) -> Shape:
    return Shape.parse(f"x=1x{side}:fp32")


def need(side: int, weight: float, work: int, own: int) -> Need:
    return Need(shape(side), weight, work, own)


def test_without_a_budget_all_shapes_get_a_graph() -> None:
    assert admitted([need(1, 0.5, 10, 1), need(2, 0.5, 20, 2)], None) == {shape(1), shape(2)}


def test_working_memory_is_shared_and_counts_once() -> None:
    needs = [need(1, 0.2, 100, 10), need(2, 0.3, 100, 10), need(3, 0.5, 100, 10)]
    assert admitted(needs, 130) == {shape(1), shape(2), shape(3)}
    assert admitted(needs, 129) == {shape(2), shape(3)}
    assert admitted(needs, 109) == frozenset()


def test_a_hungry_shape_is_left_out_where_others_carry_more_traffic() -> None:
    needs = [need(9, 0.1, 1000, 10), need(1, 0.5, 100, 10), need(2, 0.4, 100, 10)]
    assert admitted(needs, 1015) == {shape(1), shape(2)}
    assert admitted(needs, 1030) == {shape(1), shape(2), shape(9)}


def test_a_heavy_hungry_shape_is_taken_instead_of_light_ones() -> None:
    needs = [need(9, 0.9, 1000, 10), need(1, 0.05, 10, 500), need(2, 0.05, 10, 500)]
    assert admitted(needs, 1010) == {shape(9)}


@given(
    st.lists(st.tuples(st.floats(0.01, 1), st.integers(1, 100), st.integers(1, 100)), max_size=8),
    st.integers(1, 300),
)
def test_what_is_admitted_fits(items: list[tuple[float, int, int]], budget: int) -> None:
    needs = [need(side, *item) for side, item in enumerate(items, 1)]
    taken = [one for one in needs if one.shape in admitted(needs, budget)]
    assert sum(one.own for one in taken) + max((one.work for one in taken), default=0) <= budget


def test_memory_grows_with_elements() -> None:
    assert scaled(need(10, 0.1, 100, 50), shape(20), 0.4) == need(20, 0.4, 200, 100)


def test_the_largest_shape_comes_first() -> None:
    assert largest_first([shape(1), shape(3), shape(2)]) == [shape(3), shape(2), shape(1)]
