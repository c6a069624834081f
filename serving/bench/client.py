"""A small HTTP/1.1 client for load: keep-alive connections, bodies that are ready, and little work for each answer.

It exists because the client of a benchmark must not be what is measured: general clients spend longer on one request
than a good server does.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from serving.bench.traffic import Ask
from serving.pacing import unpace


class ClientError(Exception):
    """An answer that did not come, or that is not HTTP."""


class AnswerTimeout(ClientError):
    """An answer that did not come in time."""


@dataclass(frozen=True)
class Answer:
    """Status code and body of an answer."""

    status: int
    body: bytes


@dataclass(frozen=True)
class Target:
    """Where a server is: host, port, the path that all requests start with, and whether to speak TLS."""

    host: str
    port: int
    prefix: str = ""
    secure: bool = False

    @classmethod
    def parse(cls, url: str) -> Target:
        """Reads ``http://host:port/prefix``; raises ClientError on anything else."""
        parts = urlsplit(url if "//" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError as error:
            raise ClientError(f"{url}: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
            raise ClientError(f"{url!r} is not of the form http://HOST:PORT or https://HOST:PORT")
        secure = parts.scheme == "https"
        return cls(parts.hostname, port or (443 if secure else 80), parts.path.rstrip("/"), secure)

    def encode(self, ask: Ask) -> tuple[bytes | memoryview, ...]:
        """A POST request, ready to be written."""
        lines = [f"POST {self.prefix}{ask.path} HTTP/1.1", f"Host: {self._authority}"]
        lines += [f"{name}: {value}" for name, value in ask.headers.items()]
        lines += [f"Content-Length: {ask.size}", "Accept: */*", "", ""]
        return ("\r\n".join(lines).encode("latin-1"), *ask.body)

    def get(self, path: str) -> tuple[bytes]:
        """A GET request, ready to be written."""
        return (
            f"GET {self.prefix}{path} HTTP/1.1\r\nHost: {self._authority}\r\nAccept: */*\r\n\r\n".encode("latin-1"),
        )

    @property
    def _authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    async def connect(self) -> Connection:
        """Opens a connection; raises ClientError where nothing listens."""
        context = ssl.create_default_context() if self.secure else None
        try:
            transport, connection = await asyncio.get_running_loop().create_connection(
                Connection, self.host, self.port, ssl=context
            )
            unpace(transport)
        except OSError as error:
            raise ClientError(f"{self.host}:{self.port}: {error.strerror or error}") from error
        return connection


class Connection(asyncio.Protocol):
    """One connection, one request at a time. ``usable`` is false once either side has closed it."""

    def __init__(self) -> None:
        self.usable = False
        self._answer: asyncio.Future[Answer] | None = None
        self._buffer = bytearray()
        self._parser = _answer(self._buffer)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.usable = True

    def send(self, request: Sequence[bytes | memoryview], timeout: float) -> asyncio.Future[Answer]:
        """Writes a request; the future ends with the answer, with AnswerTimeout after ``timeout`` seconds, or with
        ClientError where the connection is lost."""
        loop = asyncio.get_running_loop()
        self._answer = loop.create_future()
        self._parser = _answer(self._buffer)
        next(self._parser)
        timer = loop.call_later(timeout, self._expire)
        self._answer.add_done_callback(lambda _: timer.cancel())
        self._transport.writelines(request)
        return self._answer

    def close(self) -> None:
        self.usable = False
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            self.close()  # bytes that nobody asked for: this connection can no longer be trusted
            return
        self._buffer += data
        try:
            next(self._parser)
        except StopIteration as end:
            answer, reusable = end.value
            if not reusable:
                self.close()
            self._answer.set_result(answer)
        except (ValueError, IndexError) as error:
            self.close()
            self._answer.set_exception(ClientError(f"not an HTTP answer: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ClientError("connection lost"))

    def _expire(self) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(AnswerTimeout("no answer in time"))
            self.close()


def _answer(buffer: bytearray) -> Generator[None, None, tuple[Answer, bool]]:
    """Parses one answer out of ``buffer``, which grows between two steps; returns it and whether the connection can be
    used again. Raises ValueError or IndexError on bytes that are not HTTP/1.1."""
    while (end := buffer.find(b"\r\n\r\n")) < 0:
        yield
    lines = bytes(buffer[:end]).decode("latin-1").split("\r\n")
    del buffer[: end + 4]
    version, status, *_ = lines[0].split(" ", 2)
    if not version.startswith("HTTP/1."):
        raise ValueError(f"{lines[0]!r}")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    if "chunked" in headers.get("transfer-encoding", "").lower():
        body = yield from _chunks(buffer)
    else:
        length = int(headers.get("content-length", 0))
        while len(buffer) < length:
            yield
        body = bytes(buffer[:length])
        del buffer[:length]
    reusable = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close" and not buffer
    return Answer(int(status), body), reusable


def _chunks(buffer: bytearray) -> Generator[None, None, bytes]:
    body = bytearray()
    while True:
        while (end := buffer.find(b"\r\n")) < 0:
            yield
        size = int(bytes(buffer[:end]).split(b";")[0], 16)
        while len(buffer) < end + 2 + size + 2:
            yield
        body += buffer[end + 2 : end + 2 + size]
        del buffer[: end + 2 + size + 2]  # trailers, which no server here sends, would be an error below
        if size == 0:
            return bytes(body)
