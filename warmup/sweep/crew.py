"""The worker processes of one phase: at most one per model, started when its first shape comes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from handlers.loading import Model
from handlers.shapes import Shape
from warmup.stores.registry import settings_for, stores_for
from warmup.stores.store import Phase
from warmup.sweep.messages import Job, Ran
from warmup.sweep.process import WorkerProcess


class Crew:
    """Runs shapes of several models in one phase. ``stores`` says where the stores are now; ``loaded`` is told how many
    seconds a model took to load; ``verify``: a proof includes the outputs. ``started`` is told of every process, which
    then does not outlive the thread that this is used on."""

    def __init__(
        self,
        phase: Phase,
        stores: Callable[[], Path],
        logs: Path,
        loaded: Callable[[str, float], None],
        verify: bool = True,
        started: Callable[[WorkerProcess], None] | None = None,
    ) -> None:
        self.phase = phase
        self._verify = verify
        self._started = started
        self._stores = stores
        self._logs = logs
        self._loaded = loaded
        self._workers: dict[str, WorkerProcess] = {}

    def run(self, model: Model, shape: Shape, deadline: float | None = None) -> Ran | None:
        """Runs a shape; None where it is not done by ``deadline`` (of time.monotonic). Raises WorkerDied, WorkerFailed;
        after these and after None, the process of the model is of no more use, and ``kill`` must follow."""
        name = model.spec.name
        if name not in self._workers:
            worker = self._workers[name] = self._start(model)
            loaded = worker.loaded(deadline)
            if loaded is None:
                return None
            self._loaded(name, loaded.seconds)
        return self._workers[name].run(shape, deadline)

    def close(self, model: str) -> None:
        """Ends a model's process in good order, if there is one."""
        worker = self._workers.pop(model, None)
        if worker:
            worker.close()

    def kill(self) -> None:
        """Ends all processes and whatever they started."""
        while self._workers:
            self._workers.popitem()[1].kill()

    def _start(self, model: Model) -> WorkerProcess:
        root = self._stores()
        settings = settings_for(stores_for([model.spec]), self.phase, root)
        log = self._logs / f"{model.spec.name}-{self.phase.value}.log"
        job = Job(model.folder.absolute(), self.phase, root, self._verify, self._started is not None)
        worker = WorkerProcess(job, settings.environment, log)
        if self._started is not None:
            self._started(worker)
        return worker

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.kill()
        for model in tuple(self._workers):
            self.close(model)
