"""A thread that owns an engine.

MIOpen handles, streams, captured graphs and PyTorch's convolution caches belong to the thread that made them, so
everything that touches an engine happens on one thread: loading, warming, running, closing.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from handlers.engines.engine import Engine
from serving.lanes.job import Deliver, ExecutionFailed, Job, LaneClosed, QueueFull

log = logging.getLogger("preheat.lane")

_STOP = object()


class EngineThread(ABC):
    """The queue and the thread of a lane; how jobs are chosen and run is up to the lane.

    ``start``, ``submit``, ``call``, ``close`` are called from the event loop. After ``close`` the jobs that wait are
    still answered. ``deliver`` is called on the engine's thread. ``soon`` has something done when the event loop has
    read what there is to read: the thread is then woken once for all requests that came together.
    """

    def __init__(
        self,
        name: str,
        limit: int,
        open_engine: Callable[[], Engine],
        deliver: Deliver,
        soon: Callable[[Callable[[], None]], object] = lambda call: call(),
    ) -> None:
        self._name = name
        self._limit = limit
        self._open_engine = open_engine
        self._deliver = deliver
        self._soon = soon
        self._fresh: list[Job] = []  # submitted in this turn of the event loop
        self._engine_lock = threading.RLock()  # held while the engine is in use
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._unanswered = 0  # submitted and not released; written by the event loop only
        self._running = 0  # taken from the queue and not delivered; written by the engine's thread only
        self._closing = False
        self._stopping = False
        self._loaded: Future[None] = Future()
        self.ended: Future[None] = Future()  # done when the thread has ended; holds what ended it, unless that was us
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)

    def start(self) -> Future[None]:
        """Starts the thread; the future is done when the engine is loaded, or holds why it could not be."""
        self._thread.start()
        return self._loaded

    @property
    def depth(self) -> int:
        """How many requests wait: those whose clients have gone do not."""
        return max(0, self._unanswered - self._running)

    @property
    def running(self) -> int:
        """How many requests are in execution."""
        return self._running

    def submit(self, job: Job) -> None:
        """Queues a job; raises QueueFull or LaneClosed, and then nothing was queued. See ``release``."""
        if self._closing:
            raise LaneClosed(f"{self._name} is stopping")
        if self.depth >= self._limit:
            raise QueueFull(f"the queue of {self._name} is full ({self._limit} requests)")
        job.submitted = time.perf_counter()
        job.lane = self
        self._unanswered += 1
        self._fresh.append(job)
        if len(self._fresh) == 1:
            self._soon(self._hand_in)

    def _hand_in(self) -> None:
        if self._fresh:
            fresh, self._fresh = self._fresh, []
            self._inbox.put(fresh)
            if self.ended.done():  # the thread has died since they were submitted
                self._fail(ExecutionFailed(f"{self._name} has died"))

    def release(self) -> None:
        """Must follow every successful ``submit``, when its job is answered or given up: its place is free again."""
        self._unanswered -= 1

    def call(self, function: Callable[[Engine], Any]) -> Future[Any]:
        """Runs ``function(engine)`` on the engine's thread between two executions."""
        future: Future[Any] = Future()
        if self._closing:
            future.set_exception(LaneClosed(f"{self._name} is stopping"))
        else:
            self._hand_in()
            self._inbox.put((function, future))
        return future

    def close(self) -> None:
        """Stops taking jobs; what waits is answered first. Returns at once: see ``join``."""
        if not self._closing:
            self._hand_in()
            self._closing = True
            self._inbox.put(_STOP)

    def join(self, timeout: float | None = None) -> bool:
        """Waits for the thread to end; False where it is still running after ``timeout`` seconds."""
        if self._thread.ident is None:
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    # Everything below runs on the engine's thread.

    def _opened(self, engine: Engine) -> None:  # noqa: B027  only some lanes have more to do with it
        """Called once the engine is loaded."""

    @abstractmethod
    def _push(self, job: Job) -> None:
        """Takes over a job that has arrived."""

    @abstractmethod
    def _waiting(self) -> bool:
        """Whether any job waits."""

    @abstractmethod
    def _lost(self) -> list[Job]:
        """The jobs that were taken over and not answered."""

    def _hand_over(self) -> None:  # noqa: B027  only a lane that gathers answers has any to hand over
        """Delivers finished answers that are still held back."""

    @abstractmethod
    def _step(self, engine: Engine) -> None:
        """Runs what is to run next; called only while a job waits."""

    def _main(self) -> None:
        awaited = self._loaded.set_running_or_notify_cancel()  # from here on nobody can cancel it
        try:
            engine = self._open_engine()
            engine.load()
        except BaseException as error:  # SystemExit too: whoever started the lane gets it, whatever it is
            self._fail(error)
            if awaited:
                self._loaded.set_exception(error)
            self.ended.set_result(None)
            return
        self._opened(engine)
        if awaited:
            self._loaded.set_result(None)
        try:
            while self._waiting() or not self._stopping:
                self._receive(engine, block=not self._waiting())
                if self._waiting():
                    with self._engine_lock:
                        self._step(engine)
            self._hand_over()
        except BaseException as error:  # a fault of the lane itself: nobody must wait for it any more
            log.exception("%s has died", self._name)
            self._fail(error)
            self.ended.set_exception(error)
        else:
            self.ended.set_result(None)
        finally:
            with self._engine_lock:
                engine.close()

    def _fail(self, error: BaseException) -> None:
        """Takes nothing more, and tells everybody who waits."""
        self._closing = True
        self._hand_over()
        lost = self._lost()
        while not self._inbox.empty():
            item = self._inbox.get_nowait()
            if type(item) is list:
                lost += item
            elif item is not _STOP and item[1].set_running_or_notify_cancel():
                item[1].set_exception(error)
        if lost:
            self._deliver([(job, ExecutionFailed(f"{self._name} failed")) for job in lost])

    def _receive(self, engine: Engine, block: bool, timeout: float | None = None) -> None:
        """Takes over what has arrived; waits for the first item if ``block``, at most ``timeout`` seconds."""
        try:
            item = self._inbox.get(block, timeout) if block else self._inbox.get_nowait()
            while True:
                if type(item) is list:
                    for job in item:
                        self._push(job)
                elif item is _STOP:
                    self._stopping = True
                else:
                    self._hand_over()  # a call may take long
                    self._answer_call(engine, *item)
                item = self._inbox.get_nowait()
        except queue.Empty:
            return

    def _answer_call(self, engine: Engine, function: Callable[[Engine], Any], future: Future[Any]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            with self._engine_lock:
                result = function(engine)
        except Exception as error:  # whoever called gets it, whatever it is
            future.set_exception(error)
        else:
            future.set_result(result)
