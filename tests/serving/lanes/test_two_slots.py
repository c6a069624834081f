"""A lane whose engine takes a second execution while the first still runs."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from handlers.engines.engine import Engine
from handlers.handler import Handler, Tensors
from handlers.shapes import Shape
from handlers.spec import ModelSpec
from serving.lanes.job import ExecutionFailed, Job
from serving.lanes.lane import Lane
from serving.lanes.warmset import WarmSet


class TwoSlotEngine(Engine):
    """Doubles its input. ``log`` says what was started and finished, in order; a finish waits at ``gate``."""

    slots = 2

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec, Path(), {})
        self.log: list[str] = []
        self.gate = threading.Event()
        self.waiting = threading.Event()

    def load(self) -> None: ...

    def warm(self, shape: Shape) -> None: ...

    def outputs(self) -> tuple:  # type: ignore[type-arg]
        return ()

    def run(self, inputs: Mapping[str, np.ndarray]) -> Tensors:
        return self.finish(self.start(inputs))

    def start(self, inputs: Mapping[str, np.ndarray]) -> object:
        self.log.append(f"start {int(inputs['x'][0, 0])}")
        return inputs["x"]

    def finish(self, started: object) -> Tensors:
        assert isinstance(started, np.ndarray)
        self.waiting.set()
        assert self.gate.wait(30)
        self.log.append(f"finish {int(started[0, 0])}")
        if started[0, 0] == 13:
            raise RuntimeError("thirteen")
        return {"y": started * 2}


@pytest.fixture
def engine(spec: ModelSpec) -> TwoSlotEngine:
    return TwoSlotEngine(spec)


@pytest.fixture
def answers() -> queue.Queue[tuple[Job, object]]:
    return queue.Queue()


@pytest.fixture
def submit(spec: ModelSpec, handler: Handler, engine: TwoSlotEngine, answers: queue.Queue) -> Iterator:  # type: ignore[type-arg]
    warm = WarmSet(spec)
    for width in (4, 8):
        warm.admit(Shape.parse(f"x=1x{width}:fp32"), 0.001)

    def deliver(done: list) -> None:  # type: ignore[type-arg]
        for one in done:
            answers.put(one)

    lane = Lane(spec, handler, warm, lambda: engine, deliver, lambda *_: None)
    lane.start().result(10)

    def submit(value: int, width: int = 4) -> Job:
        dims = ((1, width),)
        route = warm.find(dims)
        assert route.tails is not None
        job = Job({"x": np.full(dims[0], value, np.float32)}, dims, route.tails, 1, route.outcome)
        lane.submit(job)
        return job

    yield submit
    engine.gate.set()
    lane.close()
    assert lane.join(10)


def collect(answers: queue.Queue, count: int) -> dict[Job, object]:  # type: ignore[type-arg]
    return dict(answers.get(timeout=10) for _ in range(count))


def test_the_next_execution_starts_before_the_last_has_ended(
    submit,  # type: ignore[no-untyped-def]
    engine: TwoSlotEngine,
    answers: queue.Queue,  # type: ignore[type-arg]
) -> None:
    jobs = [submit(0)]
    assert engine.waiting.wait(10)  # the first is waited for alone: nothing else was there
    jobs += [submit(value, 4 if value % 2 else 8) for value in (1, 2, 3)]
    engine.gate.set()
    found = collect(answers, 4)
    for value, job in enumerate(jobs):
        outputs = found[job]
        assert isinstance(outputs, dict)
        np.testing.assert_array_equal(outputs["y"], np.full(job.dims[0], 2 * value))
    assert engine.log[:2] == ["start 0", "finish 0"]
    assert engine.log[2].startswith("start") and engine.log[3].startswith("start")
    assert [line for line in engine.log if line.startswith("finish")] == [
        line.replace("start", "finish") for line in engine.log if line.startswith("start")
    ]


def test_an_execution_that_fails_leaves_the_one_beside_it_alone(
    submit,  # type: ignore[no-untyped-def]
    engine: TwoSlotEngine,
    answers: queue.Queue,  # type: ignore[type-arg]
) -> None:
    submit(0)
    assert engine.waiting.wait(10)
    bad, good = submit(13, 4), submit(5, 8)
    engine.gate.set()
    found = collect(answers, 3)
    assert isinstance(found[bad], ExecutionFailed)
    outputs = found[good]
    assert isinstance(outputs, dict) and outputs["y"][0, 0] == 10
