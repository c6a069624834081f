"""The least that an ASGI application can do: read the body, answer a constant. Nothing is decoded."""

from __future__ import annotations

import sys

import uvicorn

BODY = b'{"outputs":[{"name":"y","shape":[1,1],"datatype":"FP32","data":[0.0]}]}'
HEADERS = [(b"content-type", b"application/json"), (b"content-length", str(len(BODY)).encode())]


async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    more = True
    while more:
        more = (await receive()).get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": BODY})


if __name__ == "__main__":
    uvicorn.run(
        app, host="127.0.0.1", port=int(sys.argv[1]), loop="uvloop", http="httptools", access_log=False, lifespan="off"
    )
