"""TorchServe's inference API and the questions of its management API, as its users call them, asked of Preheat's own
server and of TorchServe. Where the two differ, the test says how; docs/torchserve.md says why."""

from __future__ import annotations

import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest


def _npy(*values: float) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([values], np.float32))
    return file.getvalue()


def test_ping(server: httpx.Client) -> None:
    answer = server.get("/ping")
    assert (answer.status_code, answer.json()) == (200, {"status": "Healthy"})


def test_health_while_warming(parity: Any) -> None:
    """TorchServe says healthy as soon as it answers; whether a worker is warm is for its state to say."""
    assert set(parity.at_first_ping) == ({"READY"} if parity.name == "preheat" else {"UNLOADING"})


def test_the_models_are_listed(management: httpx.Client) -> None:
    models = management.get("/models").json()["models"]
    assert {model["modelName"] for model in models} == {"counter", "double"}
    assert all(model["modelUrl"].removesuffix(".mar") == model["modelName"] for model in models)


@pytest.mark.parametrize("path", ["/models/counter", "/models/counter/2", "/models/counter/all"])
def test_a_model_is_described(management: httpx.Client, path: str) -> None:
    (description,) = management.get(path).json()
    assert {"modelName": "counter", "modelVersion": "2", "runtime": "python"}.items() <= description.items()
    assert (description["minWorkers"], description["maxWorkers"], description["batchSize"]) == (1, 1, 1)
    assert [worker["status"] for worker in description["workers"]] == ["READY"]
    assert description["jobQueueStatus"] == {"remainingCapacity": 256, "pendingRequests": 0}


def test_what_is_warm_is_shown(management: httpx.Client, name: str) -> None:
    if name == "preheat":
        found = management.get("/v2/models/double/shapes").json()
    else:
        (description,) = management.get("/models/double/1?customized=true").json()
        found = description["customizedMetadata"]
        assert (found["trusted"], found["new_entries"]) == ("pinned digest", {})
    assert (found["coverage"], found["cold"]) == (1.0, "pad")
    assert {shape["shape"] for shape in found["shapes"]} == {"x=1x4:fp32", "x=2x4:fp32", "x=4x4:fp32", "x=1x8:fp32"}
    assert all(shape["warm"] and shape["proven"] for shape in found["shapes"])


@pytest.mark.parametrize("path", ["/predictions/counter", "/predictions/counter/2"])
@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_a_raw_body(server: httpx.Client, method: str, path: str) -> None:
    answer = server.request(method, path, content=b"12345", headers={"content-type": "application/octet-stream"})
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
    assert server.post("/predictions/double", content=_npy(1, 2, 3, 4)).json() == {"y": [[2, 4, 6, 8]]}


def test_a_shape_that_a_warm_one_holds_is_padded(server: httpx.Client) -> None:
    assert server.post("/predictions/double", content=_npy(1, 2, 3)).json() == {"y": [[2, 4, 6]]}


def test_a_shape_that_no_warm_one_holds_is_refused_with_those_that_are_served(server: httpx.Client) -> None:
    answer = server.post("/predictions/double", content=_npy(*range(9)))
    assert (answer.status_code, answer.json()["type"]) == (503, "ServiceUnavailableException")
    assert answer.json()["shapes"][0] == "x=1x8:fp32"


def test_requests_that_come_together_run_together_and_fail_alone(parity: Any) -> None:
    """Thirteen makes the model fail. The requests beside it are answered, whatever batch they were in."""
    values = [1.0, 2.0, 13.0, 3.0, 4.0, 5.0]

    def ask(value: float) -> httpx.Response:
        return httpx.post(f"{parity.url}/predictions/double", content=_npy(value, 0, 0, 0), timeout=60)

    with ThreadPoolExecutor(len(values)) as pool:
        answers = list(pool.map(ask, values))
    good = {value: answer for value, answer in zip(values, answers, strict=True) if value != 13.0}
    if parity.name == "torchserve":
        assert {value: answer.json()["y"][0][0] for value, answer in good.items()} == {v: 2 * v for v in good}
    assert answers[2].status_code == 500
    assert answers[2].json()["message"] == "model 'double' failed"
    assert "thirteen" not in answers[2].text


