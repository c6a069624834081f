"""A request and its answer, between the connection that it came on and the application."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import NamedTuple, Protocol

Headers = tuple[tuple[str, str], ...]


class BodyTooLarge(Exception):
    """The request body is over the model's ``limits.request_bytes`` (HTTP 413)."""


class EncodingRefused(Exception):
    """The request body has a content encoding that the server does not undo (HTTP 415)."""


class BodyLimits(NamedTuple):
    """What an application takes as a request's body: ``most`` bytes, all there within ``seconds``.

    ``aligned`` is an offset in the body that is to lie at a multiple of 64 bytes in memory, so that a tensor which
    begins there can be used as it lies. ``room`` gives writable memory of so many bytes for a large body, None where it
    has none left.
    """

    most: int
    seconds: float
    aligned: int = 0
    room: Callable[[int], memoryview | None] | None = None


class Sender(Protocol):
    """Where an answer goes."""

    def send(self, request: Request, head: bytes, body: bytes | memoryview, close: bool) -> None:
        """Sends the answer to a request; ``close`` where it is the connection's last."""
        ...

    def local(self) -> bool:
        """Whether the client is on this host, by its address."""
        ...


class Request:
    """One HTTP request. ``headers`` have lower-case names; a name that came twice has its values joined by commas."""

    __slots__ = ("_gone", "_sender", "body", "fault", "headers", "keep_alive", "method", "path", "query", "version")

    def __init__(
        self,
        sender: Sender,
        method: str,
        path: str,
        query: str = "",
        headers: dict[str, str] | None = None,
        version: str = "1.1",
        keep_alive: bool = True,
    ) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.headers = headers if headers is not None else {}
        self.version = version
        self.keep_alive = keep_alive
        self.body: bytes | memoryview = b""
        self.fault: Exception | None = None  # why there is no body
        self._sender = sender
        self._gone: asyncio.Future[None] | None = None

    def read(self) -> bytes | memoryview:
        """The whole body; raises BodyTooLarge, EncodingRefused, RequestTimedOut or ClientGone where there is none."""
        if self.fault is not None:
            raise self.fault
        return self.body

    @property
    def local(self) -> bool:
        """Whether the client is a program on this host, by its address: not a page in a browser, which may be
        anybody's."""
        return "origin" not in self.headers and self._sender.local()

    async def gone(self) -> None:
        """Returns when the client has hung up before it was answered."""
        await asyncio.shield(self._departure())  # whoever else waits still does

    def hang_up(self) -> None:
        """Called by the connection when it is lost."""
        departure = self._departure()
        if not departure.done():
            departure.set_result(None)

    def _departure(self) -> asyncio.Future[None]:
        if self._gone is None:
            self._gone = asyncio.get_running_loop().create_future()
        return self._gone

    def respond(self, status: int, headers: Headers, body: bytes | memoryview = b"") -> None:
        """Answers the request; ``headers`` are those of this answer only, without date and length."""
        close = self.fault is not None or not self.keep_alive
        connection = "close" if close else "keep-alive" if self.version == "1.0" else ""
        text = head(status, headers, len(body), connection)
        self._sender.send(self, text, b"" if self.method == "HEAD" else body, close)


def head(status: int, headers: Headers, length: int, connection: str = "") -> bytes:
    """The head of an answer; ``connection`` says what becomes of the connection, where that is not the usual."""
    return b"%sdate: %s\r\ncontent-length: %d\r\n\r\n" % (_lines(status, headers, connection), _date(), length)


@lru_cache(maxsize=1024)  # answers differ in few headers, and those few take few values
def _lines(status: int, headers: Headers, connection: str) -> bytes:
    """The status line and headers; raises ValueError where a header would break out of its line."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    lines = [f"HTTP/1.1 {status} {phrase}"]
    for name, value in (*headers, ("connection", connection)) if connection else headers:
        if "\n" in value or "\r" in value:
            raise ValueError(f"header {name!r} has a line break in its value")
        lines.append(f"{name}: {value}")
    return ("\r\n".join(lines) + "\r\n").encode("latin-1")


_second, _text = 0, b""


def _date() -> bytes:
    """The time as HTTP has it (RFC 9110, 5.6.7), made once a second."""
    global _second, _text
    now = int(time.time())
    if now != _second:
        _second, _text = now, formatdate(now, usegmt=True).encode()
    return _text
