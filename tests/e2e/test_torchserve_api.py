"""TorchServe's inference API and the read-only part of its management API, as its users call them."""

from __future__ import annotations

import io
from collections.abc import Iterator

import httpx
import numpy as np
import pytest


@pytest.fixture(scope="module")
def server(echo_server: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=echo_server) as client:
        yield client


def test_ping(server: httpx.Client) -> None:
    answer = server.get("/ping")
    assert (answer.status_code, answer.json()) == (200, {"status": "Healthy"})


def test_the_models_are_listed(server: httpx.Client) -> None:
    models = server.get("/models").json()["models"]
    assert {"modelName": "counter", "modelUrl": "counter"} in models


@pytest.mark.parametrize("path", ["/models/counter", "/models/counter/2", "/models/counter/all"])
def test_a_model_is_described(server: httpx.Client, path: str) -> None:
    (description,) = server.get(path).json()
    assert {"modelName": "counter", "modelVersion": "2", "runtime": "python"}.items() <= description.items()
    assert [worker["status"] for worker in description["workers"]] == ["READY"]
    assert description["jobQueueStatus"] == {"remainingCapacity": 256, "pendingRequests": 0}


@pytest.mark.parametrize("path", ["/predictions/counter", "/predictions/counter/2"])
@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_a_raw_body(server: httpx.Client, method: str, path: str) -> None:
    answer = server.request(method, path, content=b"12345")
    assert answer.json() == {"count": [5.0], "type": "application/octet-stream", "fields": []}
    assert answer.headers["content-type"] == "application/json"


def test_a_json_body(server: httpx.Client) -> None:
    answer = server.post("/predictions/counter", json={"a": [1, 2]})
    assert answer.json() == {"count": [len(answer.request.content)], "type": "application/json", "fields": []}


def test_a_form_with_data(server: httpx.Client) -> None:
    answer = server.post("/predictions/counter", files={"data": ("a.bin", b"1234567", "image/png")})
    assert answer.json() == {"count": [7.0], "type": "image/png", "fields": ["data"]}


def test_a_form_with_several_fields(server: httpx.Client) -> None:
    answer = server.post("/predictions/counter", files={"left": ("a", b"123"), "right": ("b", b"45")})
    assert (answer.json()["count"], answer.json()["fields"]) == ([5.0], ["left", "right"])


def test_a_handler_may_answer_text_and_bytes(server: httpx.Client) -> None:
    text = server.post("/predictions/counter", content=b"abc", headers={"content-type": "text/plain"})
    assert (text.text, text.headers["content-type"]) == ("3 bytes", "text/plain; charset=utf-8")
    raw = server.post("/predictions/counter", content=b"\x00\xff", headers={"content-type": "application/x-echo"})
    assert (raw.content, raw.headers["content-type"]) == (b"\x00\xff", "application/octet-stream")


def test_a_chunked_body(server: httpx.Client) -> None:
    assert server.post("/predictions/counter", content=iter([b"ab", b"cde"])).json()["count"] == [5.0]


def test_the_default_handler_takes_npy(server: httpx.Client) -> None:
    file = io.BytesIO()
    np.save(file, np.arange(6, dtype=np.float32).reshape(1, 2, 3))
    assert server.post("/predictions/echo-fp32", content=file.getvalue()).json() == {"y": [[[0, 1, 2], [3, 4, 5]]]}


@pytest.mark.parametrize(
    ("method", "path", "content", "headers", "status", "kind", "says"),
    [
        ("POST", "/predictions/nobody", b"x", {}, 404, "ModelNotFoundException", "nobody"),
        ("POST", "/predictions/counter/9", b"x", {}, 404, "ModelNotFoundException", "9"),
        ("GET", "/models/nobody", b"", {}, 404, "ModelNotFoundException", "nobody"),
        ("POST", "/predictions/counter", b"", {}, 400, "BadRequestException", "nothing to count"),
        ("POST", "/predictions/echo-fp32", b"x", {}, 400, "BadRequestException", "takes tensors"),
        (
            "POST",
            "/predictions/counter",
            b"--x",
            {"content-type": "multipart/form-data; boundary=b"},
            400,
            "BadRequestException",
            "multipart form",
        ),
        ("POST", "/predictions/counter", b"x" * 100_001, {}, 413, "RequestEntityTooLargeException", "100000"),
        ("POST", "/predictions/counter", b"x", {"content-encoding": "gzip"}, 415, "UnsupportedMediaType", "gzip"),
        ("POST", "/predictions/counter", b"fault", {}, 500, "InternalServerException", "counter"),
    ],
)
def test_errors_have_torchserves_form(
    server: httpx.Client,
    method: str,
    path: str,
    content: bytes,
    headers: dict[str, str],
    status: int,
    kind: str,
    says: str,
) -> None:
    answer = server.request(method, path, content=content, headers=headers)
    assert answer.status_code == status, answer.text
    document = answer.json()
    assert document["code"] == status
    assert document["type"].startswith(kind)
    assert says in document["message"]
    assert "fault of the handler" not in answer.text
    assert server.post("/predictions/counter", content=b"12").json()["count"] == [2.0]


@pytest.mark.parametrize("path", ["/predictions/counter", "/predictions/counter/2"])
def test_other_methods_are_refused_with_those_that_are_allowed(server: httpx.Client, path: str) -> None:
    answer = server.get(path)
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST, PUT")


def test_a_chunked_body_over_the_limit_is_refused_while_it_arrives(server: httpx.Client) -> None:
    sent = []

    def chunks() -> Iterator[bytes]:
        for _ in range(2000):
            sent.append(1)
            yield b"x" * 10_000

    try:
        assert server.post("/predictions/counter", content=chunks()).status_code == 413
    except httpx.WriteError:  # the server has answered and closed; the client may notice that first
        assert len(sent) < 2000
    assert server.post("/predictions/counter", content=b"12").json()["count"] == [2.0]
