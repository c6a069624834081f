"""Several processes behind one port: one metrics view, a dead one replaced, one orderly end."""

from __future__ import annotations

import http.client
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from serving.process import ServerProcess

MODELS = Path(__file__).parents[2] / "benchmarks" / "models"
BODY = b'{"inputs":[{"name":"x","shape":[1,1,2,2],"datatype":"FP32","data":[1,2,3,4]}]}'


def call(server: ServerProcess, method: str, path: str, body: bytes | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=30)
    try:
        connection.request(method, path, body)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def children(server: ServerProcess) -> set[int]:
    return {child.pid for child in psutil.Process(server.pid).children()}


@pytest.mark.slow
def test_processes_share_a_port_and_their_metrics(start_server: Callable[[Sequence[str]], ServerProcess]) -> None:
    arguments = ["null", "--model-store", str(MODELS), "--unproven", "--processes", "2"]
    server = start_server(arguments)
    server.wait_ready(60)
    workers = children(server)
    assert len(workers) == 2
    deadline = time.monotonic() + 60
    while len([line for line in server.log if line.startswith("serving on")]) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for _ in range(40):
        assert call(server, "POST", "/v2/models/null/infer", BODY)[0] == 200
    pattern = re.compile(r'^preheat_requests_total\{code="200".*?\} (\S+)$', re.MULTILINE)
    while (counted := sum(map(float, pattern.findall(call(server, "GET", "/metrics")[1])))) != 40:
        assert time.monotonic() < deadline, counted  # the other process counts within a second
        time.sleep(0.05)

    victim = min(workers)
    os.kill(victim, signal.SIGKILL)
    while len(children(server) - {victim}) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert victim not in children(server)
    assert server.stop() == 0


def test_a_command_that_cannot_start_ends_all_of_them(start_server: Callable[[Sequence[str]], ServerProcess]) -> None:
    server = start_server(["nobody", "--model-store", str(MODELS), "--unproven", "--processes", "2"])
    assert server.wait(60) == 2
