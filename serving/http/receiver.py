"""What a client sends, as requests.

httptools (Node's llhttp) reads the heads and the framing of bodies. What is done here is what decides how fast tensors
arrive: a body of declared length that does not come with its head is received by the kernel straight into its own
memory, with the tensor in it where the processor wants it (``BodyLimits.aligned``); no parser and no join ever touches
it. ``benchmarks/overhead.py`` measures that beside other servers.
"""

from __future__ import annotations

import asyncio
from typing import Protocol
from urllib.parse import unquote

import httptools
import numpy as np

from serving.http.bodies import APART_BYTES
from serving.http.request import BodyLimits, BodyTooLarge, EncodingRefused, Request, Sender
from serving.lanes.job import ClientGone, RequestTimedOut

HEAD_BYTES = 65536  # of a request line with its headers, and of what is neither chunk nor its size in a chunked body
_CHUNK_BYTES = 16  # of a chunk's size and line breaks
_ALIGNMENT = 64  # bytes: a cache line, and the widest vector register

# Filled and emptied within one call of the event loop, so one serves all connections. Small, because what a large body
# has in it is copied twice; a head and a small body fit.
_scratch = memoryview(bytearray(16384))


class Owner(Sender, Protocol):
    """The connection on which everything comes."""

    def limits(self, request: Request) -> BodyLimits:
        """What to take as the body of a request of which only the head is there."""
        ...

    def proceed(self) -> None:
        """Tells the client, which waits for that, to send the body."""
        ...

    def read_apart(self, rest: memoryview) -> None:
        """Told that only this much of a large body is missing, which may be filled behind the receiver's back."""
        ...

    def stop_reading(self) -> None:
        """Told that what is missing is no longer wanted."""
        ...

    def received(self, request: Request) -> None:
        """Takes a request whose body is there or will never be."""
        ...

    def rejected(self, status: int, why: str) -> None:
        """Told of what is no request. Nothing comes after it."""
        ...


