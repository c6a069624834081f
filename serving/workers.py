"""Several server processes behind one port: one per accelerator, or as many as asked for.

Each process is a whole ``preheat serve`` with its own engine, stores and readiness; they share the port, which the
kernel spreads connections over, and the directory in which their metrics meet. Nothing else crosses processes. A
process that dies is replaced.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.multiprocess import mark_process_dead

from serving import barrier
from serving.scratch import scratch
from warmup import accelerators

log = logging.getLogger("preheat.workers")

_FIRST_PAUSE = 1.0  # seconds before a dead process is replaced; doubled each time it dies again soon
_LONGEST_PAUSE = 30.0
_SOON = 30.0
_KILL_AFTER = 120.0  # more than a worker takes that drains as it was told to
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True)
class Worker:
    """One process: its place among the others, and what it has in its environment beside the parent's."""

    index: int
    environment: Mapping[str, str]


def pinned(devices: Sequence[str], each: int = 1) -> tuple[Worker, ...]:
    """``each`` workers per accelerator, each seeing that one alone. Frameworks read the variables when imported."""
    listed = [device for device in devices for _ in range(each)]
    return tuple(Worker(index, accelerators.pinned(device)) for index, device in enumerate(listed))


def plain(count: int) -> tuple[Worker, ...]:
    """Workers that share what there is."""
    return tuple(Worker(index, {}) for index in range(count))


def end_with_parent() -> None:
    """Has the kernel ask this process to end when its parent is gone, however it went (Linux, prctl(2))."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Supervisor:
    """Runs workers with one command line until it is told to stop."""

    def __init__(self, workers: Sequence[Worker], arguments: Sequence[str]) -> None:
        self._workers = workers
        self._command = [sys.executable, "-m", "serving", "serve", *arguments]
        self._stop = asyncio.Event()
        self._shared = ""  # a directory of all of them, while they run

    async def run(self) -> int:
        """The exit status: 0 after a stop, or that of a worker that never came up."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        with scratch() as place:
            self._shared = str(place)
            keepers = [asyncio.ensure_future(self._keep(worker)) for worker in self._workers]
            await asyncio.wait(keepers, return_when=asyncio.FIRST_EXCEPTION)
            self._stop.set()  # where one could not be kept, the others end too
            statuses = await asyncio.gather(*keepers)
        return max(statuses)

    def _environment(self, worker: Worker) -> dict[str, str]:
        shared = {
            "PROMETHEUS_MULTIPROC_DIR": self._shared,
            barrier.DIRECTORY: self._shared,
            barrier.COUNT: str(len(self._workers)),
            barrier.INDEX: str(worker.index),
        }
        return {**os.environ, **worker.environment, **shared}

    async def _keep(self, worker: Worker) -> int:
        """Keeps one worker alive."""
        pause = _FIRST_PAUSE
        loop = asyncio.get_running_loop()
        stopped = loop.create_task(self._stop.wait())
        first = True
        try:
            while True:
                started = loop.time()
                command = self._command if first else [*self._command, "--late"]
                process = await asyncio.create_subprocess_exec(
                    *command, env=self._environment(worker), start_new_session=True
                )
                ended = loop.create_task(process.wait())
                await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
                if not ended.done():
                    process.terminate()
                    await asyncio.wait({ended}, timeout=_KILL_AFTER)
                    if not ended.done():
                        log.error("worker %d does not end and is killed", worker.index)
                        process.kill()
                        await ended
                mark_process_dead(process.pid, self._shared)
                if self._stop.is_set():
                    return 0
                status = ended.result()
                if first and status in (1, 2) and loop.time() - started < _SOON:
                    self._stop.set()  # it cannot come up as it was told to: neither can the others
                    return status
                first = False
                pause = _FIRST_PAUSE if loop.time() - started > _SOON else min(2 * pause, _LONGEST_PAUSE)
                log.error("worker %d ended with status %s; a new one starts in %.0f s", worker.index, status, pause)
                await asyncio.wait({stopped}, timeout=pause)
                if self._stop.is_set():
                    return 0
        finally:
            stopped.cancel()
