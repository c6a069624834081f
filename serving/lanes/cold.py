"""The cold lane: requests whose shape is not warm, one at a time, on an engine and a thread of their own.

Whatever such a request has to search, tune or compile, it never stands in the way of warm traffic.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable

from handlers.engines.engine import Engine
from handlers.spec import ModelSpec
from serving.lanes.job import Deliver, Job, failed
from serving.lanes.thread import EngineThread

log = logging.getLogger("preheat.lane")


class ColdLane(EngineThread):
    """Runs requests of any shape in the order of their arrival."""

    def __init__(self, spec: ModelSpec, open_engine: Callable[[], Engine], deliver: Deliver) -> None:
        super().__init__(f"cold-{spec.name}", spec.batching.queue, open_engine, deliver)
        self._spec = spec
        self._jobs: deque[Job] = deque()

    def _push(self, job: Job) -> None:
        self._jobs.append(job)

    def _lost(self) -> list[Job]:
        return list(self._jobs)

    def _waiting(self) -> bool:
        return bool(self._jobs)

    def _step(self, engine: Engine) -> None:
        job = self._jobs.popleft()
        if job.abandoned:
            return
        self._running = 1
        self._run(engine, job)
        self._running = 0

    def _run(self, engine: Engine, job: Job) -> None:
        job.started = job.copied = time.perf_counter()
        try:
            outputs = engine.run(job.inputs)
        except (Exception, SystemExit) as error:  # this request fails; the lane lives on
            log.exception("model %s failed on dims %s", self._spec.name, job.dims)
            self._deliver([(job, failed(self._spec.name, error))])
            return
        job.executed = time.perf_counter()
        self._deliver([(job, outputs)])
