"""Very short executions, on the thread that asks for them.

To hand a request to another thread and back costs two switches of threads, some 25 microseconds, and on a busy machine
many times that. A model that takes no longer itself, and does not mind which thread runs it, is run where its request
was read, if nothing waits and nothing runs; every other request goes to the lane. So do requests that come several at a
time: the lane runs them together, and the two switches are shared.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from handlers.engines.engine import Engine
from handlers.handler import Handler, Tensors
from handlers.shapes import Shape
from handlers.spec import ModelSpec
from serving.lanes.job import Job, failed
from serving.lanes.stacking import stack, unstack
from serving.lanes.warmset import Dims, WarmSet

log = logging.getLogger("preheat.lane")

SHORT_SECONDS = 0.0001  # for so long the event loop may be kept from other requests; decoding an image's JSON is longer
CROWD = 4  # requests in one turn (benchmarks/overhead.py: with 8 clients the lane is quicker, with one it is slower)
_MEMORY = 0.1  # weight of the newest execution in the average


class Arrivals:
    """Counts requests by the turns of the event loop; ``soon`` calls a function in its next turn."""

    def __init__(self, soon: Callable[[Callable[[], None]], object]) -> None:
        self._soon = soon
        self._now = 0
        self._last = 0

    def crowded(self) -> bool:
        """Counts one; whether as many have come in this turn, or came in the last, as are better run together."""
        self._now += 1
        if self._now == 1:
            self._soon(self._turn)
        return self._now >= CROWD or self._last >= CROWD

    def _turn(self) -> None:
        self._last, self._now = self._now, 0


class Inline:
    """Executions on the event loop's thread. ``lock`` is held by whoever uses the engine.

    ``on_batch`` is as a lane's. Used on the event loop only, but for ``open``.
    """

    def __init__(
        self,
        spec: ModelSpec,
        handler: Handler,
        warm: WarmSet,
        lock: threading.RLock,
        on_batch: Callable[[Shape, int, float], None],
    ) -> None:
        self._spec = spec
        self._handler = handler
        self._warm = warm
        self._lock = lock
        self._on_batch = on_batch
        self._engine: Engine | None = None
        self._version = -1
        self._short: dict[tuple[Dims, int], Shape | None] = {}  # by dims and rows; None where it goes to the lane
        self._seconds: dict[Shape, float] = {}

    def open(self, engine: Engine) -> None:
        """Takes a loaded engine, if it may be used from any thread."""
        if engine.any_thread:
            self._engine = engine

    def close(self) -> None:
        """Runs nothing any more."""
        self._engine = None

    def run(self, job: Job) -> Tensors | Exception | None:
        """The outputs or what the execution failed with; None where the job is one for the lane."""
        engine = self._engine
        if engine is None:
            return None
        if self._version != self._warm.version:
            self._short.clear()
            self._version = self._warm.version
        key = job.tails, job.rows
        shape = self._short[key] if key in self._short else self._decide(job)
        if shape is None or not self._lock.acquire(blocking=False):
            return None
        try:
            return self._run(engine, shape, job)
        finally:
            self._lock.release()

    def _decide(self, job: Job) -> Shape | None:
        times = self._warm.seconds(job.tails)
        rows = min(size for size in times if size >= job.rows)
        shape = self._warm.shape(job.tails, rows)
        seconds = self._seconds.setdefault(shape, times[rows])
        chosen = self._short[job.tails, job.rows] = shape if seconds <= SHORT_SECONDS else None
        return chosen

    def _run(self, engine: Engine, shape: Shape, job: Job) -> Tensors | Exception:
        job.submitted = job.started = time.perf_counter()
        try:
            inputs = stack(self._spec, self._handler, shape, [job])
            job.copied = time.perf_counter()
            outputs = engine.run(inputs)
            job.executed = time.perf_counter()
            answer = unstack(self._spec, self._handler, outputs, shape, [job])[0][1]
        except (Exception, SystemExit) as error:  # this request fails; the model lives on
            log.exception("model %s failed on %s", self._spec.name, shape)
            return failed(self._spec.name, error)
        self._learn(shape, job.executed - job.copied)
        self._on_batch(shape, job.rows, job.executed - job.copied)
        return answer

    def _learn(self, shape: Shape, seconds: float) -> None:
        """A shape that turns out to be longer than it was proven to be goes to the lane from then on."""
        average = self._seconds[shape] + _MEMORY * (seconds - self._seconds[shape])
        self._seconds[shape] = average
        if average > 2 * SHORT_SECONDS:
            self._short.clear()
