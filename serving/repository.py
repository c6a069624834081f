"""The models of one server process, the bundle they come from, and whether the server is ready."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from serving.barrier import Barrier
from serving.metrics.metrics import Metrics
from serving.model import ServedModel
from serving.steps import in_steps


class ModelNotFound(Exception):
    """No model of that name, or not in that version (HTTP 404)."""


class VersionNotFound(ModelNotFound):
    """A model of that name, but not in that version."""


@dataclass(frozen=True)
class BundleFacts:
    """What a client or an operator may know of the bundle served: its digest, why it is trusted, its identity."""

    digest: str
    trusted: str
    identity: dict[str, str]


class Repository:
    """The served models by name. Used on the event loop only."""

    def __init__(self, metrics: Metrics, bundle: BundleFacts | None = None, barrier: Barrier | None = None) -> None:
        self.metrics = metrics
        self._barrier = barrier or Barrier()
        self.bundle = bundle
        self.draining = False
        self._models: dict[str, ServedModel] = {}
        self._listeners: list[Callable[[tuple[ServedModel, ...]], None]] = []
        self._starts: set[asyncio.Task[None]] = set()

    def on_change(self, listener: Callable[[tuple[ServedModel, ...]], None]) -> None:
        """Calls ``listener`` with all models now and whenever one comes or goes."""
        self._listeners.append(listener)
        listener(self.models())

    def models(self) -> tuple[ServedModel, ...]:
        return tuple(self._models.values())

    def get(self, name: str, version: str | None = None) -> ServedModel:
        """The model of that name; raises ModelNotFound where there is none, VersionNotFound where it is another."""
        model = self._models.get(name)
        if model is None:
            raise ModelNotFound(f"no model {name!r}; served: {', '.join(self._models) or 'none'}")
        if version is not None and version != model.version:
            raise VersionNotFound(f"model {name!r} has no version {version!r}; served: {model.version}")
        return model

    @property
    def ready(self) -> bool:
        """Whether traffic should come: at least one model, every model warm here and in the processes that share the
        port, and no shutdown under way."""
        return not self.draining and self.warm and self._barrier.arrive()

    @property
    def warm(self) -> bool:
        """Whether there are models and every one is ready in this process."""
        return bool(self._models) and all(model.ready for model in self._models.values())

    def why_not_ready(self) -> dict[str, Any]:
        """What is missing, by model."""
        waiting = {
            model.name: {"state": model.state.value, "coverage": round(model.coverage, 6), "error": model.error}
            for model in self._models.values()
            if not model.ready
        }
        return {"ready": self.ready, "draining": self.draining, "models": waiting}

    def add(self, model: ServedModel) -> asyncio.Task[None]:
        """Takes in a model and starts it; the task ends when it is ready or has failed."""
        self._models[model.name] = model
        self._changed()
        task = asyncio.get_running_loop().create_task(model.start(), name=f"start {model.name}")
        self._starts.add(task)
        task.add_done_callback(self._starts.discard)
        return task

    async def remove(self, name: str) -> None:
        """Stops serving a model: no new requests, those on their way are answered. Raises ModelNotFound."""
        model = self.get(name)
        del self._models[name]
        self._changed()
        await model.stop()

    async def stop(self, patience: float | None = None) -> None:
        """Stops all models; the requests on their way are answered, unless that takes over ``patience`` seconds."""
        await asyncio.gather(*(model.stop(patience) for model in self._models.values()))
        await self.flush_metrics()

    async def flush_metrics(self) -> None:
        """Brings every metric up to date, and lets requests be answered meanwhile."""
        for model in self.models():
            await in_steps(model.flush_metrics())
        self.metrics.ready.set(1 if self.ready else 0)

    def _changed(self) -> None:
        models = self.models()
        for listener in self._listeners:
            listener(models)
