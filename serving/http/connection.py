"""One client's HTTP/1.1 connection: requests in, answers out, in order.

httptools (Node's llhttp) reads the heads and the framing of bodies. What is done here is what decides how fast tensors
arrive: a body of declared length that does not come with its head is received by the kernel straight into its own
memory, with the tensor in it where the processor wants it (``BodyLimits.aligned``); no parser and no join ever touches
it. ``benchmarks/overhead.py`` measures that beside other servers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any, Protocol
from urllib.parse import unquote

import httptools
import numpy as np
import orjson

from serving.http.request import BodyLimits, BodyTooLarge, EncodingRefused, Request, head
from serving.lanes.job import ClientGone, RequestTimedOut

log = logging.getLogger("preheat.http")

_HEAD_BYTES = 65536  # of a request line with its headers
_AHEAD = 8  # requests of one client that may wait behind the one that is being answered
_ALIGNMENT = 64  # bytes: a cache line, and the widest vector register
_JOINED_BYTES = 16384  # bodies of answers below this are sent with their head in one piece
_JSON = (("content-type", "application/json"),)

# Seconds. A state that lasts longer ends the connection, at the next look of the listener (``look``).
_HEAD_SECONDS = 30.0  # from the first byte of a head to its last
_IDLE_SECONDS = 75.0  # without a request: longer than load balancers keep theirs (60 s)
_STALLED_SECONDS = 60.0  # an answer of which the client takes nothing
_LINGER_SECONDS = 2.0  # after an answer to a request that was not read to its end

# Filled and emptied within one call of the event loop, so one serves all connections. Small, because what a large body
# has in it is copied twice; a head and a small body fit.
_scratch = memoryview(bytearray(16384))


class Application(Protocol):
    """What answers the requests."""

    def limits(self, request: Request) -> BodyLimits:
        """What to take as the body of a request of which only the head is there. Must not raise."""
        ...

    def __call__(self, request: Request) -> None:
        """Answers a request by one ``respond``, now or later; called once its body is there or will never be."""
        ...

    def answered(self) -> None:
        """Called after each answer."""
        ...


class Connection(asyncio.BufferedProtocol):
    """``connections`` is the set in which it is while it is open."""

    def __init__(self, application: Application, connections: set[Connection]) -> None:
        self._application = application
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._parser = httptools.HttpRequestParser(self)
        self._current: Request | None = None  # is being answered
        self._waiting: deque[Request] = deque()
        self._rejection: tuple[int, str] | None = None  # what ends the connection: not HTTP, or not within the limits
        self._ending = False  # takes no more requests
        self._handing_over = False
        self._stalled = False
        self._paused = False
        self._lingering = False
        self._since = self._loop.time()
        self.closed = self._loop.create_future()
        self._forget()

    def _forget(self) -> None:
        """No request is being received."""
        self._url = b""
        self._headers: dict[str, str] = {}
        self._head_bytes = 0
        self._request: Request | None = None  # the head is there, the body is not
        self._limits: BodyLimits | None = None  # None where there is no body to come
        self._parts: list[bytes] = []
        self._size = 0
        self._body: memoryview | None = None  # which the kernel fills
        self._timer: asyncio.TimerHandle | None = None

    # What the event loop calls.

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._connections.add(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _scratch if self._body is None else self._body[self._size :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._body is None:
            self._feed(_scratch[:nbytes])
            return
        self._size += nbytes
        if self._size == len(self._body):
            self._complete(self._body.toreadonly())

    def eof_received(self) -> None:
        """A client that has ended its side counts as gone: nothing tells it from one that has hung up."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._waiting.clear()
        if self._current is not None:
            self._current.hang_up()
        elif self._request is not None:
            self._refuse(ClientGone("the client has hung up in the middle of its body"))
        if self._timer is not None:
            self._timer.cancel()
        self._ending = True
        self.closed.set_result(None)

    def pause_writing(self) -> None:
        self._stalled = True
        self._since = self._loop.time()

    def resume_writing(self) -> None:
        self._stalled = False
        self._next()

    # What the parser calls.

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        headers = self._headers
        headers[key] = f"{headers[key]}, {text}" if key in headers else text

    def on_headers_complete(self) -> None:
        parser, headers = self._parser, self._headers
        if self._head_bytes > _HEAD_BYTES and not self._ending:  # with what there is of a body: look closer
            self._head_bytes = len(self._url) + sum(len(name) + len(value) for name, value in headers.items())
            self._limit_head()
        if self._ending:
            return
        path, _, query = _origin_form(self._url).partition("?")
        request = self._request = Request(
            self,
            parser.get_method().decode("latin-1"),
            unquote(path) if "%" in path else path,
            query,
            headers,
            parser.get_http_version(),
            parser.should_keep_alive(),
        )
        self._head_bytes = 0
        length = int(headers.get("content-length", 0))
        if not length and "transfer-encoding" not in headers:
            return
        limits = self._limits = self._application.limits(request)
        encoding = headers.get("content-encoding", "identity")
        if encoding != "identity":
            self._refuse(EncodingRefused(f"content-encoding {encoding!r} is not supported; send the body as it is"))
        elif length > limits.most:  # the parser believes a declared length, so it is looked at before the body
            self._refuse(BodyTooLarge(f"the body has {length} bytes, at most {limits.most} are allowed"))
        elif headers.get("expect", "").lower() == "100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, part: bytes) -> None:
        if self._limits is None:  # refused already
            return
        self._parts.append(part)
        self._size += len(part)
        most = self._limits.most
        if self._size > most:
            self._refuse(BodyTooLarge(f"the body has more than {most} bytes, at most {most} are allowed"))

    def on_message_complete(self) -> None:
        if self._request is not None:
            self._complete(self._parts[0] if len(self._parts) == 1 else b"".join(self._parts))

    # Receiving.

    def _feed(self, data: memoryview) -> None:
        if self._ending:
            return  # what follows the last request is nobody's
        if self._request is None:
            if not self._head_bytes:
                self._since = self._loop.time()
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._ending = True  # there is nothing to upgrade to, and what follows the request is not HTTP/1.1
        except httptools.HttpParserCallbackError:
            raise  # a fault of ours
        except httptools.HttpParserError as error:
            self._reject(400, f"not HTTP/1.1: {error}")
            return
        if self._request is None:
            self._limit_head()
        elif self._limits is not None and self._timer is None:
            self._timer = self._loop.call_later(self._limits.seconds, self._late)
            declared = self._request.headers.get("content-length")
            if declared is not None:
                self._receive_directly(int(declared), self._limits)

    def _limit_head(self) -> None:
        if self._head_bytes > _HEAD_BYTES:
            self._reject(431, f"the request line and headers have more than {_HEAD_BYTES} bytes")

    def _receive_directly(self, length: int, limits: BodyLimits) -> None:
        """Has the kernel fill the body from here on. The parser, which would want to see it, is left behind."""
        room = limits.room(length + _ALIGNMENT) if limits.room is not None else None
        spare = np.empty(length + _ALIGNMENT, np.uint8) if room is None else np.frombuffer(room, np.uint8)
        start = -(spare.ctypes.data + limits.aligned) % _ALIGNMENT
        body = spare.data[start : start + length]
        body[: self._size] = b"".join(self._parts)
        self._parts = []
        self._body = body
        self._parser = httptools.HttpRequestParser(self)

    def _late(self) -> None:
        assert self._limits is not None
        self._refuse(RequestTimedOut(f"the body was not there within {self._limits.seconds:g} s"))

    def _refuse(self, fault: Exception) -> None:
        """Has the request answered without its body, the rest of which is not read."""
        assert self._request is not None
        self._request.fault = fault
        self._complete(b"")

    def _complete(self, body: bytes | memoryview) -> None:
        """Hands over the request that is being received."""
        request = self._request
        assert request is not None
        if self._timer is not None:
            self._timer.cancel()
        self._forget()
        request.body = body
        self._ending = request.fault is not None or not request.keep_alive
        self._waiting.append(request)
        if self._current is not None and len(self._waiting) >= _AHEAD and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._next()

    def _reject(self, status: int, why: str) -> None:
        """Ends the connection, with a word on why once nothing is owed to earlier requests."""
        if self._request is not None:
            self._refuse(ClientGone(f"the body cannot be read: {why}"))
        elif not self._ending:
            self._ending = True
            self._rejection = (status, why)
            self._next()

    # Answering.

    def _next(self) -> None:
        """Hands the requests over that wait, one after the other as they are answered."""
        if self._handing_over:  # an answer has come at once
            return
        self._handing_over = True
        while self._waiting and self._current is None and not self._stalled:
            request = self._current = self._waiting.popleft()
            if self._paused:
                self._paused = False
                self._transport.resume_reading()
            try:
                self._application(request)
            except Exception:
                log.exception("%s %s failed", request.method, request.path)
                if self._current is request:
                    request.respond(500, _JSON, b'{"error":"the server failed on this request"}')
        self._handing_over = False
        if self._rejection is not None and self._current is None and not self._stalled:
            (status, why), self._rejection = self._rejection, None
            body = orjson.dumps({"error": why})
            self._transport.write(head(status, _JSON, len(body), "close") + body)
            self._end(read=False)

    def send(self, request: Request, head: bytes, body: bytes | memoryview, close: bool) -> None:
        """See ``Sender``."""
        if request is not self._current:
            raise RuntimeError(f"{request.method} {request.path} is answered twice")
        self._current = None
        self._application.answered()
        transport = self._transport
        if transport.is_closing():
            return
        if len(body) < _JOINED_BYTES:
            transport.write(head + body)
        else:
            transport.writelines((head, body))
        self._since = self._loop.time()
        if close:
            self._end(read=request.fault is None)
        elif self._waiting or self._rejection is not None:
            self._next()

    def _end(self, read: bool) -> None:
        """Closes once everything is sent; ``read`` where the client has sent nothing that was not read."""
        if read or not self._transport.can_write_eof():
            self._transport.close()
            return
        # To close with bytes unread would reset the connection, and the answer could be lost with it.
        self._lingering = True
        self._transport.write_eof()

    # What the listener calls.

    def look(self, now: float) -> None:
        """Ends what has lasted too long; ``now`` is the event loop's time."""
        since = now - self._since
        if self._lingering:
            late = since > _LINGER_SECONDS
        elif self._stalled:
            late = since > _STALLED_SECONDS
        elif self._current is not None or self._request is not None:
            late = False  # requests and bodies have time limits of their own
        elif self._head_bytes:
            if since > _HEAD_SECONDS:
                self._reject(408, f"the headers were not there within {_HEAD_SECONDS:g} s")
            return
        else:
            late = since > _IDLE_SECONDS
        if late:
            self._transport.abort() if self._stalled else self._transport.close()

    def shut(self) -> None:
        """Takes no more requests, and closes once what was taken is answered."""
        self._ending = True
        if self._current is None:
            self._transport.close()
        else:
            self._current.keep_alive = False

    def abort(self) -> None:
        """Closes at once."""
        self._transport.abort()


def _origin_form(target: bytes) -> str:
    """The path and query of a request target; the absolute form has to be taken too (RFC 9112, 3.2.2)."""
    if not target.startswith(b"/") and b"://" in target:
        url = httptools.parse_url(target)
        query = b"?" + url.query if url.query is not None else b""
        target = (url.path or b"/") + query
    return target.decode("latin-1")
