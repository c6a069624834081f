"""One server process: models, the serving port, the port for state changes, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from handlers.errors import ModelError
from handlers.loading import load_handler
from handlers.sources import model_digest
from serving.barrier import Barrier
from serving.beside import ProcessEnded
from serving.cores import usable_cores
from serving.heap import keep_memory
from serving.http.admin import AdminApplication
from serving.http.app import Application
from serving.http.bodies import body_threads
from serving.learning import Learner
from serving.listener import HttpServer
from serving.metrics.devices import DeviceGauges
from serving.metrics.metrics import Metrics
from serving.model import Served, ServedModel
from serving.prepare import Prepared
from serving.repository import BundleFacts, Repository
from serving.storewatch import StoreWatcher
from warmup.sweep.learn import admit

log = logging.getLogger("preheat")

_FLUSH_SECONDS = 1.0  # how old the metrics of another process may be when one process answers for all
_FIRST = asyncio.FIRST_COMPLETED
_WATCH_SECONDS = 5.0  # between looks at the stores


@dataclass(frozen=True)
class Drain:
    """How a server ends: how long it goes on taking requests after readiness is off, and how long it then waits for
    those on their way, in seconds."""

    linger: float = 0.0
    patience: float = 30.0


class Server:
    """Serves prepared models until it is told to stop."""

    def __init__(
        self,
        prepared: Prepared,
        bound: socket.socket,
        admin: socket.socket | None,
        token: str,
        drain: Drain,
        late: bool = False,
        allow_client_shm: bool = False,
    ) -> None:
        """``late``: listen only when the models have started, for a process that takes the place of a dead one.
        ``allow_client_shm``: see ``Application``."""
        self._late = late
        self._allow_client_shm = allow_client_shm
        self._prepared = prepared
        self._bound = bound
        self._admin_bound = admin
        self._token = token
        self._drain = drain
        self._stop = asyncio.Event()
        self._stores_in_use = asyncio.Lock()
        self._watcher = StoreWatcher([store.name for store in prepared.stores], prepared.root)

    def stop(self) -> None:
        """Begins the orderly end."""
        self._stop.set()

    async def run(self, started: Callable[[int, int | None], None]) -> None:
        """Serves until it is told to stop; calls ``started`` with the ports as soon as they answer."""
        keep_memory()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        metrics = Metrics()
        repository = Repository(metrics, self._prepared.bundle, Barrier.of_this_process())
        if self._prepared.bundle is not None:
            _describe(self._prepared.bundle, metrics)
        executor = ThreadPoolExecutor(max_workers=4, thread_name_prefix="handler")
        application = Application(repository, executor, self._allow_client_shm)
        server = HttpServer(application, self._bound, body_threads(usable_cores()))
        servers = [server]
        if self._admin_bound is not None:
            opener = {served.spec.name: served for served in self._prepared.served}
            admin = AdminApplication(repository, lambda name: self._reopen(opener[name], metrics), self._token)
            servers.append(HttpServer(admin, self._admin_bound))
        starts = [repository.add(self._open(served, metrics)) for served in self._prepared.served]
        if self._late:  # others answer on this port already: what comes here before all is warm would be turned away
            await asyncio.wait([loop.create_task(self._stop.wait()), asyncio.gather(*starts)], return_when=_FIRST)
        for one in servers:
            await one.start()
        started(server.port, servers[1].port if len(servers) > 1 else None)
        background = [
            loop.create_task(self._flush(repository)),
            loop.create_task(self._watch(repository, metrics, starts)),
            loop.create_task(_watch_devices(metrics)),
        ]
        learning = self._learn(repository)
        if learning is not None:
            background.append(learning)
        await self._stop.wait()
        log.info("draining")
        repository.draining = True
        await asyncio.sleep(self._drain.linger)
        application.refuse()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(application.idle(), self._drain.patience)
        for task in background:
            task.cancel()
        await asyncio.wait(background)  # the processes of the learner end first
        await self._watcher.close()
        await repository.stop(self._drain.patience)
        for one in servers:
            await one.close()
        await metrics.close()
        executor.shutdown(wait=False, cancel_futures=True)

    def _reopen(self, served: Served, metrics: Metrics) -> ServedModel:
        """Raises ModelError where the model's files are no longer those that were proven."""
        if served.digest and served.digest != f"sha256:{model_digest(served.spec, served.folder)}":
            raise ModelError(f"the files of {served.spec.name!r} have changed since they were proven: warm them again")
        return self._open(served, metrics)

    def _open(self, served: Served, metrics: Metrics) -> ServedModel:
        return ServedModel(served, load_handler(served.spec, served.folder), metrics, self._prepared.settings.framework)

    def _learn(self, repository: Repository) -> asyncio.Task[None] | None:
        """The task that learns shapes, where a model wants that and there is a proof to add to."""
        served = {one.spec.name: one for one in self._prepared.served if one.spec.learn and one.proof is not None}
        if not served:
            return None
        place = self._prepared.root.parent / "learning"
        learner = Learner(repository, served, self._prepared.stores, self._prepared.root, place, self._admit)
        return asyncio.get_running_loop().create_task(learner.run(), name="learner")

    async def _admit(self, learnt: Path) -> None:
        """Adds stores to those that are served from; what they add is no miss."""
        async with self._stores_in_use:
            added = await asyncio.to_thread(admit, learnt, self._prepared.root, self._prepared.stores)
            with contextlib.suppress(ProcessEnded):  # the next one finds them there
                await self._watcher.accept(added)

    async def _flush(self, repository: Repository) -> None:
        while True:
            try:
                await repository.flush_metrics()
            except Exception:  # one fault must not end all counting
                log.exception("metrics could not be counted")
            await asyncio.sleep(_FLUSH_SECONDS)

    async def _watch(self, repository: Repository, metrics: Metrics, starts: list[asyncio.Task[None]]) -> None:
        """Counts what appears in the stores after the models are ready: each is a miss that somebody paid for."""
        if not self._prepared.stores:
            return
        for store in self._prepared.stores:
            metrics.store_new_entries.labels(store.name)
        with contextlib.suppress(ProcessEnded):  # as the first look will tell
            await self._watcher.start()
        await asyncio.wait(starts)
        while True:
            try:
                async with self._stores_in_use:
                    looks = await self._watcher.look()
            except ProcessEnded as error:
                log.error("the stores were not looked at, what appeared since the last look is not counted: %s", error)
                looks = {}
            for store, look in looks.items():
                metrics.store_entries.labels(store).set(look.total)
                metrics.store_new_entries.labels(store).inc(len(look.new))
                for key in look.new:
                    log.warning("a miss after ready: %s has a new entry %s", store, key)
            await asyncio.sleep(_WATCH_SECONDS)


async def _watch_devices(metrics: Metrics) -> None:
    """Keeps the gauges of the accelerators up to date, where there are any."""
    gauges = await asyncio.to_thread(DeviceGauges, metrics)
    while gauges.present:
        await asyncio.to_thread(gauges.look)
        await asyncio.sleep(_WATCH_SECONDS)


def _describe(bundle: BundleFacts, metrics: Metrics) -> None:
    """Sets the info metric of the bundle."""
    identity = bundle.identity
    versions = " ".join(f"{name}={identity[name]}" for name in ("rocm", "torch", "onnxruntime") if name in identity)
    arch = identity.get("gpu_arch", identity.get("machine", ""))
    metrics.bundle_info.labels(bundle.digest, arch, identity.get("gpu_compute_units", ""), versions).set(1)
