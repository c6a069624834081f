from __future__ import annotations

import queue
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from handlers.errors import ModelError
from handlers.handler import Handler
from handlers.shapes import Shape
from handlers.spec import ModelSpec
from serving.lanes.cold import ColdLane
from serving.lanes.job import ExecutionFailed, Job, LaneClosed, QueueFull
from serving.lanes.lane import Lane
from serving.lanes.warmset import WarmSet


class Bench:
    """A lane, and the answers that came out of it."""

    def __init__(self, spec: ModelSpec, handler: Handler, engine, seconds: dict[str, float]) -> None:  # type: ignore[no-untyped-def]
        self.warm = WarmSet(spec)
        for text, cost in seconds.items():
            self.warm.admit(Shape.parse(text), cost)
        self.engine = engine
        self.answers: queue.Queue = queue.Queue()  # type: ignore[type-arg]
        self.batches: list[tuple[str, int]] = []
        self.soon: Callable[[Callable[[], None]], object] = lambda call: call()
        self.lane = Lane(
            spec,
            handler,
            self.warm,
            lambda: engine,
            self._receive,
            lambda shape, rows, took: self.batches.append((shape.text, rows)),
            lambda call: self.soon(call),
        )
        self.lane.start().result(10)

    def _receive(self, answers: list) -> None:  # type: ignore[type-arg]
        for answer in answers:
            self.answers.put(answer)

    def job(self, array: np.ndarray) -> Job:
        route = self.warm.find((array.shape,))
        assert route.tails is not None
        return Job({"x": array}, (array.shape,), route.tails, route.rows, route.outcome)

    def submit(self, *arrays: np.ndarray) -> list[Job]:
        jobs = [self.job(array) for array in arrays]
        for job in jobs:
            self.lane.submit(job)
        return jobs

    def collect(self, count: int) -> dict[Job, object]:
        answers = dict(self.answers.get(timeout=10) for _ in range(count))
        for _ in range(count):
            self.lane.release()
        return answers

    def hold(self, array: np.ndarray) -> Job:
        """Submits a job that stays in execution until the gate opens."""
        self.engine.gate.clear()
        self.engine.entered.clear()
        (job,) = self.submit(array)
        assert self.engine.entered.wait(10)
        return job


@pytest.fixture
def bench(spec: ModelSpec, handler: Handler, engine) -> Iterator[Bench]:  # type: ignore[no-untyped-def]
    seconds = {"x=1x4:fp32": 1.0, "x=2x4:fp32": 1.1, "x=4x4:fp32": 1.2, "x=1x8:fp32": 1.0, "x=4x8:fp32": 5.0}
    bench = Bench(spec, handler, engine, seconds)
    yield bench
    engine.gate.set()
    bench.lane.close()
    assert bench.lane.join(10)
    assert engine.closed


def row(value: float, width: int = 4, rows: int = 1) -> np.ndarray:
    return np.full((rows, width), value, dtype=np.float32)


def test_an_exact_shape_runs_as_it_is(bench: Bench) -> None:
    (job,) = bench.submit(row(3))
    answer = bench.collect(1)[job]
    np.testing.assert_array_equal(answer["y"], row(6))  # type: ignore[index]
    assert bench.engine.ran == ["x=1x4:fp32"]
    assert job.submitted <= job.started <= job.copied <= job.executed
    assert job.padding == 0


def test_waiting_requests_share_the_cheapest_batch_and_get_their_own_rows(bench: Bench) -> None:
    first = bench.hold(row(1))
    jobs = bench.submit(row(2), row(3), row(4))
    bench.engine.gate.set()
    answers = bench.collect(4)
    assert bench.engine.ran == ["x=1x4:fp32", "x=4x4:fp32"]
    for job, value in zip([first, *jobs], (2, 4, 6, 8), strict=True):
        np.testing.assert_array_equal(answers[job]["y"], row(value))  # type: ignore[index]
    assert bench.batches[-1] == ("x=4x4:fp32", 3)
    assert sum(job.padding for job in jobs) == pytest.approx(4, abs=2)


