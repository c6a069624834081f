"""Shapes that a server met cold and then learns, beside the traffic and out of its way (``learn: true``).

The shape that came most often is tuned, sealed and proven by processes of low priority on a copy of the server's
stores, while no request is in the server; when one comes they are stopped, and go on when it has been quiet for a
while. What is proven is added to the server's stores and replayed at a quiet moment, and from then on the shape is
warm. One shape at a time; a shape that could not be proven is not tried again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Lock

from handlers.loading import Model
from handlers.shapes import Shape
from serving.model import Served, ServedModel
from serving.repository import Repository
from warmup.stores.store import Store
from warmup.sweep.learn import learn
from warmup.sweep.process import WorkerProcess

log = logging.getLogger("preheat.learning")

_QUIET_SECONDS = 1.0  # without a request, before work begins or goes on
_LOOK_SECONDS = 0.02  # how late a request may find the processes still running
_REST_SECONDS = 1.0  # between looks for a shape to learn
_NICE = 10


class Stopped(Exception):
    """The server ends: no further process is to begin."""


class Gate:
    """Stops and continues the processes that learn. They are started on one thread, the gate is moved on another."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._group: int | None = None
        self._shut = False
        self._closed = False

    @property
    def shut(self) -> bool:
        return self._shut

    def enter(self, process: WorkerProcess) -> None:
        """A process has begun: it gets a low priority, and is stopped where the gate is shut. Raises Stopped."""
        with self._lock:
            self._group = process.pid
            if self._closed:
                process.kill()
                raise Stopped
            with suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, process.pid, _NICE)
            if self._shut:
                self._signal(signal.SIGSTOP)

    def move(self, shut: bool) -> None:
        """Lets no process run, or lets it go on."""
        with self._lock:
            if shut != self._shut and not self._closed:
                self._shut = shut
                self._signal(signal.SIGSTOP if shut else signal.SIGCONT)

    def close(self) -> None:
        """Ends what runs; nothing begins any more."""
        with self._lock:
            self._closed = True
            self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._group is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._group, number)


class Learner:
    """Learns for all models of a server that say ``learn: true``; ``run`` is a task of the server's, cancelled at its
    end.

    ``root`` holds the stores that are served from, ``place`` is a directory for this alone. ``admit`` adds stores to
    those, with nobody looking at them meanwhile.
    """

    def __init__(
        self,
        repository: Repository,
        served: Mapping[str, Served],
        stores: tuple[Store, ...],
        root: Path,
        place: Path,
        admit: Callable[[Path], Awaitable[None]],
    ) -> None:
        self._repository = repository
        self._served = served
        self._stores = stores
        self._root = root
        self._place = place
        self._admit = admit
        self._asked = 0
        self._failed: set[tuple[str, Shape]] = set()
        self._loop = asyncio.get_running_loop()
        # The processes end with the thread that started them, so it lives as long as the learner.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="learner")

    async def run(self) -> None:
        """Until it is cancelled."""
        try:
            while True:
                await self._quiet()
                chosen = self._choose()
                if chosen is None:
                    await asyncio.sleep(_REST_SECONDS)
                else:
                    await self._learn(*chosen)
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _choose(self) -> tuple[ServedModel, Shape] | None:
        """The shape that was met cold most often, of a model that may still learn one."""
        found: list[tuple[int, ServedModel, Shape]] = []
        for model in self._repository.models():
            served = self._served.get(model.name)
            if served is None or not model.ready or model.proof is None or not model.spec.learn:
                continue
            if len(model.learnt) >= model.spec.learn_shapes:
                continue
            for text, seen in model.cold.met().items():
                shape = Shape.parse(text)
                if shape not in model.warm and (model.name, shape) not in self._failed:
                    found.append((seen.count, model, shape))
        if not found:
            return None
        _, model, shape = max(found, key=lambda one: (one[0], one[2].text))
        return model, shape

    async def _learn(self, model: ServedModel, shape: Shape) -> None:
        gate = Gate()
        described = Model(model.spec, self._served[model.name].folder)
        giving_way = self._loop.create_task(self._give_way(gate))
        work = self._loop.run_in_executor(
            self._thread, learn, described, shape, self._root, self._stores, self._place, gate.enter
        )
        try:
            learnt = await asyncio.shield(work)
        except asyncio.CancelledError:
            gate.close()
            await asyncio.wait([work])
            raise
        except Exception:  # a full disk, say: the server goes on
            self._failed.add((model.name, shape))
            log.exception("model %s: %s could not be learnt", model.name, shape)
            return
        finally:
            giving_way.cancel()
        if not learnt.proof.proven:
            self._failed.add((model.name, shape))
            log.warning("model %s: %s is not proven and stays cold: %s", model.name, shape, learnt.proof.reason)
            return
        await self._quiet()
        try:
            await self._admit(learnt.stores)
            await model.learn(learnt.proof)
        except Exception:  # the model may have been unloaded meanwhile
            self._failed.add((model.name, shape))
            log.exception("model %s: %s was learnt and could not be admitted", model.name, shape)
            return
        log.info("model %s: %s is learnt and warm", model.name, shape)

    async def _give_way(self, gate: Gate) -> None:
        """Shuts the gate while there are requests."""
        while True:
            if self._busy():
                gate.move(shut=True)
                await self._quiet()
            gate.move(shut=False)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _quiet(self) -> None:
        """Returns when no request has been seen for a while."""
        since = self._loop.time()
        while self._loop.time() - since < _QUIET_SECONDS:
            if self._busy():
                since = self._loop.time()
            await asyncio.sleep(_LOOK_SECONDS)

    def _busy(self) -> bool:
        """Whether a request is in the server, or was since the last look."""
        models = self._repository.models()
        before, self._asked = self._asked, sum(model.asked for model in models)
        return self._asked != before or any(model.depth or model.running for model in models)
