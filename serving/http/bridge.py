"""An ASGI application behind our own connections, for the requests where speed does not matter.

ASGI is described in the ASGI HTTP specification 2.3.
"""

from __future__ import annotations

import logging
from typing import Any

from serving.http.answers import failure
from serving.http.request import BodyLimits, BodyTooLarge, EncodingRefused, Request
from serving.lanes.job import ClientGone, RequestTimedOut

log = logging.getLogger("preheat.http")

LOCAL = "preheat.local"  # in a scope's extensions: whether the client is on this host
LIMITS = BodyLimits(1 << 20, 30.0)  # nothing that goes this way has a large body


async def forward(application: Any, request: Request) -> None:
    """Answers a request with an ASGI application, which sees a body over ``LIMITS`` as an empty one."""
    try:
        body = request.read()
    except BodyTooLarge:
        body = b""  # a large tensor for a model that is not there should learn that, not how long a body may be
    except (EncodingRefused, RequestTimedOut) as error:
        answer = failure(error, "oip")
        request.respond(answer.status, answer.headers, answer.body)
        return
    except ClientGone:
        request.respond(400, ())  # to nobody
        return
    asgi_scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": request.version,
        "method": request.method,
        "scheme": "http",
        "path": request.path,
        "raw_path": request.path.encode(),
        "query_string": request.query.encode("latin-1"),
        "root_path": "",
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in request.headers.items()],
        "client": None,
        "extensions": {LOCAL: request.local},
        "server": None,
    }
    messages = [{"type": "http.request", "body": bytes(body), "more_body": False}]
    status = 500
    headers: tuple[tuple[str, str], ...] = ()
    parts: list[bytes] = []

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await request.gone()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status = message["status"]
            headers = tuple(
                (name.decode("latin-1"), value.decode("latin-1"))
                for name, value in message["headers"]
                if name != b"content-length"
            )
        elif message["type"] == "http.response.body":
            parts.append(message.get("body", b""))

    try:
        await application(asgi_scope, receive, send)
    except Exception:  # Starlette has sent its 500 and raises again, so that somebody writes it down
        log.exception("%s %s failed", request.method, request.path)
    try:
        request.respond(status, headers, b"".join(parts))
    except ValueError:  # a header that would break out of its line
        log.exception("%s %s failed", request.method, request.path)
        request.respond(500, (("content-type", "application/json"),), b'{"error":"the server failed on this request"}')