def test_a_smaller_request_is_padded_and_its_answer_cut(bench: Bench) -> None:
    (job,) = bench.submit(row(3, width=3))
    answer = bench.collect(1)[job]
    np.testing.assert_array_equal(answer["y"], row(6, width=3))  # type: ignore[index]
    assert bench.engine.ran == ["x=1x4:fp32"]
    assert job.padding == 1


def test_groups_take_turns_by_the_age_of_their_oldest_request(bench: Bench) -> None:
    bench.hold(row(1))
    bench.submit(row(2, width=8), row(3), row(4))
    bench.engine.gate.set()
    bench.collect(4)
    assert bench.engine.ran == ["x=1x4:fp32", "x=1x8:fp32", "x=2x4:fp32"]


def test_an_abandoned_request_is_not_run(bench: Bench) -> None:
    bench.hold(row(1))
    gone, stays = bench.submit(row(2), row(3))
    gone.abandoned = True
    assert bench.lane.depth == 2
    bench.lane.release()
    assert bench.lane.depth == 1
    bench.engine.gate.set()
    answers = bench.collect(2)
    assert gone not in answers
    np.testing.assert_array_equal(answers[stays]["y"], row(6))  # type: ignore[index]
    assert bench.lane.depth == 0


def test_a_failing_batch_fails_alone(bench: Bench) -> None:
    (bad,) = bench.submit(row(float("nan")))
    assert isinstance(bench.collect(1)[bad], ExecutionFailed)
    (good,) = bench.submit(row(1))
    np.testing.assert_array_equal(bench.collect(1)[good]["y"], row(2))  # type: ignore[index]


def test_the_queue_is_bounded(handler: Handler, spec: ModelSpec, engine) -> None:  # type: ignore[no-untyped-def]
    bounded = spec.model_copy(update={"batching": spec.batching.model_copy(update={"queue": 2})})
    bench = Bench(bounded, handler, engine, {"x=1x4:fp32": 1.0})
    bench.hold(row(1))
    bench.submit(row(2), row(3))
    with pytest.raises(QueueFull, match="2 requests"):
        bench.submit(row(4))
    engine.gate.set()
    bench.collect(3)
    bench.submit(row(5))
    bench.collect(1)
    bench.lane.close()
    assert bench.lane.join(10)


def test_what_waits_is_answered_before_the_end(bench: Bench) -> None:
    bench.hold(row(1))
    jobs = bench.submit(row(2), row(3))
    bench.lane.close()
    with pytest.raises(LaneClosed):
        bench.submit(row(4))
    with pytest.raises(LaneClosed):
        bench.lane.call(lambda engine: None).result(1)
    bench.engine.gate.set()
    assert set(bench.collect(3)) >= set(jobs)


def test_calls_run_between_batches_and_pass_on_their_errors(bench: Bench) -> None:
    assert bench.lane.call(lambda engine: engine is bench.engine).result(10)
    with pytest.raises(ZeroDivisionError):
        bench.lane.call(lambda engine: 1 / 0).result(10)
    bench.submit(row(1))
    bench.collect(1)


def test_a_shape_admitted_later_is_used_for_batches(bench: Bench) -> None:
    bench.submit(row(1))
    bench.collect(1)
    bench.warm.admit(Shape.parse("x=3x4:fp32"), 0.1)
    bench.hold(row(1))
    bench.submit(row(2), row(3), row(4))
    bench.engine.gate.set()
    bench.collect(4)
    assert bench.engine.ran[-1] == "x=3x4:fp32"