@pytest.mark.parametrize(
    ("path", "content", "headers", "status", "kind", "says"),
    [
        ("/predictions/nobody", b"x", {}, 404, "ModelNotFoundException", "nobody"),
        ("/predictions/counter/9", b"x", {}, 404, "ModelVersionNotFoundException", "9"),
        ("/predictions/counter", b"", {}, 400, "BadRequestException", "nothing to count"),
        ("/predictions/double", b"x", {}, 400, "BadRequestException", "takes tensors"),
        (
            "/predictions/counter",
            b"--x",
            {"content-type": "multipart/form-data; boundary=b"},
            400,
            "BadRequestException",
            "multipart form",
        ),
        ("/predictions/counter", b"x" * 100_001, {}, 413, "RequestEntityTooLargeException", "100000"),
        ("/predictions/counter", b"fault", {}, 500, "InternalServerException", "counter"),
    ],
)
def test_errors(
    server: httpx.Client, path: str, content: bytes, headers: dict[str, str], status: int, kind: str, says: str
) -> None:
    answer = server.post(path, content=content, headers=headers)
    assert answer.status_code == status, answer.text
    document = answer.json()
    assert (document["code"], document["type"]) == (status, kind)
    assert says in document["message"]
    assert "fault of the handler" not in answer.text
    assert server.post("/predictions/counter", content=b"12").json()["count"] == [2.0]


def test_a_question_about_a_model_that_is_not_there(management: httpx.Client) -> None:
    answer = management.get("/models/nobody")
    assert (answer.status_code, answer.json()["type"]) == (404, "ModelNotFoundException")


def test_a_form_that_names_a_field_twice(server: httpx.Client, name: str) -> None:
    """TorchServe hands over the last of them."""
    twice = [("data", ("a", b"123", "image/png")), ("data", ("b", b"45", "image/png"))]
    answer = server.post("/predictions/counter", files=twice)
    assert (answer.status_code, answer.json().get("count")) == ((400, None) if name == "preheat" else (200, [2.0]))


def test_a_form_in_a_url_encoding(server: httpx.Client, name: str) -> None:
    """TorchServe's frontend takes it apart."""
    answer = server.post("/predictions/counter", data={"data": "12"}).json()
    assert (answer["count"], answer["fields"]) == (([7.0], []) if name == "preheat" else ([2.0], ["data"]))


def test_the_connection_after_an_error(server: httpx.Client, name: str) -> None:
    answer = server.post("/predictions/counter", content=b"")
    assert (answer.status_code, answer.headers.get("connection") == "close") == (400, name == "torchserve")


def test_no_model_is_registered_or_removed(management: httpx.Client) -> None:
    answers = [management.post("/models?url=https://example.com/a.mar"), management.delete("/models/counter/2")]
    assert [answer.status_code for answer in answers] == [405, 405]
    assert management.get("/models/counter").status_code == 200


def test_a_compressed_body_is_refused(server: httpx.Client) -> None:
    answer = server.post("/predictions/counter", content=b"x", headers={"content-encoding": "gzip"})
    assert (answer.status_code, answer.json()["type"]) == (415, "UnsupportedMediaTypeException")


def test_other_methods(server: httpx.Client, name: str) -> None:
    """TorchServe runs the model whatever the method is: here with an empty body."""
    answer = server.get("/predictions/counter")
    if name == "preheat":
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST, PUT")
    else:
        assert (answer.status_code, answer.json()["message"]) == (400, "nothing to count")


def test_a_body_over_the_servers_limit(server: httpx.Client, name: str) -> None:
    """TorchServe has one limit for all models, above which it answers without a word; below, the model's own holds."""
    answer = server.post("/predictions/counter", content=b"x" * 20_000_000)
    assert (answer.status_code, bool(answer.content)) == (413, name == "preheat")


def test_a_chunked_body_over_the_servers_limit_is_refused_while_it_arrives(server: httpx.Client) -> None:
    sent = []

    def chunks() -> Iterator[bytes]:
        for _ in range(2000):
            sent.append(1)
            yield b"x" * 10_000

    try:
        assert server.post("/predictions/counter", content=chunks()).status_code == 413
    except (httpx.WriteError, httpx.ReadError):  # the server has answered and closed; the client may notice that first
        assert len(sent) < 2000
    assert server.post("/predictions/counter", content=b"12").json()["count"] == [2.0]


def test_explanations_are_refused(server: httpx.Client, name: str) -> None:
    answer = server.post("/explanations/counter", content=b"x")
    assert answer.status_code == (404 if name == "preheat" else 400)


def test_outcomes_are_counted(parity: Any) -> None:
    before = _lookups(parity.metrics)
    for values in ([1, 2, 3, 4], [1, 2, 3], list(range(9))):
        httpx.post(f"{parity.url}/predictions/double", content=_npy(*values), timeout=60)
    after = _lookups(parity.metrics)
    assert {outcome: after[outcome] - before[outcome] for outcome in after} == {"warm": 1, "padded": 1, "cold": 1}


def _lookups(url: str) -> dict[str, float]:
    found = {}
    for line in httpx.get(f"{url}/metrics", timeout=60).text.splitlines():
        if line.startswith("preheat_shape_lookups_total{") and 'model="double"' in line:
            outcome = line.split('outcome="', 1)[1].split('"', 1)[0]
            found[outcome] = float(line.rsplit(" ", 1)[1])
    return found
