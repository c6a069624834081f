"""An ASGI application behind an RSGI server, for the requests where speed does not matter.

RSGI and ASGI are described in Granian's docs/spec/RSGI.md and in the ASGI HTTP specification 2.3.
"""

from __future__ import annotations

import logging
from typing import Any

from serving.http.answers import BodyTooLarge, EncodingRefused, failure
from serving.http.body import read
from serving.lanes.job import ClientGone

log = logging.getLogger("preheat.http")

MAX_BODY = 1 << 20  # bytes; nothing that goes this way has a large body


async def forward(application: Any, scope: Any, protocol: Any) -> None:
    """Answers one RSGI request with an ASGI application, which sees a body over ``MAX_BODY`` as an empty one."""
    try:
        body = await read(scope, protocol, MAX_BODY)
    except BodyTooLarge:
        body = b""  # a large tensor for a model that is not there should learn that, not how long a body may be
    except EncodingRefused as error:
        answer = failure(error, "oip")
        protocol.response_bytes(answer.status, answer.headers, answer.body)
        return
    except ClientGone:
        return
    host, _, port = scope.client.rpartition(":")
    asgi_scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": scope.http_version.removeprefix("HTTP/"),
        "method": scope.method,
        "scheme": scope.scheme,
        "path": scope.path,
        "raw_path": scope.path.encode(),
        "query_string": scope.query_string.encode(),
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in scope.headers.items()],
        "client": (host, int(port)) if port.isdigit() else None,
        "server": None,
    }
    messages = [{"type": "http.request", "body": body, "more_body": False}]
    status = 500
    headers: list[tuple[str, str]] = []
    parts: list[bytes] = []

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await protocol.client_disconnect()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status = message["status"]
            headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in message["headers"]]
        elif message["type"] == "http.response.body":
            parts.append(message.get("body", b""))

    try:
        await application(asgi_scope, receive, send)
    except Exception:  # Starlette has sent its 500 and raises again, so that somebody writes it down
        log.exception("%s %s failed", scope.method, scope.path)
    protocol.response_bytes(status, headers, b"".join(parts))
