"""The application of the serving port: inference by exact path, everything else by Starlette."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Any

from serving.http import bridge
from serving.http.answers import JSON
from serving.http.inference import Endpoint
from serving.http.routes import application
from serving.model import ServedModel
from serving.repository import Repository

_ENDING = [*JSON, ("retry-after", "1"), ("connection", "close")]

Call = Callable[[Any, Any], Awaitable[None]]


class Application:
    """An RSGI application over a repository of models."""

    def __init__(self, repository: Repository, executor: Executor) -> None:
        self._repository = repository
        self._executor = executor
        self._inference: dict[tuple[str, str], Call] = {}
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
        routes: dict[tuple[str, str], Call] = {}
        for model in models:
            endpoint = Endpoint(model, self._executor)
            for version in ("", f"/versions/{model.version}"):
                routes["POST", f"/v2/models/{model.name}{version}/infer"] = endpoint.infer
            for version in ("", f"/{model.version}"):
                for method in ("POST", "PUT"):
                    routes[method, f"/predictions/{model.name}{version}"] = endpoint.predict
        self._inference = routes

    async def __rsgi__(self, scope: Any, protocol: Any) -> None:
        self._in_flight += 1
        try:
            call = self._inference.get((scope.method, scope.path))
            if call is not None and self._refusing:
                protocol.response_bytes(503, _ENDING, b'{"error":"the server is stopping"}')
            elif call is not None:
                await call(scope, protocol)
            else:
                await bridge.forward(self._pages, scope, protocol)
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()
