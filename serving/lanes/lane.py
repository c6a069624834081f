"""The warm lane: one model on one device, batches of planned sizes, first come first served between groups."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from handlers.engines.engine import Engine
from handlers.handler import Handler, Tensors
from handlers.shapes import Shape
from handlers.spec import ModelSpec
from serving.lanes.batching import Times, Waiting, batch_size, frozen_times, joint_run, patience
from serving.lanes.inline import Arrivals, Inline
from serving.lanes.job import Deliver, Job, failed
from serving.lanes.stacking import parts, stack, unstack
from serving.lanes.thread import EngineThread
from serving.lanes.warmset import Dims, WarmSet

log = logging.getLogger("preheat.lane")

_GAP_MEMORY = 0.2  # weight of the newest gap in the average gap between arrivals of a group
_TIME_MEMORY = 0.1  # weight of the newest execution in the average time of a shape
_TIME_CHANGE = 0.1  # a known time is replaced once its average has moved by this share: decisions are cached by times
_ANSWER_DELAY = 0.0005  # seconds that finished answers may wait for others, to wake the event loop once for all


class _Queue:
    """The waiting jobs of one group. ``gap`` is the average time between arriving rows, in seconds."""

    __slots__ = ("arrived", "averages", "gap", "holders", "jobs", "rows", "tails", "times", "version")

    def __init__(self, tails: Dims) -> None:
        self.tails = tails
        self.version = -1
        self.times: Times = ()
        self.averages: dict[int, float] = {}
        self.holders: tuple[Dims, ...] = ()
        self.jobs: deque[Job] = deque()
        self.rows = 0
        self.gap = 0.0
        self.arrived = 0.0

    def push(self, job: Job) -> None:
        self.jobs.append(job)
        self.rows += job.rows
        if self.arrived:
            gap = (job.submitted - self.arrived) / job.rows
            self.gap = self.gap + _GAP_MEMORY * (gap - self.gap) if self.gap else gap
        self.arrived = job.submitted

    def learn(self, size: int, seconds: float) -> None:
        average = self.averages[size] + _TIME_MEMORY * (seconds - self.averages[size])
        self.averages[size] = average
        known = dict(self.times)
        if abs(average - known[size]) > _TIME_CHANGE * known[size]:
            known[size] = average
            self.times = frozen_times(known)


class _Flight(NamedTuple):
    """An execution that was started and not finished: ``copied`` is when its inputs were ready."""

    tails: Dims
    size: int
    shape: Shape
    jobs: list[Job]
    copied: float
    started: object


class Lane(EngineThread):
    """Runs the requests of one model's warm set.

    ``deliver`` is called on the lane's thread with finished answers and must hand them to the event loop.
    ``on_batch`` is called there after each execution with the shape that ran, its rows in use, and its seconds.
    """

    def __init__(
        self,
        spec: ModelSpec,
        handler: Handler,
        warm: WarmSet,
        open_engine: Callable[[], Engine],
        deliver: Deliver,
        on_batch: Callable[[Shape, int, float], None],
        soon: Callable[[Callable[[], None]], object] = lambda call: call(),
    ) -> None:
        super().__init__(f"lane-{spec.name}", spec.batching.queue, open_engine, deliver, soon)
        self._inline = Inline(spec, handler, warm, self._engine_lock, on_batch)
        self._arrivals = Arrivals(soon)
        self._spec = spec
        self._handler = handler
        self._warm = warm
        self._on_batch = on_batch
        self._queues: dict[Dims, _Queue] = {}
        self._pending = 0
        self._answers: list[tuple[Job, Tensors | Exception]] = []
        self._answers_since = 0.0
        self._flights: deque[_Flight] = deque()
        self._landed = 0.0  # when the last execution ended

    def run_at_once(self, job: Job) -> Tensors | Exception | None:
        """What the job ends with, if it was run on the caller's thread, which is the event loop's (see ``Inline``);
        None where it is to be submitted."""
        if self._arrivals.crowded() or self._unanswered or self._closing:
            return None
        return self._inline.run(job)

    def close(self) -> None:
        self._inline.close()
        super().close()

    def _opened(self, engine: Engine) -> None:
        self._inline.open(engine)

    def _push(self, job: Job) -> None:
        queue = self._queues.get(job.tails)
        if queue is None:
            queue = self._queues[job.tails] = _Queue(job.tails)
        if queue.version != self._warm.version:
            self._refresh()
        queue.push(job)
        self._pending += 1

    def _refresh(self) -> None:
        """Takes over the warm set's times, and which groups can hold which, after it has grown."""
        version = self._warm.version
        for queue in self._queues.values():
            queue.averages = {**self._warm.seconds(queue.tails), **queue.averages}
            queue.times = frozen_times(queue.averages)
            queue.holders = tuple(
                other for other in self._queues if other != queue.tails and self._warm.holds(other, queue.tails)
            )
            queue.version = version

    def _waiting(self) -> bool:
        return self._pending > 0

    def _step(self, engine: Engine) -> None:
        head = self._head()
        if head is not None and not self._hold(engine, head):
            tails, size, jobs = self._select(head)
            if jobs:  # all may have been abandoned since the head was chosen
                self._begin(engine, tails, size, jobs)
        while self._flights and (len(self._flights) >= engine.slots or not self._pending):
            self._end(engine, self._flights.popleft())
        if not self._pending or time.perf_counter() - self._answers_since > _ANSWER_DELAY:
            self._hand_over()

    def _hand_over(self) -> None:
        if self._answers:
            answers, self._answers = self._answers, []
            self._deliver(answers)
            self._running -= len(answers)

    def _lost(self) -> list[Job]:
        flying = [job for flight in self._flights for job in flight.jobs]
        return flying + [job for queue in self._queues.values() for job in queue.jobs]

    def _head(self) -> _Queue | None:
        """The queue whose first living job is the oldest."""
        oldest: _Queue | None = None
        for queue in self._queues.values():
            while queue.jobs and queue.jobs[0].abandoned:
                self._take(queue)
            if queue.jobs and (oldest is None or queue.jobs[0].submitted < oldest.jobs[0].submitted):
                oldest = queue
        return oldest

    def _take(self, queue: _Queue) -> Job:
        job = queue.jobs.popleft()
        queue.rows -= job.rows
        self._pending -= 1
        return job

    def _hold(self, engine: Engine, head: _Queue) -> bool:
        """Waits for company where nothing else is to do and the measured times say that it pays.

        True if something may have arrived, so that the choice is to be made again.
        """
        if self._stopping or self._answers or len(head.jobs) < self._pending or not head.gap:
            return False
        left = head.jobs[0].submitted + self._spec.batching.max_delay_ms / 1e3 - time.perf_counter()
        seconds = patience(head.rows, head.times, 1.0 / head.gap, left)
        if seconds <= 0:
            return False
        if self._flights:  # there is something better to wait for
            self._end(engine, self._flights.popleft())
            self._receive(engine, block=False)
            return True
        before = self._pending
        self._receive(engine, block=True, timeout=seconds)
        return self._pending != before

    def _select(self, head: _Queue) -> tuple[Dims, int, list[Job]]:
        """What runs now: the dims of the group, the planned batch size, and the jobs, the head's first."""
        target, givers = head, [head]
        if len(head.jobs) < self._pending:
            queues = [queue for queue in self._queues.values() if queue.jobs]
            index = {queue.tails: i for i, queue in enumerate(queues)}
            waiting = [Waiting(q.rows, q.times, tuple(index[t] for t in q.holders if t in index)) for q in queues]
            joint = joint_run(index[head.tails], waiting)
            if joint is not None:
                target = queues[joint.holder]
                other = queues[joint.guest] if target is head else target
                givers = [head, other]
        size = batch_size(sum(queue.rows for queue in givers), head.jobs[0].rows, target.times)
        jobs: list[Job] = []
        filled = 0
        for queue in givers:
            while queue.jobs and (queue.jobs[0].abandoned or filled + queue.jobs[0].rows <= size):
                job = self._take(queue)
                if not job.abandoned:
                    jobs.append(job)
                    filled += job.rows
        if 0 < filled < size:  # requests of several rows may leave a smaller size enough
            size = batch_size(filled, filled, target.times)
        return target.tails, size, jobs

    def _begin(self, engine: Engine, tails: Dims, size: int, jobs: list[Job]) -> None:
        """Starts an execution; an engine with one slot has then run it."""
        self._running += len(jobs)
        now = time.perf_counter()
        for job in jobs:
            job.started = now
        if not self._answers:
            self._answers_since = now
        shape = self._warm.shape(tails, size)
        try:
            apart = parts(self._spec, shape, jobs) if engine.joins else None
            inputs = stack(self._spec, self._handler, shape, jobs) if apart is None else {}
            copied = time.perf_counter()
            started = engine.start(inputs) if apart is None else engine.start_joined(apart, shape, self._pad())
        except (Exception, SystemExit) as error:  # one batch fails; the lane and every other request live on
            self._failed(error, shape, jobs)
            return
        self._flights.append(_Flight(tails, size, shape, jobs, copied, started))

    def _pad(self) -> dict[str, float]:
        return {tensor.name: self._handler.pad_value(tensor.name) for tensor in self._spec.inputs}

    def _end(self, engine: Engine, flight: _Flight) -> None:
        shape, jobs = flight.shape, flight.jobs
        try:
            outputs = engine.finish(flight.started)
            executed = time.perf_counter()
            answers = unstack(self._spec, self._handler, outputs, shape, jobs)
        except (Exception, SystemExit) as error:
            self._failed(error, shape, jobs)
            return
        for job in jobs:
            job.copied, job.executed = flight.copied, executed
        self._answers += answers
        seconds = executed - max(flight.copied, self._landed)  # what the execution before it took is not its own
        self._landed = executed
        self._queues[flight.tails].learn(flight.size, seconds)
        self._on_batch(shape, sum(job.rows for job in jobs), seconds)

    def _failed(self, error: BaseException, shape: Shape, jobs: list[Job]) -> None:
        log.exception("model %s failed on %s", self._spec.name, shape)
        self._answers += [(job, failed(self._spec.name, error)) for job in jobs]
