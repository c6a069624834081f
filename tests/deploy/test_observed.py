"""The real Prometheus with the shipped rules, watching a real server: every rule and every panel's query has an answer.

AMD's exporter is played: a page with its metric names and made-up numbers.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import onnx
import pytest
import yaml
from onnx import TensorProto, helper

from serving.process import ServerProcess

REPOSITORY = Path(__file__).resolve().parents[2]
RULES = ("recording.rules.yaml", "alerting.rules.yaml")
DASHBOARDS = sorted((REPOSITORY / "deploy/grafana/dashboards").glob("*.json"))
MODEL = """
name: NAME
version: "1"
engine: ENGINE
inputs: [{name: x, dtype: fp32, dims: [batch, width]}]
outputs: [{name: y, dtype: fp32, dims: [batch, width]}]
shapes: {grid: {batch: [1, 2], width: [4, 8]}}
cold: COLD
batching: {max_delay_ms: 0, queue: 16}
"""
ENGINES = {
    "open": ('{kind: onnx, source: "net.onnx", providers: [cpu], threads: 1}', "run"),
    "strict": ('{kind: python, source: "echo.py:Echo"}', "reject"),
}
AMD = """
gpu_gfx_activity{gpu_id="0",hostname="node"} 71
gpu_used_vram{gpu_id="0",hostname="node"} 1024
gpu_total_vram{gpu_id="0",hostname="node"} 196608
gpu_package_power{gpu_id="0",hostname="node"} 412
gpu_junction_temperature{gpu_id="0",hostname="node"} 63
gpu_health{gpu_id="0",hostname="node"} 1
"""


class Exporter(BaseHTTPRequestHandler):
    """AMD's device metrics exporter, by its names."""

    def do_GET(self) -> None:
        body = AMD.lstrip().encode()
        self.send_response(200)
        self.send_header("content-type", "text/plain; version=0.0.4")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are not worth a line."""


@pytest.fixture
def exporter() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Exporter)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """Two models from a bundle: one runs what is not planned, one refuses it."""
    for name, (engine, cold) in ENGINES.items():
        folder = tmp_path / "models" / name
        folder.mkdir(parents=True)
        text = MODEL.replace("NAME", name).replace("ENGINE", engine).replace("COLD", cold)
        (folder / "model.yaml").write_text(text)
    (tmp_path / "models/strict/echo.py").write_text(
        "class Echo:\n    def run(self, x):\n        return {'y': x['x']}\n"
    )
    dims = ["batch", "width"]
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, dims)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "models/open/net.onnx")
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    arguments = ["--model-store", str(tmp_path / "models")]
    out = str(tmp_path / "bundle")
    done = subprocess.run(
        [sys.executable, "-m", "serving", "warm", *ENGINES, *arguments, "--out", out],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    process = ServerProcess([*ENGINES, *arguments, "--bundle", out], environment)
    try:
        process.wait_ready(120)
        yield process
    finally:
        process.stop()


@pytest.fixture
def prometheus(tmp_path: Path, server: ServerProcess, exporter: str) -> Iterator[str]:
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed (Debian: apt-get install prometheus)")
    for name in RULES:
        shutil.copy(REPOSITORY / "deploy/prometheus" / name, tmp_path)
    config = yaml.safe_load((REPOSITORY / "deploy/prometheus/prometheus.yaml").read_text())
    config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"] = [{"targets": [server.url.removeprefix("http://")]}]
    config["scrape_configs"].append({"job_name": "amd", "static_configs": [{"targets": [exporter]}]})
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(config))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    process = subprocess.Popen(
        [
            program,
            f"--config.file={tmp_path / 'prometheus.yaml'}",
            f"--storage.tsdb.path={tmp_path / 'tsdb'}",
            f"--web.listen-address={address}",
            "--log.level=error",
        ]
    )
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(30)


def ask(prometheus: str, expression: str) -> list[Any]:
    answer = httpx.get(f"{prometheus}/api/v1/query", params={"query": expression}).json()
    assert answer["status"] == "success", f"{expression}: {answer}"
    return answer["data"]["result"]


def until(what: str, holds: Callable[[], bool], seconds: float = 120) -> None:
    """Waits: Prometheus says nothing when it has scraped or evaluated."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if holds():
                return
        except httpx.TransportError:
            pass  # it does not listen yet
        assert time.monotonic() < deadline, what
        time.sleep(0.5)


def infer(server: ServerProcess, model: str, width: int) -> int:
    inputs = [{"name": "x", "shape": [1, width], "datatype": "FP32", "data": [1.0] * width}]
    return httpx.post(f"{server.url}/v2/models/{model}/infer", json={"inputs": inputs}).status_code


def burst(server: ServerProcess) -> None:
    """19 warm requests and one that is not, to each model."""
    for _ in range(19):
        assert infer(server, "open", 8) == infer(server, "strict", 4) == 200
    assert infer(server, "open", 5) == 200
    assert infer(server, "strict", 5) == 503


def queries() -> list[str]:
    """What panels ask, with every variable set to all."""
    asked = []
    for file in DASHBOARDS:
        panels = json.loads(file.read_text())["panels"]
        panels += [inner for panel in panels for inner in panel.get("panels", ())]
        asked += [target["expr"] for panel in panels for target in panel.get("targets", ())]
    for name in ("cluster", "namespace", "model"):
        asked = [expression.replace(f"${name}", ".*") for expression in asked]
    return asked


@pytest.mark.slow
def test_every_rule_and_every_panel_has_an_answer(server: ServerProcess, prometheus: str) -> None:
    lookups = 'sum(preheat_shape_lookups_total{model="open"})'
    for count in (20, 40, 60):  # a rate is between two scrapes
        burst(server)
        until(f"{count} lookups", lambda count=count: [r["value"][1] for r in ask(prometheus, lookups)] == [str(count)])
    recording = yaml.safe_load((REPOSITORY / "deploy/prometheus" / RULES[0]).read_text())
    wanted = {rule["record"] for group in recording["groups"] for rule in group["rules"]} | set(queries())
    assert len(wanted) > 40
    missing = set(wanted)

    def all_answer() -> bool:
        missing.difference_update([expression for expression in missing if ask(prometheus, expression)])
        return not missing

    try:
        until("", all_answer)
    except AssertionError:
        pytest.fail(f"no data: {sorted(missing)}")

    hits = 'sum(preheat_shape_lookups_total{model="open",outcome!="cold"})'
    assert [r["value"][1] for r in ask(prometheus, f"{hits} / {lookups}")] == ["0.95"]
    (p99,) = ask(prometheus, 'histogram_quantile(0.99, sum by (le) (preheat_request_seconds_bucket{model="open"}))')
    assert 0 < float(p99["value"][1]) < 60
    groups = httpx.get(f"{prometheus}/api/v1/rules").json()["data"]["groups"]
    assert {rule["health"] for group in groups for rule in group["rules"]} == {"ok"}
