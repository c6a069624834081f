"""The requests that are on their way: which are overdue, and which clients have hung up.

A timer per request would cost more than a small model. All requests of a model have the same time limit, so the oldest
is the next to be overdue and one timer serves for all; and only requests that have waited a little get a watch on
their client, since the others are answered before anybody can hang up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from serving.lanes.job import ClientGone, Job, RequestTimedOut

_WATCH_AFTER = 0.02  # seconds in flight after which the client is watched

Gone = Callable[[], Awaitable[None]]


class Outstanding:
    """The unanswered jobs of one model, oldest first. Used on the event loop only.

    ``end`` is called with a job that must not be waited for any longer, and why.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout: float, end: Callable[[Job, Exception], None]) -> None:
        self._loop = loop
        self._settle = end
        self._timeout = timeout
        self._unwatched: dict[Job, Gone] = {}
        self._jobs: dict[Job, None] = {}
        self._watches: dict[Job, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, job: Job, gone: Gone | None) -> None:
        """Minds a submitted job until ``remove``."""
        self._jobs[job] = None
        if gone is not None:
            self._unwatched[job] = gone
        wait = min(_WATCH_AFTER, self._timeout)
        if self._timer is None or self._timer.when() - self._loop.time() > wait:
            self._arm(wait)

    def remove(self, job: Job) -> None:
        self._jobs.pop(job, None)
        self._unwatched.pop(job, None)
        watch = self._watches.pop(job, None)
        if watch is not None:
            watch.cancel()

    def close(self) -> None:
        """Minds nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for watch in self._watches.values():
            watch.cancel()

    def _tick(self) -> None:
        self._timer = None
        now = time.perf_counter()
        for job in list(self._jobs):
            if now - job.submitted < self._timeout:
                break
            self._end(job, RequestTimedOut(f"not answered within {self._timeout:g} s"))
        for job in list(self._unwatched):
            if now - job.submitted < _WATCH_AFTER:
                break
            watch = self._watch(job, self._unwatched.pop(job))
            self._watches[job] = self._loop.create_task(watch)
        due = [job.submitted + self._timeout for job in list(self._jobs)[:1]]
        due += [job.submitted + _WATCH_AFTER for job in list(self._unwatched)[:1]]
        if due:
            self._arm(max(0.001, min(due) - now))

    def _arm(self, wait: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(wait, self._tick)

    async def _watch(self, job: Job, gone: Gone) -> None:
        await gone()
        self._watches.pop(job, None)
        self._end(job, ClientGone("the client has hung up"))

    def _end(self, job: Job, error: Exception) -> None:
        job.abandoned = True
        self._jobs.pop(job, None)
        self._unwatched.pop(job, None)
        self._settle(job, error)
