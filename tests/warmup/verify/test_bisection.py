from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmup.verify.bisection import Step, crossing, first_difference, needed


def step(name: str, *reads: str) -> Step:
    return Step(name, "Op", reads, (f"{name}.y",))


DIAMOND = (step("a", "x"), step("b", "a.y"), step("c", "a.y"), step("d", "b.y", "c.y"), step("e", "x"))


def test_only_what_the_output_depends_on_is_looked_at() -> None:
    assert [s.name for s in needed(DIAMOND, ["d.y"])] == ["a", "b", "c", "d"]
    assert [s.name for s in needed(DIAMOND, ["e.y"])] == ["e"]
    assert needed(DIAMOND, ["x"]) == ()


def test_a_cut_is_crossed_by_what_later_nodes_read_and_by_outputs() -> None:
    steps = needed(DIAMOND, ["d.y"])
    assert crossing(steps, 1, ["d.y"]) == ("a.y",)
    assert crossing(steps, 2, ["d.y"]) == ("a.y", "b.y")
    assert crossing(steps, 3, ["d.y"]) == ("b.y", "c.y")
    assert crossing(steps, 4, ["d.y"]) == ("d.y",)
    assert crossing(steps, 2, ["a.y", "d.y"]) == ("a.y", "b.y")


@st.composite
def graphs(draw: st.DrawFn) -> tuple[tuple[Step, ...], int]:
    """A graph whose last node depends on every other, and the node that is wrong."""
    count = draw(st.integers(1, 40))
    steps = []
    for index in range(count):
        before = [f"{other}.y" for other in range(index)]
        reads = draw(st.lists(st.sampled_from(before), min_size=1, max_size=3, unique=True)) if before else ["x"]
        steps.append(step(str(index), *reads))
    unread = {f"{i}.y" for i in range(count)} - {name for s in steps for name in s.reads}
    steps.append(step("last", *sorted(unread)))
    return tuple(steps), draw(st.integers(0, count))


@given(graphs())
def test_the_wrong_node_of_any_graph_is_found_in_few_looks(case: tuple[tuple[Step, ...], int]) -> None:
    steps, wrong = case
    spoilt: set[str] = set()
    for index, one in enumerate(steps):
        if index == wrong or spoilt.intersection(one.reads):
            spoilt.update(one.writes)
    looks = []

    def differ(names: tuple[str, ...]) -> bool:
        looks.append(names)
        return bool(spoilt.intersection(names))

    assert first_difference(needed(steps, ["last.y"]), ["last.y"], differ) == (steps[wrong],)
    assert len(looks) <= len(steps).bit_length()


@pytest.mark.parametrize(("hidden", "found"), [({"b.y"}, ["b", "c"]), ({"a.y", "b.y", "c.y"}, ["a", "b", "c", "d"])])
def test_nodes_between_which_nothing_can_be_compared_stay_together(hidden: set[str], found: list[str]) -> None:
    chain = (step("a", "x"), step("b", "a.y"), step("c", "b.y"), step("d", "c.y"))
    spoilt = {"b.y", "c.y", "d.y"}
    steps = first_difference(
        chain, ["d.y"], lambda names: bool(spoilt.intersection(names)), lambda name: name not in hidden
    )
    assert [one.name for one in steps] == found
