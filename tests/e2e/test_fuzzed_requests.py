"""Damaged and lying requests over a real connection: an answer every time, never a fault of the server's.

``PREHEAT_FUZZ_EXAMPLES`` (default 300) sets how many requests each test makes up.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("PREHEAT_FUZZ_EXAMPLES", "300"))

_ARRAY = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
_ENTRY = {"name": "x", "shape": [1, 2, 3], "datatype": "FP32"}
_JSON = json.dumps({"id": "7", "inputs": [{**_ENTRY, "data": _ARRAY.tolist()}], "outputs": [{"name": "y"}]}).encode()
_HEAD = json.dumps({"inputs": [{**_ENTRY, "parameters": {"binary_data_size": 24}}]}).encode()
_BINARY = _HEAD + _ARRAY.tobytes()
_FORM = b'--b\r\nContent-Disposition: form-data; name="data"\r\n\r\nabc\r\n--b--\r\n'


@pytest.fixture(scope="module")
def connection(echo_server: str) -> Iterator[http.client.HTTPConnection]:
    address = urlsplit(echo_server)
    opened = http.client.HTTPConnection(address.hostname or "", address.port, timeout=10)
    yield opened
    opened.close()


def damaged(whole: bytes) -> st.SearchStrategy[bytes]:
    """``whole`` with up to three cuts, each replaced by a few other bytes."""
    cut = st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 4), st.binary(max_size=4))

    def apply(cuts: list[tuple[int, int, bytes]]) -> bytes:
        body = bytearray(whole)
        for at, length, instead in cuts:
            body[at : at + length] = instead
        return bytes(body)

    return st.lists(cut, max_size=3).map(apply)


def ask(connection: http.client.HTTPConnection, path: str, body: bytes, headers: dict[str, str]) -> int:
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    document = answer.read()
    if document and answer.status != 200:  # the HTTP parser's own refusals have no body
        assert json.loads(document)
    return answer.status


@given(body=damaged(_JSON) | st.binary(max_size=100))
@settings(max_examples=EXAMPLES, deadline=None)
def test_damaged_json(connection: http.client.HTTPConnection, body: bytes) -> None:
    assert ask(connection, "/v2/models/echo-fp32/infer", body, {}) in (200, 400)


@given(
    body=damaged(_BINARY),
    length=st.just(str(len(_HEAD))) | st.integers(-1, 200).map(str) | st.text("0 -+.x1", max_size=5),
)
@settings(max_examples=EXAMPLES, deadline=None)
def test_damaged_binary_data(connection: http.client.HTTPConnection, body: bytes, length: str) -> None:
    headers = {"Inference-Header-Content-Length": length}
    assert ask(connection, "/v2/models/echo-fp32/infer", body, headers) in (200, 400)


@given(body=damaged(_FORM), kind=st.sampled_from(["multipart/form-data; boundary=b", "multipart/form-data", "a/b; c"]))
@settings(max_examples=EXAMPLES, deadline=None)
def test_damaged_forms(connection: http.client.HTTPConnection, body: bytes, kind: str) -> None:
    assert ask(connection, "/predictions/counter", body, {"Content-Type": kind}) in (200, 400)


@given(path=st.text(st.characters(codec="ascii", exclude_characters="\r\n \x7f", min_codepoint=33), max_size=30))
@settings(max_examples=EXAMPLES, deadline=None)
def test_made_up_paths(connection: http.client.HTTPConnection, path: str) -> None:
    for prefix in ("/", "/v2/models/", "/predictions/", "/models/"):
        assert ask(connection, prefix + path, b"", {}) in (307, 400, 404, 405)


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"POST /v2/models/echo-fp32/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{",
        b"POST /v2/models/echo-fp32/infer HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n{}",
        b"POST /v2/models/echo-fp32/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"POST /v2/models/echo-fp32/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n",
        b"POST /v2/models/echo-fp32/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n",
        b"GET /v2 HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 1_000_000,
    ],
    ids=["nothing", "tls", "not-http", "short-body", "negative", "two-lengths", "bad-chunk", "no-last-chunk", "long"],
)
def test_a_connection_that_breaks_off_harms_nobody_else(echo_server: str, start: bytes) -> None:
    address = urlsplit(echo_server)
    with socket.create_connection((address.hostname or "", address.port or 0), timeout=10) as broken:
        try:
            broken.sendall(start)
            broken.shutdown(socket.SHUT_WR)
            while broken.recv(65536):
                pass
        except OSError:  # the server closed first: that is an answer too
            pass
    answer = httpx.post(f"{echo_server}/v2/models/echo-fp32/infer", content=_JSON, timeout=10)
    assert answer.json()["outputs"][0]["data"] == [0, 1, 2, 3, 4, 5]


def test_a_client_that_leaves_in_the_middle_of_its_body_is_counted_as_gone(echo_server: str) -> None:
    text = httpx.get(f"{echo_server}/metrics").text
    assert re.search(r'requests_total\{code="499",model="echo-fp32".*\} [1-9]', text)


@pytest.mark.parametrize("path", ["/v2", "/predictions/counter", "/v2/models/echo-fp32/infer", "/nowhere"])
def test_an_encoded_body_is_refused_everywhere(echo_server: str, path: str) -> None:
    answer = httpx.post(f"{echo_server}{path}", content=b"x", headers={"content-encoding": "gzip"})
    assert answer.status_code == 415
    assert "gzip" in answer.text


def test_a_large_body_for_a_model_that_is_not_there_learns_that(echo_server: str) -> None:
    address = urlsplit(echo_server)
    with socket.create_connection((address.hostname or "", address.port or 0), timeout=10) as connection:
        connection.sendall(b"POST /v2/models/nobody/infer HTTP/1.1\r\nHost: a\r\n")
        connection.sendall(b"Expect: 100-continue\r\nContent-Length: 5000000\r\n\r\n")
        assert b" 404 " in connection.recv(4096).splitlines()[0]


def test_nothing_of_this_was_a_fault_of_the_server(echo_server: str) -> None:
    counted = httpx.get(f"{echo_server}/metrics").text
    assert 'model="echo-fp32"' in counted
    faults = [line for line in counted.splitlines() if 'code="500"' in line and 'model="echo-fp32"' in line]
    assert faults == []
