"""One client's HTTP/1.1 connection: requests in, answers out, in order."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from ipaddress import ip_address
from typing import Any, Protocol

import orjson

from serving.http.bodies import BodyReaders, Reading
from serving.http.receiver import Receiver
from serving.http.request import BodyLimits, Request, head
from serving.pacing import unpace

log = logging.getLogger("preheat.http")

_AHEAD = 8  # requests of one client that may wait behind the one that is being answered
_JOINED_BYTES = 16384  # bodies of answers below this are sent with their head in one piece
_JSON = (("content-type", "application/json"),)

# Seconds. A state that lasts longer ends the connection, at the next look of the listener (``look``).
_HEAD_SECONDS = 30.0  # from the first byte of a head to its last
_IDLE_SECONDS = 75.0  # without a request: longer than load balancers keep theirs (60 s)
_STALLED_SECONDS = 60.0  # an answer of which the client takes nothing
_LINGER_SECONDS = 2.0  # after an answer to a request that was not read to its end


class Application(Protocol):
    """What answers the requests."""

    def limits(self, request: Request) -> BodyLimits:
        """What to take as the body of a request of which only the head is there. Must not raise."""
        ...

    def __call__(self, request: Request) -> None:
        """Answers a request by one ``respond``, now or later; called once its body is there or will never be."""
        ...

    def answered(self, request: Request) -> None:
        """Called after each answer."""
        ...


class Connection(asyncio.BufferedProtocol):
    """``connections`` is the set in which it is while it is open; ``readers``, where there are any, receive large
    bodies."""

    def __init__(
        self, application: Application, connections: set[Connection], readers: BodyReaders | None = None
    ) -> None:
        self._application = application
        self._connections = connections
        self._readers = readers
        self._reading: Reading | None = None  # of a body, by one of them
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._receiver = Receiver(self)
        self._current: Request | None = None  # is being answered
        self._waiting: deque[Request] = deque()
        self._rejection: tuple[int, str] | None = None  # what the client is told at the end
        self._handing_over = False
        self._to_proceed = False  # the client waits to be told to send its body
        self._stalled = False  # the client does not take what was sent to it
        self._full = False  # enough requests wait, so no more are read
        self._open = True  # the event loop reads
        self._unsent = 0  # bytes, when the listener last looked
        self._lingering = False  # everything is said, and the client is given time to hear it
        self._since = self._loop.time()  # the last change of state
        self.closed = self._loop.create_future()

    # What the event loop calls.

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._connections.add(self)
        unpace(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._receiver.filled(nbytes)

    def eof_received(self) -> None:
        """A client that has ended its side counts as gone: nothing tells it from one that has hung up."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._waiting.clear()
        if self._current is not None:
            self._current.hang_up()
        self._receiver.hang_up()
        self.closed.set_result(None)

    def pause_writing(self) -> None:
        self._stalled = True
        self._since = self._loop.time()

    def resume_writing(self) -> None:
        self._stalled = False
        self._since = self._loop.time()
        self._next()

    # What the receiver calls.

    def limits(self, request: Request) -> BodyLimits:
        return self._application.limits(request)

    def proceed(self) -> None:
        """Says so once it cannot be taken for the answer to an earlier request."""
        self._to_proceed = True
        self._next()

    def read_apart(self, rest: memoryview) -> None:
        if self._readers is None:
            return
        try:
            descriptor = self._transport.get_extra_info("socket").fileno()
            self._reading = self._readers.read(descriptor, rest, self._read)
        except OSError as error:  # no descriptor is left for it
            log.warning("a body of %d bytes is received by the event loop: %s", len(rest), error)
        self._gate()

    def _read(self, reading: Reading) -> None:
        """Called when a reader has received what it could."""
        if reading is self._reading:  # else it was stopped when this was on its way
            self._reading = None
            self._gate()
            self._receiver.filled(reading.size)

    def stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.stop()
            self._reading = None
            self._gate()

    def _gate(self) -> None:
        """Has the event loop read if nobody else does, and if more is wanted."""
        wanted = self._reading is None and not self._full
        if wanted == self._open or self._transport.is_closing():
            return
        self._open = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def received(self, request: Request) -> None:
        self._to_proceed = False  # its body has come, or never will
        self._waiting.append(request)
        if len(self._waiting) >= _AHEAD:
            self._full = True
            self._gate()
        self._next()

    def rejected(self, status: int, why: str) -> None:
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
            if self._full:
                self._full = False
                self._gate()
            try:
                self._application(request)
            except Exception:
                log.exception("%s %s failed", request.method, request.path)
                if self._current is request:
                    request.respond(500, _JSON, b'{"error":"the server failed on this request"}')
        self._handing_over = False
        if self._current is not None or self._stalled:
            return
        if self._to_proceed:
            self._to_proceed = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if self._rejection is not None:
            (status, why), self._rejection = self._rejection, None
            body = orjson.dumps({"error": why})
            self._transport.write(head(status, _JSON, len(body), "close") + body)
            self._end(read=False)

    def send(self, request: Request, head: bytes, body: bytes | memoryview, close: bool) -> None:
        """Called by a request that is answered."""
        if request is not self._current:
            raise RuntimeError(f"{request.method} {request.path} is answered twice")
        self._current = None
        self._application.answered(request)
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
        elif self._waiting or self._to_proceed or self._rejection is not None:
            self._next()

    def local(self) -> bool:
        address, *_ = self._transport.get_extra_info("peername") or ("",)
        try:
            found = ip_address(address.partition("%")[0])
        except ValueError:
            return False
        mapped = getattr(found, "ipv4_mapped", None)
        return (mapped or found).is_loopback

    def _end(self, read: bool) -> None:
        """Closes once everything is sent; ``read`` where the client has sent nothing that was not read."""
        self._since = self._loop.time()
        if read or not self._transport.can_write_eof():
            self._transport.close()
            return
        # To close with bytes unread would reset the connection, and the answer could be lost with it.
        self._lingering = True
        self._transport.write_eof()

    # What the listener calls.

    def look(self, now: float) -> None:
        """Ends what has lasted too long; ``now`` is the event loop's time."""
        since, head_since = self._since, self._receiver.head_since
        if self._stalled or self._transport.is_closing():  # which it is until the client has taken the last answer
            unsent = self._transport.get_write_buffer_size()
            if unsent != self._unsent:
                self._unsent, self._since = unsent, now
            elif now - since > _STALLED_SECONDS:
                self._transport.abort()
        elif self._lingering:
            if now - since > _LINGER_SECONDS:
                self._transport.close()
        elif self._current is not None or self._receiver.receiving_body:
            return  # requests and bodies have time limits of their own
        elif head_since:
            if now - head_since > _HEAD_SECONDS:
                self._receiver.reject(408, f"the headers were not there within {_HEAD_SECONDS:g} s")
        elif now - since > _IDLE_SECONDS:
            self._transport.close()

    def shut(self) -> None:
        """Takes no more requests, and closes once what was taken is answered."""
        if self._receiver.receiving_body:  # whose client is to learn more than that the connection broke
            self._receiver.reject(503, "the server is stopping")
        self._receiver.finish()
        if self._current is not None:
            self._current.keep_alive = False
        elif not self._lingering:
            self._transport.close()

    def abort(self) -> None:
        """Closes at once."""
        self._transport.abort()