def test_an_engine_that_cannot_load_says_why(spec: ModelSpec, handler: Handler, engine) -> None:  # type: ignore[no-untyped-def]
    engine.broken = ModelError("no such provider")
    lane = Lane(spec, handler, WarmSet(spec), lambda: engine, lambda answers: None, lambda *batch: None)
    with pytest.raises(ModelError, match="no such provider"):
        lane.start().result(10)
    assert lane.join(10)
    with pytest.raises(LaneClosed):
        lane.submit(Job({"x": row(1)}, ((1, 4),), ((4,),), 1, WarmSet(spec).find(((1, 4),)).outcome))


def test_the_cold_lane_runs_any_shape_in_order(spec: ModelSpec, engine) -> None:  # type: ignore[no-untyped-def]
    answers: queue.Queue = queue.Queue()  # type: ignore[type-arg]

    def put_all(batch: list) -> None:  # type: ignore[type-arg]
        for answer in batch:
            answers.put(answer)

    lane = ColdLane(spec, lambda: engine, put_all)
    lane.start().result(10)
    outcome = WarmSet(spec).find(((1, 5),)).outcome
    jobs = [Job({"x": row(w, width=w)}, ((1, w),), ((w,),), 1, outcome) for w in (5, 6, 7)]
    jobs[1].abandoned = True
    for job in jobs:
        lane.submit(job)
    assert [answers.get(timeout=10)[0] for _ in range(2)] == [jobs[0], jobs[2]]
    assert engine.ran == ["x=1x5:fp32", "x=1x7:fp32"]
    lane.close()
    assert lane.join(10)


def test_a_fault_of_the_lane_itself_is_told_to_everybody(spec: ModelSpec, handler: Handler, engine) -> None:  # type: ignore[no-untyped-def]
    bench = Bench(spec, handler, engine, {"x=1x4:fp32": 1.0})
    first = bench.hold(row(1))
    (second,) = bench.submit(row(2))

    def broken(*batch: object) -> None:
        raise SystemError("a fault")

    bench.lane._on_batch = broken
    engine.gate.set()
    answers = bench.collect(2)
    assert isinstance(answers[second], ExecutionFailed)
    assert first in answers
    with pytest.raises(SystemError, match="a fault"):
        bench.lane.ended.result(10)
    with pytest.raises(LaneClosed):
        bench.submit(row(3))
    assert engine.closed


def test_a_lane_whose_only_request_is_abandoned_at_the_last_moment_lives_on(bench: Bench) -> None:
    choose = bench.lane._head

    def head():  # type: ignore[no-untyped-def]
        chosen = choose()
        if chosen is not None and chosen.jobs[0].inputs["x"][0, 0] == 7:
            chosen.jobs[0].abandoned = True
        return chosen

    bench.lane._head = head  # type: ignore[method-assign]
    bench.submit(row(7))
    bench.lane.release()
    (job,) = bench.submit(row(1))
    np.testing.assert_array_equal(bench.collect(1)[job]["y"], row(2))  # type: ignore[index]


def test_requests_that_come_together_reach_the_lane_together(bench: Bench) -> None:
    later: list[Callable[[], None]] = []
    bench.soon = later.append
    jobs = bench.submit(row(2), row(3), row(4))
    assert len(later) == 1 and bench.lane.depth == 3
    later[0]()
    assert set(bench.collect(3)) == set(jobs)
    assert bench.batches == [("x=4x4:fp32", 3)]


def test_what_was_submitted_before_the_end_is_answered(bench: Bench) -> None:
    bench.soon = lambda call: None
    jobs = bench.submit(row(2))
    bench.lane.close()
    assert set(bench.collect(1)) == set(jobs)


def test_a_request_that_a_dead_lane_gets_fails(bench: Bench) -> None:
    later: list[Callable[[], None]] = []
    bench.soon = later.append
    (job,) = bench.submit(row(2))

    bench.lane.ended.add_done_callback(lambda ended: later[0]())
    bench.lane._inbox.put(None)  # nothing that it knows
    answers = bench.collect(1)
    assert isinstance(answers[job], ExecutionFailed)
