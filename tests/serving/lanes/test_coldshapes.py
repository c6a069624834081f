from __future__ import annotations

import pytest

from serving.lanes import coldshapes
from serving.lanes.coldshapes import ColdShape, ColdShapes

A, B, C = ((1, 3),), ((2, 3),), ((3, 3),)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which each look takes the next of."""
    times = [10.0, 20.0, 30.0, 40.0]
    monkeypatch.setattr(coldshapes.time, "time", lambda: times.pop(0))
    return times


def test_each_shape_has_its_count_and_its_first_and_last_time(clock: list[float]) -> None:
    shapes = ColdShapes()
    for dims in (A, B, A):
        shapes.add(dims)
    assert dict(shapes) == {A: ColdShape(2, 10.0, 30.0), B: ColdShape(1, 20.0, 20.0)}
    assert (shapes.count(A), shapes.count(C)) == (2, 0)


def test_what_clients_choose_cannot_fill_the_memory(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coldshapes, "LIMIT", 2)
    shapes = ColdShapes()
    for dims in (A, B, C, A):
        shapes.add(dims)
    assert [dims for dims, _ in shapes] == [A, B] and shapes.count(A) == 2 and shapes.count(C) == 0
