"""The application of the serving port: inference by exact path, everything else by Starlette."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import NamedTuple

from serving.http import bridge
from serving.http.answers import JSON
from serving.http.inference import Endpoint
from serving.http.request import BodyLimits, Request
from serving.http.routes import application
from serving.http.sharedmemory import Regions
from serving.http.tasks import Tasks
from serving.model import ServedModel
from serving.repository import Repository

_ENDING = (*JSON, ("retry-after", "1"))


class _Route(NamedTuple):
    endpoint: Endpoint
    answer: Callable[[Request], None]


class Application:
    """Answers for a repository of models."""

    def __init__(self, repository: Repository, executor: Executor, allow_client_shm: bool = False) -> None:
        """``allow_client_shm``: clients on the same host may have tensors in shared memory."""
        self._regions = Regions(repository.models) if allow_client_shm else None
        self._repository = repository
        self._executor = executor
        self._routes: dict[tuple[str, str], _Route] = {}  # by method and path
        self._pages = application(repository, self._regions)
        self._in_flight: set[Request] = set()  # requests that run a model
        self._refusing = False
        self._idle = asyncio.Event()
        self._tasks = Tasks()
        repository.on_change(self._route)

    def refuse(self) -> None:
        """Takes no inference requests any more: the server is about to end."""
        self._refusing = True

    async def idle(self) -> None:
        """Waits until no request runs a model; scrapes and pages hold up no end."""
        while self._in_flight:
            self._idle.clear()
            await self._idle.wait()

    def _route(self, models: tuple[ServedModel, ...]) -> None:
        routes: dict[tuple[str, str], _Route] = {}
        known = {route.endpoint.model: route.endpoint for route in self._routes.values()}
        for model in models:
            endpoint = known.get(model) or self._endpoint(model)
            infer, predict = _Route(endpoint, endpoint.infer), _Route(endpoint, self._predicting(endpoint))
            for version in ("", f"/versions/{model.version}"):
                routes["POST", f"/v2/models/{model.name}{version}/infer"] = infer
            for version in ("", f"/{model.version}"):
                for method in ("POST", "PUT"):
                    routes[method, f"/predictions/{model.name}{version}"] = predict
        self._routes = routes

    def _endpoint(self, model: ServedModel) -> Endpoint:
        if self._regions is not None:
            self._tasks.begin(self._regions.map_into(model))
        return Endpoint(model, self._executor, self._regions)

    def _predicting(self, endpoint: Endpoint) -> Callable[[Request], None]:
        return lambda request: self._tasks.begin(endpoint.predict(request))

    def limits(self, request: Request) -> BodyLimits:
        """See ``serving.http.connection.Application``."""
        route = self._routes.get((request.method, request.path))
        return route.endpoint.limits(request) if route is not None else bridge.LIMITS

    def __call__(self, request: Request) -> None:
        route = self._routes.get((request.method, request.path))
        if route is None:
            self._tasks.begin(bridge.forward(self._pages, request))
        elif self._refusing:
            request.keep_alive = False
            request.respond(503, _ENDING, b'{"error":"the server is stopping"}')
        else:
            self._in_flight.add(request)
            route.answer(request)

    def answered(self, request: Request) -> None:
        """See ``serving.http.connection.Application``."""
        self._in_flight.discard(request)
        if not self._in_flight:
            self._idle.set()
