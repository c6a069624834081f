"""A server as its users meet it: over HTTP, warmed from a bundle, under load, and on its way out."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from serving.process import ServerFailed, ServerProcess

Serve = Callable[[Sequence[str]], ServerProcess]

MODEL = """
name: sleeper
version: "3"
engine: {kind: python, source: "sleeper.py:Sleeper"}
inputs: [{name: x, dtype: fp32, dims: [batch, width]}]
outputs: [{name: y, dtype: fp32, dims: [batch, width]}]
handler: handler.py
shapes: {grid: {batch: [1, 2], width: [4, 8]}, pad: [width]}
cold: COLD
batching: {max_delay_ms: 0, queue: 3}
limits: {request_bytes: 4096, timeout_s: 2}
"""
ENGINE = '''
"""Returns its input after as many seconds as the input's largest number says."""
import time


class Sleeper:
    def run(self, inputs):
        if inputs["x"].min() < 0:
            raise RuntimeError("negative")
        time.sleep(float(inputs["x"].max()))
        return {"y": inputs["x"]}
'''
HANDLER = """
from handlers.handler import Handler


class Cropping(Handler):
    def crop(self, outputs, asked, ran):
        return {"y": outputs["y"][:, : asked["x"].dims[1]]}
"""


def store(folder: Path, cold: str = "pad") -> Path:
    model = folder / "store" / "sleeper"
    model.mkdir(parents=True)
    (model / "model.yaml").write_text(MODEL.replace("COLD", cold))
    (model / "sleeper.py").write_text(ENGINE)
    (model / "handler.py").write_text(HANDLER)
    return folder / "store"


@pytest.fixture(scope="module")
def warmed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., list[str]]]:
    """Warms the model, once for each cold policy, and gives the arguments that serve it."""
    folder = tmp_path_factory.mktemp("warmed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))

        def warm(cold: str = "pad") -> list[str]:
            place = folder / cold
            arguments = ["--model-store", str(place / "store")]
            if not place.exists():
                command = [sys.executable, "-m", "serving", "warm", *arguments, "--out", str(place / "bundle")]
                store(place, cold)
                subprocess.run(command, check=True, capture_output=True, timeout=120)
            return [*arguments, "--bundle", str(place / "bundle")]

        yield warm


def call(
    server: ServerProcess | str,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, dict[str, str], bytes]:
    url = server if isinstance(server, str) else server.url
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
    finally:
        connection.close()


def request(value: float, width: int = 4, rows: int = 1) -> bytes:
    data = [value] * (width * rows)
    tensor = {"name": "x", "shape": [rows, width], "datatype": "FP32", "data": data}
    return json.dumps({"inputs": [tensor]}).encode()


def infer(server: ServerProcess, value: float = 0, width: int = 4, rows: int = 1) -> tuple[int, dict[str, str], dict]:  # type: ignore[type-arg]
    status, headers, body = call(server, "POST", "/v2/models/sleeper/infer", request(value, width, rows))
    return status, headers, json.loads(body)


def metric(server: ServerProcess, name: str, *labels: str) -> float:
    text = call(server, "GET", "/metrics")[2].decode()
    found = [line for line in text.splitlines() if line.startswith(name) and all(label in line for label in labels)]
    assert len(found) <= 1, found
    return float(found[0].rsplit(" ", 1)[1]) if found else 0.0  # a series begins with its first event


def test_a_warm_server_answers_counts_and_ends_well(start_server: Serve, warmed: Callable[..., list[str]]) -> None:
    server = start_server(warmed())
    server.wait_ready(60)
    assert metric(server, "preheat_shape_lookups_total", 'outcome="warm"') == 0  # warm-up is not traffic
    for width, rows in ((4, 1), (4, 2), (8, 1), (5, 1)):
        status, _, answer = infer(server, 0, width, rows)
        assert status == 200
        assert answer["outputs"][0]["shape"] == [rows, width]
        assert (answer["model_name"], answer["model_version"]) == ("sleeper", "3")
    assert metric(server, "preheat_shape_lookups_total", 'outcome="warm"') == 3
    assert metric(server, "preheat_shape_lookups_total", 'outcome="padded"') == 1
    assert metric(server, "preheat_elements_total", 'kind="padding"') == 3
    assert metric(server, "preheat_shapes", 'state="warm"') == 4
    assert metric(server, "preheat_ready") == 1
    board = json.loads(call(server, "GET", "/v2/models/sleeper/versions/3/ready")[2])
    assert board["ready"]
    assert call(server, "GET", "/v2/models/sleeper/versions/4/ready")[0] == 404
    assert server.stop() == 0


def test_a_model_that_fails_answers_500_and_goes_on(start_server: Serve, warmed: Callable[..., list[str]]) -> None:
    server = start_server(warmed())
    server.wait_ready(60)
    status, _, answer = infer(server, -1)
    assert status == 500
    assert "negative" not in json.dumps(answer)  # the inside is for the log
    assert infer(server, 0)[0] == 200


def test_bodies_over_the_limit_are_refused_before_they_are_read(
    start_server: Serve, warmed: Callable[..., list[str]]
) -> None:
    server = start_server(warmed())
    server.wait_ready(60)
    assert call(server, "POST", "/v2/models/sleeper/infer", b" " * 5000)[0] == 413
    chunked = (b" " * 1000 for _ in range(5))
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=30)
    connection.request(
        "POST", "/v2/models/sleeper/infer", chunked, encode_chunked=True, headers={"transfer-encoding": "chunked"}
    )
    assert connection.getresponse().status == 413
    connection.close()
    assert call(server, "POST", "/v2/models/sleeper/infer", b"{}", {"content-encoding": "gzip"})[0] == 415


@pytest.mark.parametrize(
    ("cold", "status", "outcome"), [("reject", 503, None), ("run", 200, "cold"), ("pad", 503, None)]
)
def test_cold_policies(
    start_server: Serve, warmed: Callable[..., list[str]], cold: str, status: int, outcome: str | None
) -> None:
    server = start_server(warmed(cold))
    server.wait_ready(60)
    got, headers, answer = infer(server, 0, width=16)
    assert got == status
    if status == 503:
        assert answer["shapes"][0] == "x=1x8:fp32"
        assert metric(server, "preheat_rejected_total", 'reason="shape"') == 1
    else:
        assert metric(server, "preheat_shape_lookups_total", f'outcome="{outcome}"') == 1
        shapes = json.loads(call(server, "GET", "/v2/models/sleeper/shapes")[2])
        assert shapes["met_cold"] == {"x=1x16:fp32": 1}
        times = shapes["met_cold_at"]["x=1x16:fp32"]
        now = datetime.now(timezone.utc)
        assert times["first"] == times["last"] and datetime.fromisoformat(times["last"]) <= now


def test_a_body_that_never_ends_is_not_waited_for(start_server: Serve, warmed: Callable[..., list[str]]) -> None:
    server = start_server(warmed())
    server.wait_ready(60)
    head = b"POST /v2/models/sleeper/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
    with socket.create_connection(urlsplit(server.url).netloc.split(":"), timeout=30) as connection:  # type: ignore[arg-type]
        connection.sendall(head)
        assert connection.recv(1000).startswith(b"HTTP/1.1 504")


def test_a_padded_answer_in_json_is_whole(start_server: Serve, warmed: Callable[..., list[str]]) -> None:
    server = start_server(warmed())
    server.wait_ready(60)
    status, _, answer = infer(server, 0.01, width=1, rows=2)
    assert status == 200
    assert answer["outputs"][0]["data"] == pytest.approx([0.01, 0.01])


def test_a_full_queue_says_when_to_come_back(start_server: Serve, warmed: Callable[..., list[str]]) -> None:
    server = start_server(warmed())
    server.wait_ready(60)
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: infer(server, 0.3, width=4, rows=2), range(16)))
    statuses = [status for status, _, _ in answers]
    assert set(statuses) == {200, 503}
    assert all(headers["retry-after"] == "1" for status, headers, _ in answers if status == 503)
    assert infer(server, 0)[0] == 200


def test_a_request_over_its_time_gets_504(start_server: Serve, warmed: Callable[..., list[str]]) -> None:
    server = start_server(warmed())
    server.wait_ready(60)
    assert infer(server, 3)[0] == 504
    assert infer(server, 0)[0] == 200


def test_clients_that_hang_up_are_not_computed(start_server: Serve, warmed: Callable[..., list[str]]) -> None:
    server = start_server(warmed())
    server.wait_ready(60)
    body = request(1.5, rows=2)
    head = f"POST /v2/models/sleeper/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    sockets = []
    deadline = time.monotonic() + 20
    for waiting in (0, 1, 2, 3):  # one runs, three fill the queue
        connection = socket.create_connection(urlsplit(server.url).netloc.split(":"), timeout=30)  # type: ignore[arg-type]
        connection.sendall(head + body)
        sockets.append(connection)
        while not _arrived(server, waiting):
            assert time.monotonic() < deadline
    for connection in sockets:
        connection.close()
    while metric(server, "preheat_requests_total", 'code="499"') < 3:
        assert time.monotonic() < deadline
    assert infer(server, 0)[0] == 200
    assert metric(server, "preheat_batch_size_count") <= 2  # the one in flight, and ours


def _arrived(server: ServerProcess, waiting: int) -> bool:
    """Whether one request runs and ``waiting`` more wait."""
    (model,) = json.loads(call(server, "GET", "/")[2])["serving"]
    return (model["running"], model["queue"]) == (1, waiting)


def test_the_end_answers_what_is_on_its_way(start_server: Serve, warmed: Callable[..., list[str]]) -> None:
    server = start_server([*warmed(), "--drain-linger", "0.2"])
    server.wait_ready(60)
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(infer, server, 0.7, 4, 2) for _ in range(2)]
        deadline = time.monotonic() + 20
        while not _arrived(server, 1):  # until one runs and the other waits
            assert time.monotonic() < deadline
        assert server.stop() == 0
        assert [answer.result()[0] for answer in answers] == [200, 200]


def test_state_changes_need_the_token(start_server: Serve, warmed: Callable[..., list[str]]) -> None:
    server = start_server(warmed())
    server.wait_ready(60)
    token = Path(server.admin_token_file).read_text()
    bearer = {"authorization": f"Bearer {token}"}
    unload = "/v2/repository/models/sleeper/unload"
    assert call(server.admin_url, "POST", unload)[0] == 401
    assert call(server.admin_url, "POST", unload, headers={"authorization": "Bearer wrong"})[0] == 401
    assert call(server, "POST", unload, headers=bearer)[0] in (404, 405)  # not on the serving port
    assert call(server.admin_url, "POST", unload, headers=bearer)[0] == 200
    assert infer(server)[0] == 404
    assert call(server, "GET", "/v2/health/ready")[0] == 503  # nothing served is not ready
    assert call(server.admin_url, "POST", "/v2/repository/models/sleeper/load", headers=bearer)[0] == 200
    assert infer(server)[0] == 200
    asked = json.dumps({"shape": "x=1x16:fp32"}).encode()
    assert infer(server, 0, width=16)[0] == 503
    assert call(server.admin_url, "POST", "/v2/models/sleeper/warm", asked, bearer)[0] == 200
    assert infer(server, 0, width=16)[0] == 200
    for wrong in (b"", b"{}", b'{"shape": "nonsense"}', b'{"shape": "x=1x16x3:fp32"}', b'{"shape": "x=1x99999:fp32"}'):
        assert call(server.admin_url, "POST", "/v2/models/sleeper/warm", wrong, bearer)[0] == 400


def test_another_models_bundle_is_refused(
    tmp_path: Path, start_server: Serve, warmed: Callable[..., list[str]]
) -> None:
    bundle = warmed()[-1]
    changed = store(tmp_path)
    (changed / "sleeper" / "sleeper.py").write_text(ENGINE + "\n# changed since\n")
    server = start_server(["--model-store", str(changed), "--bundle", bundle])
    with pytest.raises(ServerFailed, match=r"model sleeper: expected sha256:\w+, found sha256:\w+"):
        server.wait_ready(60)


def test_an_unknown_model_or_path_is_told_in_the_words_of_the_protocol(null_server: ServerProcess) -> None:
    status, _, body = call(null_server, "POST", "/v2/models/nobody/infer", b"{}")
    assert (status, list(json.loads(body))) == (404, ["error"])
    status, _, body = call(null_server, "POST", "/predictions/nobody", b"{}")
    assert (status, json.loads(body)["type"]) == (404, "ModelNotFoundException")
    assert call(null_server, "POST", "/v2/models/null/versions/9/infer", b"{}")[0] == 404
    assert call(null_server, "GET", "/v2/models/null/infer")[0] == 405
    assert call(null_server, "GET", "/nothing")[0] == 404


def test_two_servers_do_not_share_a_port_by_accident(null_server: ServerProcess) -> None:
    port = str(urlsplit(null_server.url).port)
    models = Path(__file__).parents[2] / "benchmarks" / "models"
    command = [sys.executable, "-m", "serving", "serve", "null", "--model-store", str(models), "--unproven"]
    ended = subprocess.run([*command, "--port", port], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert f"127.0.0.1:{port}: Address already in use" in ended.stderr
