"""The application of the serving port: inference by exact path, everything else by Starlette."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Executor
from typing import Any

from serving.http import bridge
from serving.http.answers import JSON
from serving.http.inference import Endpoint
from serving.http.request import BodyLimits, Request
from serving.http.routes import application
from serving.model import ServedModel
from serving.repository import Repository

_ENDING = (*JSON, ("retry-after", "1"))


class Application:
    """Answers for a repository of models."""

    def __init__(self, repository: Repository, executor: Executor) -> None:
        self._repository = repository
        self._executor = executor
        self._infer: dict[tuple[str, str], Endpoint] = {}  # by method and path
        self._predict: dict[tuple[str, str], Endpoint] = {}
        self._pages = application(repository)
        repository.on_change(self._route)
        self._in_flight = 0
        self._refusing = False
        self._idle = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def refuse(self) -> None:
        """Takes no inference requests any more: the server is about to end."""
        self._refusing = True

    async def idle(self) -> None:
        """Waits until no request is being answered."""
        while self._in_flight:
            self._idle.clear()
            await self._idle.wait()

    def _route(self, models: tuple[ServedModel, ...]) -> None:
        infer: dict[tuple[str, str], Endpoint] = {}
        predict: dict[tuple[str, str], Endpoint] = {}
        for model in models:
            endpoint = Endpoint(model, self._executor)
            for version in ("", f"/versions/{model.version}"):
                infer["POST", f"/v2/models/{model.name}{version}/infer"] = endpoint
            for version in ("", f"/{model.version}"):
                for method in ("POST", "PUT"):
                    predict[method, f"/predictions/{model.name}{version}"] = endpoint
        self._infer, self._predict = infer, predict

    def limits(self, request: Request) -> BodyLimits:
        """See ``serving.http.connection.Application``."""
        asked = request.method, request.path
        endpoint = self._infer.get(asked) or self._predict.get(asked)
        return endpoint.limits(request) if endpoint is not None else bridge.LIMITS

    def __call__(self, request: Request) -> None:
        self._in_flight += 1
        asked = request.method, request.path
        endpoint = self._infer.get(asked) or self._predict.get(asked)
        if endpoint is None:
            self._begin(bridge.forward(self._pages, request))
        elif self._refusing:
            request.keep_alive = False
            request.respond(503, _ENDING, b'{"error":"the server is stopping"}')
        elif asked in self._infer:
            endpoint.infer(request)
        else:
            self._begin(endpoint.predict(request))

    def _begin(self, answering: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(answering)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def answered(self) -> None:
        """See ``serving.http.connection.Application``."""
        self._in_flight -= 1
        if not self._in_flight:
            self._idle.set()
