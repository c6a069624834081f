"""The real Prometheus with the shipped rules, watching a real server: every rule and every panel's query has an answer,
what the examples for canaries and autoscaling ask for is there, and Prometheus agrees with what the client measured.

AMD's exporter is played: a page with its metric names and made-up numbers.
"""

from __future__ import annotations

import bisect
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
import numpy as np
import onnx
import pytest
import yaml
from onnx import TensorProto, helper

from serving.bench import BenchResult, read_result
from serving.metrics.metrics import REQUEST_BUCKETS
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
    "timed": ('{kind: python, source: "timed.py:Timed"}', "run"),
}
ECHO = "class Echo:\n    def run(self, x):\n        return {'y': x['x']}\n"
# Long enough that what the client adds is small beside it.
TIMED = "import time\nclass Timed:\n    def run(self, x):\n        time.sleep(0.03)\n        return {'y': x['x']}\n"
LABELS = {"namespace": "serving", "pod": "preheat-0"}  # which the PodMonitor's scrapes have
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


@pytest.fixture(scope="module")
def exporter() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Exporter)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Three models from a bundle: one refuses what is not planned, two run it, and one of these takes 30 ms."""
    tmp_path = tmp_path_factory.mktemp("server")
    for name, (engine, cold) in ENGINES.items():
        folder = tmp_path / "models" / name
        folder.mkdir(parents=True)
        text = MODEL.replace("NAME", name).replace("ENGINE", engine).replace("COLD", cold)
        (folder / "model.yaml").write_text(text)
    (tmp_path / "models/strict/echo.py").write_text(ECHO)
    (tmp_path / "models/timed/timed.py").write_text(TIMED)
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


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory, server: ServerProcess, exporter: str) -> Iterator[str]:
    tmp_path = tmp_path_factory.mktemp("prometheus")
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed (Debian: apt-get install prometheus)")
    for name in RULES:
        shutil.copy(REPOSITORY / "deploy/prometheus" / name, tmp_path)
    config = yaml.safe_load((REPOSITORY / "deploy/prometheus/prometheus.yaml").read_text())
    config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"] = [
        {"targets": [server.url.removeprefix("http://")], "labels": LABELS}
    ]
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

    groups = httpx.get(f"{prometheus}/api/v1/rules").json()["data"]["groups"]
    assert {rule["health"] for group in groups for rule in group["rules"]} == {"ok"}
    canaries_and_autoscaling_have_answers(prometheus)


def canaries_and_autoscaling_have_answers(prometheus: str) -> None:
    """The queries of the examples, as Argo Rollouts and the adapter fill them in."""
    examples = REPOSITORY / "deploy/kubernetes/examples"
    template = yaml.safe_load((examples / "analysistemplate.yaml").read_text())
    for metric in template["spec"]["metrics"]:
        query = metric["provider"]["prometheus"]["query"]
        for name, value in {"namespace": "serving", "model": "open"}.items():
            query = query.replace(f"{{{{args.{name}}}}}", value)
        result = [float(series["value"][1]) for series in ask(prometheus, query)]
        assert len(result) == 1, query
        # Argo's expressions differ from Python's in the word for "and" only.
        held = eval(metric["successCondition"].replace("&&", "and"), {"result": result, "len": len})
        assert held is (metric["name"] == "p99"), "5 % of the requests were cold"
        assert not eval(metric["successCondition"].replace("&&", "and"), {"result": [], "len": len})
    adapter = yaml.safe_load((examples / "prometheus-adapter-values.yaml").read_text())["rules"]
    for kind, group in (("custom", "namespace,pod"), ("external", "namespace")):
        for rule in adapter[kind]:
            series = ask(prometheus, rule["seriesQuery"])
            assert series and all(one["metric"]["namespace"] == "serving" for one in series), rule
            assert {one["metric"].get("pod") for one in series} == ({"preheat-0"} if "pod" in group else {None})
            query = rule["metricsQuery"].replace("<<.Series>>", series[0]["metric"]["__name__"])
            query = query.replace("<<.LabelMatchers>>", 'namespace="serving"').replace("<<.GroupBy>>", group)
            assert len(ask(prometheus, query)) == 1, query


@pytest.mark.slow
def test_prometheus_agrees_with_what_the_client_measured(
    server: ServerProcess, prometheus: str, tmp_path: Path
) -> None:
    weights = {"x=1x8:fp32": 5, "x=2x4:fp32": 3, "x=1x5:fp32": 1}  # the last one is not planned
    (tmp_path / "traffic.json").write_text(json.dumps({"shapes": weights}))
    result = bench(server, "timed", tmp_path, shapes=tmp_path / "traffic.json")
    assert result.lookups is not None and 0 < result.lookups.outcomes["cold"] < len(result.samples)
    counted = 'sum(preheat_request_seconds_count{model="timed"})'
    until("all requests", lambda: [r["value"][1] for r in ask(prometheus, counted)] == [str(len(result.samples))])

    hits, lookups = (f'sum(preheat_shape_lookups_total{{model="timed"{which}}})' for which in (',outcome!="cold"', ""))
    (rate,) = ask(prometheus, f"{hits} / {lookups}")
    assert float(rate["value"][1]) == result.hit_rate
    by_client = [sample.seconds for sample in result.samples]
    for quantile in (0.5, 0.99):
        expression = f'histogram_quantile({quantile}, sum by (le) (preheat_request_seconds_bucket{{model="timed"}}))'
        (seen,) = ask(prometheus, expression)
        measured = float(np.quantile(by_client, quantile, method="inverted_cdf"))
        assert abs(bucket(float(seen["value"][1])) - bucket(measured)) <= 1, (seen, measured)


def bench(server: ServerProcess, model: str, folder: Path, shapes: Path) -> BenchResult:
    """150 requests, one after another, by the command itself."""
    out = folder / "bench.json"
    command = [sys.executable, "-m", "serving", "bench", server.url, "--model", model, "--requests", "150"]
    done = subprocess.run(
        [*command, "--concurrency", "1", "--shapes", str(shapes), "--out", str(out)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return read_result(out)


def bucket(seconds: float) -> int:
    """Which bucket of the histogram a time falls into."""
    return bisect.bisect_left(REQUEST_BUCKETS, seconds)
