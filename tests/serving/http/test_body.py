from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest

from serving.http.answers import BodyTooLarge
from serving.http.body import read
from serving.lanes.job import ClientGone

LARGE = 3 << 20


class Protocol:
    """A request whose body comes in parts, or whole when it is called."""

    def __init__(self, *parts: bytes) -> None:
        self.parts = parts
        self.called = False

    async def __call__(self) -> bytes:
        self.called = True
        return b"".join(self.parts)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self.parts:
            yield part


def scope(length: int) -> SimpleNamespace:
    return SimpleNamespace(headers={"content-length": str(length)})


def test_a_large_body_is_put_together_from_its_pieces() -> None:
    body = bytes(range(256)) * (LARGE // 256)
    protocol = Protocol(body[:1000], body[1000:2000], body[2000:])
    found = asyncio.run(read(scope(LARGE), protocol, LARGE, pieces=True))
    assert isinstance(found, memoryview) and found.readonly and found == body
    assert not protocol.called


def test_small_bodies_and_those_that_must_be_bytes_come_whole() -> None:
    small, large = Protocol(b"abc"), Protocol(bytes(LARGE))
    assert asyncio.run(read(scope(3), small, 10, pieces=True)) == b"abc" and small.called
    assert asyncio.run(read(scope(LARGE), large, LARGE)) == bytes(LARGE) and large.called


def test_a_large_body_that_ends_early_is_a_client_that_hung_up() -> None:
    with pytest.raises(ClientGone):
        asyncio.run(read(scope(LARGE), Protocol(bytes(LARGE - 1)), LARGE, pieces=True))


def test_the_limit_holds_before_anything_is_read() -> None:
    with pytest.raises(BodyTooLarge):
        asyncio.run(read(scope(LARGE), Protocol(bytes(LARGE)), LARGE - 1, pieces=True))
