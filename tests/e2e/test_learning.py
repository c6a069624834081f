"""A server that learns a shape which it met cold: tuned, proven and warm without a restart, and no request waits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from serving.process import ServerProcess

pytest.importorskip("torch")

MODEL = """
name: learner
engine: {kind: torch, source: "net.py:Net", weights: "random:1", execution: compile, threads: 1}
inputs: [{name: x, dtype: fp32, dims: [batch, width]}]
outputs: [{name: y, dtype: fp32, dims: [batch, width]}]
shapes: {list: ["x=1x8:fp32"]}
cold: run
learn: true
learn_shapes: 1
batching: {max_delay_ms: 0}
"""
NET = """
import torch
from torch import nn


class Net(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2 + 1
"""


def ask(url: str, width: int) -> list[float]:
    data = [float(i) - 1 for i in range(width)]
    body = {"inputs": [{"name": "x", "shape": [1, width], "datatype": "FP32", "data": data}]}
    request = urllib.request.Request(
        f"{url}/v2/models/learner/infer", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["outputs"][0]["data"]


def right(width: int) -> list[float]:
    return [max(float(i) - 1, 0) * 2 + 1 for i in range(width)]


def shapes(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/v2/models/learner/shapes", timeout=60) as answer:
        return json.load(answer)


def metric(url: str, line: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        found = [text for text in answer.read().decode().splitlines() if text.startswith(f"{line} ")]
    return float(found[0].rsplit(" ", 1)[1])


def wait_for(server: ServerProcess, condition: Callable[[], bool], seconds: float) -> None:
    """Until the server says so by itself: nothing tells of it."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "\n".join(server.log[-30:])
        time.sleep(0.2)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    place = tmp_path_factory.mktemp("learning")
    folder = place / "store" / "learner"
    folder.mkdir(parents=True)
    (folder / "model.yaml").write_text(MODEL)
    (folder / "net.py").write_text(NET)
    environment = {**os.environ, "XDG_CACHE_HOME": str(place / "cache"), "XDG_STATE_HOME": str(place / "state")}
    arguments = ["--model-store", str(place / "store")]
    warm = [sys.executable, "-m", "serving", "warm", *arguments, "--out", str(place / "bundle")]
    done = subprocess.run(warm, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    with ServerProcess([*arguments, "--bundle", str(place / "bundle")], environment) as server:
        server.wait_ready(120)
        yield server


@pytest.mark.slow
@pytest.mark.timeout(900)  # it compiles three times
def test_a_shape_met_cold_becomes_warm(server: ServerProcess) -> None:
    url = server.url
    for _ in range(2):
        assert ask(url, 16) == right(16)
    assert ask(url, 24) == right(24)
    assert shapes(url)["outcomes"] == {"warm": 0, "padded": 0, "cold": 3}
    assert not shapes(url)["learnt"]
    wait_for(server, lambda: bool(shapes(url)["learnt"]), 250)

    (learnt,) = shapes(url)["learnt"]  # the one that came most often
    assert (learnt["shape"], learnt["proven"], learnt["warm"]) == ("x=1x16:fp32", True, True)
    assert learnt["first_seconds"] > 0 and learnt["steady_seconds"] > 0
    cold = shapes(url)["outcomes"]["cold"]
    assert ask(url, 16) == right(16)
    outcomes = shapes(url)["outcomes"]
    assert (outcomes["warm"], outcomes["cold"]) == (1, cold)
    assert metric(url, 'preheat_shapes{model="learner",state="learnt"}') == 1
    assert metric(url, 'preheat_store_new_entries_total{store="inductor"}') == 0

    with ThreadPoolExecutor(4) as clients:  # the ceiling is reached: what comes now stays cold, and is answered
        answers = list(clients.map(lambda width: ask(url, width), [16, 24, 8, 24] * 8))
    assert answers == [right(width) for width in [16, 24, 8, 24] * 8]
    assert len(shapes(url)["learnt"]) == 1
