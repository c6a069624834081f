"""Registering shared memory: Triton's "system shared memory" extension over REST."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from handlers.errors import InvalidInput
from serving.http.bridge import LOCAL
from serving.http.sharedmemory import Regions, allowed

_ROOT = "/v2/systemsharedmemory"
_REGION = f"{_ROOT}/region/{{name}}"


class _Register(msgspec.Struct):
    key: str
    byte_size: int
    offset: int = 0


_decoder = msgspec.json.Decoder(_Register)


def shared_memory_routes(regions: Regions | None) -> list[Route]:
    """The extension's endpoints; without ``regions`` each says that clients share no memory with this server. Only
    clients on the same host may use them: a region is any object of shared memory that this process may open."""

    def known(request: Request) -> Regions:
        return allowed(regions, bool(request.scope.get("extensions", {}).get(LOCAL)))

    async def register(request: Request) -> Response:
        found = known(request)
        try:
            asked = _decoder.decode(await request.body())
        except msgspec.DecodeError as error:
            raise InvalidInput(f"shared memory: {error}") from None
        except RecursionError:
            raise InvalidInput("shared memory: nested too deep") from None
        if asked.byte_size < 1 or asked.offset < 0:
            raise InvalidInput("shared memory: byte_size must be 1 or more, offset 0 or more")
        await found.register(request.path_params["name"], asked.key, asked.offset, asked.byte_size)
        return JSONResponse({})

    async def unregister(request: Request) -> Response:
        await known(request).unregister(request.path_params.get("name"))
        return JSONResponse({})

    async def status(request: Request) -> Response:
        return JSONResponse(known(request).status(request.path_params.get("name")))

    return [
        Route(f"{_ROOT}/status", status),
        Route(f"{_REGION}/status", status),
        Route(f"{_REGION}/register", register, methods=["POST"]),
        Route(f"{_REGION}/unregister", unregister, methods=["POST"]),
        Route(f"{_ROOT}/unregister", unregister, methods=["POST"]),
    ]
