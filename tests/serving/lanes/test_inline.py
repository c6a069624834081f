"""Short executions on the asking thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from handlers.errors import InvalidInput
from handlers.handler import Handler, Tensors
from handlers.shapes import Shape
from handlers.spec import ModelSpec
from serving.lanes import inline
from serving.lanes.inline import CROWD, Arrivals, Inline
from serving.lanes.job import ExecutionFailed, Job
from serving.lanes.warmset import WarmSet


class Doubler:
    """Doubles its input; remembers the shapes that it ran."""

    any_thread = True

    def __init__(self) -> None:
        self.ran: list[tuple[int, ...]] = []
        self.error: Exception | None = None

    def run(self, inputs: Mapping[str, np.ndarray]) -> Tensors:
        self.ran.append(inputs["x"].shape)
        if self.error is not None:
            raise self.error
        return {"y": inputs["x"] * 2}


class Bench:
    def __init__(self, spec: ModelSpec, handler: Handler, seconds: dict[str, float]) -> None:
        self.warm = WarmSet(spec)
        for text, cost in seconds.items():
            self.warm.admit(Shape.parse(text), cost)
        self.lock = threading.RLock()
        self.batches: list[tuple[str, int]] = []
        self.engine = Doubler()
        self.inline = Inline(
            spec, handler, self.warm, self.lock, lambda shape, rows, s: self.batches.append((shape.text, rows))
        )
        self.inline.open(self.engine)  # type: ignore[arg-type]

    def run(self, array: np.ndarray) -> tuple[Job, Tensors | Exception | None]:
        route = self.warm.find((array.shape,))
        assert route.tails is not None
        job = Job({"x": array}, (array.shape,), route.tails, route.rows, route.outcome)
        return job, self.inline.run(job)


@pytest.fixture
def bench(spec: ModelSpec, handler: Handler) -> Bench:
    return Bench(spec, handler, {"x=1x4:fp32": 1e-6, "x=4x4:fp32": 1e-5, "x=1x8:fp32": 1.0})


def row(value: float, width: int = 4, rows: int = 1) -> np.ndarray:
    return np.full((rows, width), value, np.float32)


def test_a_short_shape_runs_at_once_and_its_times_are_kept(bench: Bench) -> None:
    job, outcome = bench.run(row(3))
    assert isinstance(outcome, dict) and (outcome["y"] == 6).all()
    assert 0 < job.submitted <= job.started <= job.copied <= job.executed
    assert bench.batches == [("x=1x4:fp32", 1)]


def test_what_is_padded_gets_its_own_rows_back(bench: Bench) -> None:
    job, outcome = bench.run(row(3, rows=2))
    assert isinstance(outcome, dict) and outcome["y"].shape == (2, 4)
    assert bench.engine.ran == [(4, 4)] and job.padding == 8


def test_a_long_shape_is_one_for_the_lane(bench: Bench) -> None:
    assert bench.run(row(3, width=8))[1] is None


def test_an_engine_in_use_is_not_waited_for(bench: Bench) -> None:
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with bench.lock:
            held.set()
            release.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(10)
    assert bench.run(row(3))[1] is None
    release.set()
    thread.join(10)
    assert bench.run(row(3))[1] is not None


def test_an_engine_that_minds_its_thread_is_never_used(spec: ModelSpec, handler: Handler) -> None:
    bench = Bench(spec, handler, {"x=1x4:fp32": 1e-6})
    bench.inline.close()
    bench.engine.any_thread = False
    bench.inline.open(bench.engine)  # type: ignore[arg-type]
    assert bench.run(row(3))[1] is None


@pytest.mark.parametrize(
    ("error", "becomes"), [(InvalidInput("no"), InvalidInput), (ZeroDivisionError(), ExecutionFailed)]
)
def test_an_execution_that_fails_is_that_requests_outcome(
    bench: Bench, error: Exception, becomes: type[Exception]
) -> None:
    bench.engine.error = error
    assert isinstance(bench.run(row(3))[1], becomes)
    bench.engine.error = None
    assert isinstance(bench.run(row(3))[1], dict)


def test_a_shape_that_turns_out_long_goes_to_the_lane(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline, "SHORT_SECONDS", 1e-12)
    bench.inline._seconds[Shape.parse("x=1x4:fp32")] = 0.0  # proven to take no time
    assert bench.run(row(3))[1] is not None
    assert bench.run(row(3))[1] is None


def test_requests_that_come_together_are_for_the_lane_until_they_no_longer_do() -> None:
    turns: list[Callable[[], None]] = []
    arrivals = Arrivals(turns.append)

    def turn(requests: int) -> list[bool]:
        found = [arrivals.crowded() for _ in range(requests)]
        turns.pop()()
        assert not turns
        return found

    alone = [False] * (CROWD - 1)
    assert turn(1) == [False] and turn(CROWD - 1) == alone
    assert turn(CROWD) == [*alone, True]
    assert turn(CROWD) == [True] * CROWD
    assert turn(1) == [True] and turn(1) == [False]
