"""The application of the serving port: inference by exact path, everything else by Starlette."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor

from serving.http import bridge
from serving.http.answers import JSON
from serving.http.inference import Endpoint
from serving.http.request import BodyLimits, Request
from serving.http.routes import application
from serving.model import ServedModel
from serving.repository import Repository

_ENDING = (*JSON, ("retry-after", "1"))

Call = Callable[[Request], Awaitable[None]]


class Application:
    """Answers for a repository of models."""

    def __init__(self, repository: Repository, executor: Executor) -> None:
        self._repository = repository
        self._executor = executor
        self._inference: dict[tuple[str, str], tuple[Endpoint, Call]] = {}
        self._pages = application(repository)
        repository.on_change(self._route)
        self._in_flight = 0
        self._refusing = False
        self._idle = asyncio.Event()

    def refuse(self) -> None:
        """Takes no inference requests any more: the server is about to end."""
        self._refusing = True

    async def idle(self) -> None:
        """Waits until no request is being answered."""
        while self._in_flight:
            self._idle.clear()
            await self._idle.wait()

    def _route(self, models: tuple[ServedModel, ...]) -> None:
        routes: dict[tuple[str, str], tuple[Endpoint, Call]] = {}
        for model in models:
            endpoint = Endpoint(model, self._executor)
            for version in ("", f"/versions/{model.version}"):
                routes["POST", f"/v2/models/{model.name}{version}/infer"] = endpoint, endpoint.infer
            for version in ("", f"/{model.version}"):
                for method in ("POST", "PUT"):
                    routes[method, f"/predictions/{model.name}{version}"] = endpoint, endpoint.predict
        self._inference = routes

    def limits(self, request: Request) -> BodyLimits:
        """See ``serving.http.connection.Application``."""
        route = self._inference.get((request.method, request.path))
        return route[0].limits(request) if route is not None else bridge.LIMITS

    async def __call__(self, request: Request) -> None:
        self._in_flight += 1
        try:
            route = self._inference.get((request.method, request.path))
            if route is None:
                await bridge.forward(self._pages, request)
            elif self._refusing:
                request.keep_alive = False
                request.respond(503, _ENDING, b'{"error":"the server is stopping"}')
            else:
                await route[1](request)
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()