class Receiver:
    """Makes requests of bytes. Its ``on_...`` methods are the parser's."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._over = False
        self._forget()

    def _forget(self) -> None:
        """No request is being received."""
        self._url = b""
        self._headers: dict[str, str] = {}
        self._head_bytes = 0
        self._request: Request | None = None  # the head is there, the body is not
        self._limits: BodyLimits | None = None  # None where there is no body to come
        self._part: bytes | bytearray = b""  # of the body
        self._size = 0
        self._framing = 0  # bytes of a chunked body that are not its own
        self._body: memoryview | None = None  # which the kernel fills
        self._timer: asyncio.TimerHandle | None = None
        self.head_since = 0.0  # the event loop's time at the first byte of a head that is not whole; 0 where none is

    @property
    def receiving_body(self) -> bool:
        return self._request is not None

    def buffer(self) -> memoryview:
        """Where the kernel is to put what comes next."""
        return _scratch if self._body is None else self._body[self._size :]

    def filled(self, size: int) -> None:
        """Takes the first ``size`` bytes of what ``buffer`` has returned."""
        if self._body is None:
            self._feed(_scratch[:size])
            return
        self._size += size
        if self._size == len(self._body):
            self._complete(self._body.toreadonly())

    def finish(self) -> None:
        """Takes no more requests; what follows is nobody's."""
        self._over = True

    def hang_up(self) -> None:
        """The client is gone: a body that is not there will never be."""
        if self._request is not None:
            self._refuse(ClientGone("the client has hung up in the middle of its body"))
        self._over = True

    def reject(self, status: int, why: str) -> None:
        """Takes no more, since what comes is no request, or not to be read to its end."""
        if not self._over:
            self._over = True
            self._stop_timer()
            self._stop_reading()
            self._forget()
            self._owner.rejected(status, why)

    def on_url(self, url: bytes) -> None:
        if self._request is None:
            self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if (
            self._request is not None
        ):  # a chunked body's trailer, which must not be taken for a header (RFC 9110, 6.5.1)
            return
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        headers = self._headers
        headers[key] = f"{headers[key]}, {text}" if key in headers else text

    def on_headers_complete(self) -> None:
        if self._request is not None:  # see _parse
            return
        parser, headers = self._parser, self._headers
        if self._head_bytes > HEAD_BYTES:  # with what there is of a body: look closer
            self._head_bytes = len(self._url) + sum(len(name) + len(value) for name, value in headers.items())
            self._limit_head()
        if self._over:
            return
        coding = headers.get("transfer-encoding", "chunked")
        if coding.lower() != "chunked":
            self.reject(501, f"transfer-encoding {coding!r} is not supported; send the body as it is, or in chunks")
            return
        try:
            path, _, query = _origin_form(self._url).partition("?")
        except httptools.HttpParserInvalidURLError:
            self.reject(400, "not HTTP/1.1: Invalid request target")
            return
        method = parser.get_method().decode("latin-1")
        request = self._request = Request(
            self._owner,
            method,
            unquote(path) if "%" in path else path,
            query,
            headers,
            parser.get_http_version(),
            parser.should_keep_alive() and method != "CONNECT",  # behind that comes what is meant for somebody else
        )
        self._head_bytes = 0
        self.head_since = 0.0
        length = int(headers.get("content-length", 0))
        if method == "CONNECT" or not length and "transfer-encoding" not in headers:
            return
        limits = self._limits = self._owner.limits(request)
        encoding = headers.get("content-encoding", "identity")
        if encoding != "identity":
            self._refuse(EncodingRefused(f"content-encoding {encoding!r} is not supported; send the body as it is"))
        elif length > limits.most:  # the parser believes a declared length, so it is looked at before the body
            self._refuse(BodyTooLarge(f"the body has {length} bytes, at most {limits.most} are allowed"))
        elif headers.get("expect", "").lower() == "100-continue" and request.version != "1.0":
            self._owner.proceed()

    def on_body(self, part: bytes) -> None:
        if self._limits is None:  # refused already
            return
        if not self._size:
            self._part = part
        else:  # in one piece, since objects for many small chunks would take much more memory than the body
            if isinstance(self._part, bytes):
                self._part = bytearray(self._part)
            self._part += part
        self._size += len(part)
        self._framing -= len(part)
        most = self._limits.most
        if self._size > most:
            self._refuse(BodyTooLarge(f"the body has more than {most} bytes, at most {most} are allowed"))

    def on_chunk_header(self) -> None:
        self._framing -= _CHUNK_BYTES

    def on_message_complete(self) -> None:
        if self._request is not None and (self._limits is None or not self._parser.should_upgrade()):
            self._complete(self._part if isinstance(self._part, bytes) else memoryview(self._part).toreadonly())

    def _feed(self, data: memoryview) -> None:
        if self._over:
            return
        if self._request is None:
            self.head_since = self.head_since or self._loop.time()
            self._head_bytes += len(data)
        else:
            self._framing += len(data)
        try:
            self._parse(data)
        except httptools.HttpParserCallbackError:
            raise  # a fault of ours
        except httptools.HttpParserError as error:
            self.reject(400, f"not HTTP/1.1: {error}")
            return
        if self._request is None:
            self._limit_head()
        elif self._framing > HEAD_BYTES:
            self.reject(431, f"the chunks' extensions and the trailer have more than {HEAD_BYTES} bytes")
        elif self._limits is not None and self._timer is None:
            self._timer = self._loop.call_later(self._limits.seconds, self._late)
            declared = self._request.headers.get("content-length")
            if declared is not None:
                self._receive_directly(int(declared), self._limits)

    def _parse(self, data: memoryview) -> None:
        """Has the parser read. To it an offer to upgrade ends HTTP/1.1 at once; but nothing here can be upgraded to, so
        the request has its body and others may follow it (RFC 9110, 7.8).
        """
        while True:
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
            self._parser = httptools.HttpRequestParser(self)
            if self._request is not None:  # its head once more, without the offer
                length = self._headers.get("content-length")
                framing = f"content-length: {length}" if length else "transfer-encoding: chunked"
                self._parser.feed_data(f"POST / HTTP/1.1\r\n{framing}\r\n\r\n".encode())

    def _limit_head(self) -> None:
        if self._head_bytes > HEAD_BYTES:
            self.reject(431, f"the request line and headers have more than {HEAD_BYTES} bytes")

    def _receive_directly(self, length: int, limits: BodyLimits) -> None:
        """Has the kernel fill the body from here on. The parser, which would want to see it, is left behind."""
        room = limits.room(length + _ALIGNMENT) if limits.room is not None else None
        spare = np.empty(length + _ALIGNMENT, np.uint8) if room is None else np.frombuffer(room, np.uint8)
        start = -(spare.ctypes.data + limits.aligned) % _ALIGNMENT
        body = spare.data[start : start + length]
        body[: self._size] = self._part
        self._body = body
        self._parser = httptools.HttpRequestParser(self)
        if length - self._size >= APART_BYTES:
            self._owner.read_apart(body[self._size :])

    def _late(self) -> None:
        assert self._limits is not None
        self._refuse(RequestTimedOut(f"the body was not there within {self._limits.seconds:g} s"))

    def _refuse(self, fault: Exception) -> None:
        """Has the request answered without its body, the rest of which is not read."""
        assert self._request is not None
        self._request.fault = fault
        self._stop_reading()
        self._complete(b"")

    def _complete(self, body: bytes | memoryview) -> None:
        """Hands over the request that is being received."""
        request = self._request
        assert request is not None
        self._stop_timer()
        self._forget()
        request.body = body
        self._over = self._over or request.fault is not None or not request.keep_alive
        self._owner.received(request)

    def _stop_reading(self) -> None:
        if self._body is not None:
            self._owner.stop_reading()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _origin_form(target: bytes) -> str:
    """The path and query of a request target; the absolute form has to be taken too (RFC 9112, 3.2.2)."""
    if not target.startswith(b"/") and b"://" in target:
        url = httptools.parse_url(target)
        query = b"?" + url.query if url.query is not None else b""
        target = (url.path or b"/") + query
    return target.decode("latin-1")
