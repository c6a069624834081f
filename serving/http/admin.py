"""The second port: everything that changes the server's state, for holders of the token only.

The repository calls are those of the Open Inference Protocol's model repository extension.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from handlers.errors import ModelError
from handlers.shapes import Shape, ShapeError
from serving.http import bridge
from serving.http.answers import EXPECTED, JSON, failure
from serving.http.request import BodyLimits
from serving.http.request import Request as HttpRequest
from serving.http.tasks import Tasks
from serving.model import ServedModel
from serving.repository import ModelNotFound, Repository
from warmup.plan import mismatch


class AdminApplication:
    """Loads, unloads and warms models; ``open_model`` raises KeyError on an unknown name."""

    def __init__(self, repository: Repository, open_model: Callable[[str], ServedModel], token: str) -> None:
        self._repository = repository
        self._open_model = open_model
        self._token = token.encode()
        self._tasks = Tasks()
        self._changing = asyncio.Lock()  # one change of the set of models at a time
        self._pages = Starlette(
            routes=[
                Route("/v2/repository/index", self._index, methods=["POST"]),
                Route("/v2/repository/models/{model}/load", self._load, methods=["POST"]),
                Route("/v2/repository/models/{model}/unload", self._unload, methods=["POST"]),
                Route("/v2/models/{model}/warm", self._warm, methods=["POST"]),
            ],
            exception_handlers=dict.fromkeys((*EXPECTED, ModelNotFound), _expected),
        )

    def limits(self, request: HttpRequest) -> BodyLimits:
        return bridge.LIMITS

    def answered(self, request: HttpRequest) -> None:
        """Nobody waits for the last change."""

    def __call__(self, request: HttpRequest) -> None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self._token):
            headers = (*JSON, ("www-authenticate", "Bearer"))
            request.respond(401, headers, b'{"error":"this port needs the admin token as a bearer token"}')
            return
        self._tasks.begin(bridge.forward(self._pages, request))

    async def _index(self, request: Request) -> Response:
        return _json(
            [
                {"name": model.name, "version": model.version, "state": model.state.value, "reason": model.error}
                for model in self._repository.models()
            ]
        )

    async def _load(self, request: Request) -> Response:
        name = request.path_params["model"]
        try:
            model = self._open_model(name)
        except KeyError:
            return _json({"error": f"no model {name!r} among those that this server was started with"}, 404)
        except ModelError as error:
            return _json({"error": str(error)}, 400)
        async with self._changing:
            if any(served.name == name for served in self._repository.models()):
                await self._repository.remove(name)
            await self._repository.add(model)
        return _json({"name": name, "state": model.state.value, "reason": model.error}, 200 if model.ready else 503)

    async def _unload(self, request: Request) -> Response:
        async with self._changing:
            await self._repository.remove(request.path_params["model"])
        return _json({"name": request.path_params["model"], "state": "unloaded"})

    async def _warm(self, request: Request) -> Response:
        model = self._repository.get(request.path_params["model"])
        try:
            shape = Shape.parse(str(orjson.loads(await request.body())["shape"]))
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return _json({"error": 'expected {"shape": "NAME=DIMxDIM:DTYPE"}'}, 400)
        except ShapeError as error:
            return _json({"error": str(error)}, 400)
        problem = mismatch(model.spec, shape)
        if problem:
            return _json({"error": f"{shape}: {problem}"}, 400)
        size = sum(tensor.elements * tensor.numpy_dtype.itemsize for tensor in shape)
        if size > model.spec.limits.request_bytes:
            return _json(
                {"error": f"{shape} has {size} bytes; no request has over {model.spec.limits.request_bytes}"}, 400
            )
        if model.spec.engine.dynamic_shapes:  # requests would wait for what it compiles
            why = f"{model.name}: a plan with dynamic_shapes is proven as a whole; sweep a longer one"
            return _json({"error": why}, 409)
        await model.warm_now(shape)
        return _json({"name": model.name, "shape": shape.text, "warm": shape in model.warm})


async def _expected(request: Request, error: Exception) -> Response:
    answer = failure(error, "oip")
    return Response(answer.body, answer.status, dict(answer.headers))


def _json(document: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(document), status, media_type="application/json")
