from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from serving.bench.client import Answer, AnswerTimeout, ClientError, Connection, Target
from serving.bench.traffic import Ask

ASK = Ask("a", 1.0, "/x", {"Content-Type": "text/plain"}, (b"he", memoryview(b"llo")))


def exchange(stub: Callable, *pieces: bytes, requests: int = 1, timeout: float = 10.0) -> list[Answer]:
    """Answers to as many requests on one connection, where the server sends ``pieces`` for each."""

    async def reply(request: object, number: int) -> bytes:
        return b"".join(pieces)

    server = stub(reply)

    async def main() -> list[Answer]:
        target = Target.parse(server.url)
        connection = await target.connect()
        answers = [await connection.send(target.encode(ASK), timeout) for _ in range(requests)]
        connection.close()
        return answers

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://127.0.0.1:8080", Target("127.0.0.1", 8080)),
        ("127.0.0.1:8080", Target("127.0.0.1", 8080)),
        ("http://[::1]:81/base/", Target("::1", 81, "/base")),
        ("https://host", Target("host", 443, "", True)),
    ],
)
def test_addresses(url: str, target: Target) -> None:
    assert Target.parse(url) == target


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://host:port", "http://host?x=1", "http://a:b@host"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ClientError, match="host|HOST|port"):
        Target.parse(url)


def test_a_request_is_whole_on_the_wire(stub: Callable) -> None:
    server = stub()

    async def main() -> None:
        target = Target.parse(server.url + "/base")
        connection = await target.connect()
        await connection.send(target.encode(ASK), 10.0)
        connection.close()

    asyncio.run(main())
    (seen,) = server.seen
    assert (seen.method, seen.path, seen.body) == ("POST", "/base/x", b"hello")
    assert seen.headers["content-type"] == "text/plain" and seen.headers["host"] in server.url


def test_one_connection_answers_many_requests(stub: Callable) -> None:
    answers = exchange(stub, b"HTTP/1.1 503 No\r\ncontent-length: 3\r\n\r\n", b"abc", requests=3)
    assert answers == [Answer(503, b"abc")] * 3


def test_chunked_answers(stub: Callable) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert (
        exchange(stub, head, b"3\r\nabc\r\nA;x=y\r\n", b"0123456789\r\n0\r\n\r\n", requests=2)
        == [Answer(200, b"abc0123456789")] * 2
    )


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_answers_in_pieces(cut: int) -> None:
    whole = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"

    async def main() -> Answer:
        connection = Connection()
        connection.connection_made(_Deaf())
        answer = connection.send((b"",), 10.0)
        connection.data_received(whole[:cut])
        assert not answer.done()
        connection.data_received(whole[cut:])
        assert connection.usable
        return await answer

    assert asyncio.run(main()) == Answer(200, b"abc")


@pytest.mark.parametrize(
    "garbage", [b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n"]
)
def test_what_is_not_http(stub: Callable, garbage: bytes) -> None:
    with pytest.raises(ClientError, match="not an HTTP answer"):
        exchange(stub, garbage)


def test_a_lost_connection(stub: Callable) -> None:
    with pytest.raises(ClientError, match="connection lost"):
        exchange(stub, b"")


def test_no_answer_in_time(stub: Callable) -> None:
    with pytest.raises(AnswerTimeout):
        exchange(stub, b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort", timeout=0.05)


def test_a_server_that_closes_leaves_an_unusable_connection() -> None:
    async def main() -> None:
        connection = Connection()
        connection.connection_made(_Deaf())
        answer = connection.send((b"",), 10.0)
        connection.data_received(b"HTTP/1.1 200 OK\r\nConnection: close\r\ncontent-length: 0\r\n\r\n")
        assert (await answer).status == 200
        assert not connection.usable

    asyncio.run(main())


def test_nothing_listens() -> None:
    with pytest.raises(ClientError, match="127.0.0.1:1: "):
        asyncio.run(Target("127.0.0.1", 1).connect())


class _Deaf(asyncio.Transport):
    def writelines(self, list_of_data: object) -> None:
        pass

    def abort(self) -> None:
        pass
