"""Servers started as a user starts them, and a store of models that answer with what they were sent."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest

from handlers.shapes import DTYPES

Serve = Callable[..., AbstractContextManager[str]]

_ECHO = """
class Echo:
    def run(self, inputs):
        return {"y": inputs["x"]}


class Pair:
    def run(self, inputs):
        return {"sum": inputs["a"].sum(axis=1, keepdims=True), "mask": inputs["mask"]}


class Histogram:
    def run(self, inputs):
        return {"count": inputs["histogram"].sum(axis=1, keepdims=True)}
"""

_MODEL = """
name: echo-{dtype}
version: "3"
engine: {{kind: python, source: "echo.py:Echo"}}
inputs: [{{name: x, dtype: {dtype}, dims: [batch, 2, width]}}]
outputs: [{{name: y, dtype: {dtype}, dims: [batch, 2, width]}}]
shapes: {{grid: {{batch: [1, 2, 4], width: [2, 3]}}}}
cold: run
limits: {{request_bytes: 65536, timeout_s: 20}}
"""

_PAIR = """
name: pair
engine: {kind: python, source: "echo.py:Pair"}
inputs:
  - {name: a, dtype: int64, dims: [batch, length]}
  - {name: mask, dtype: bool, dims: [batch, length]}
outputs:
  - {name: sum, dtype: int64, dims: [batch, 1]}
  - {name: mask, dtype: bool, dims: [batch, length]}
shapes: {list: ["a=1x4:int64,mask=1x4:bool", "a=2x4:int64,mask=2x4:bool"]}
cold: reject
"""

_COUNTER = """
name: counter
version: "2"
handler: handler.py
engine: {kind: python, source: "echo.py:Histogram"}
inputs: [{name: histogram, dtype: float32, dims: [batch, 256]}]
outputs: [{name: count, dtype: float32, dims: [batch, 1]}]
shapes: {list: ["histogram=1x256:fp32"]}
limits: {request_bytes: 100000}
"""

_HANDLER = """
import numpy as np

from handlers.errors import InvalidInput
from handlers.handler import Handler, Prepared


class Counter(Handler):
    def preprocess(self, payload):
        if not payload.body and not payload.fields:
            raise InvalidInput("nothing to count")
        if payload.body == b"fault":
            raise ZeroDivisionError("a fault of the handler")
        body = payload.body or b"".join(payload.fields.values())
        counts = np.bincount(np.frombuffer(body, np.uint8), minlength=256).astype(np.float32)
        return Prepared({"histogram": counts[None]}, payload)

    def postprocess(self, outputs, context):
        if context.content_type == "text/plain":
            return f"{int(outputs['count'][0, 0])} bytes"
        if context.content_type == "application/x-echo":
            return context.body
        return {"count": outputs["count"][0], "type": context.content_type, "fields": sorted(context.fields)}
"""


@pytest.fixture(scope="session")
def echo_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model store: ``echo-DTYPE`` (x -> y, any shape runs) and ``pair`` (a, mask -> sum, mask; cold is rejected), and
    ``counter`` whose handler counts the bytes of any body."""
    store = tmp_path_factory.mktemp("echo-store")
    models = {f"echo-{dtype}": _MODEL.format(dtype=dtype) for dtype in DTYPES} | {"pair": _PAIR, "counter": _COUNTER}
    for name, text in models.items():
        folder = store / name
        folder.mkdir()
        (folder / "model.yaml").write_text(text)
        (folder / "echo.py").write_text(_ECHO)
    (store / "counter" / "handler.py").write_text(_HANDLER)
    return store


@pytest.fixture(scope="session")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Serve:
    """``with serve("--model-store", ...) as url``: a server on a free port that is ready; it is stopped at the end."""

    @contextlib.contextmanager
    def started(*arguments: str | Path, ready_seconds: float = 60) -> Iterator[str]:
        place = tmp_path_factory.mktemp("serve")
        log = place / "log"
        command = [Path(sys.executable).parent / "preheat", "serve", "--port", "0", *map(str, arguments)]
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(place)}
        with log.open("w") as sink:
            process = subprocess.Popen(command, stdout=sink, stderr=sink, env=environment)
        try:
            yield _wait_until_ready(process, log, time.monotonic() + ready_seconds)
        finally:
            process.terminate()
            try:
                process.wait(timeout=20)
            finally:
                process.kill()

    return started


def _wait_until_ready(process: subprocess.Popen[bytes], log: Path, deadline: float) -> str:
    url = None
    while time.monotonic() < deadline and process.poll() is None:
        if url is None:
            found = re.search(r"serving on (http://\S+)", log.read_text())
            url = found[1] if found else None
        elif httpx.get(f"{url}/v2/health/ready").status_code == 200:
            return url
        time.sleep(0.05)
    raise AssertionError(f"the server did not become ready; its log:\n{log.read_text()}")


@pytest.fixture(scope="session")
def echo_server(serve: Serve, echo_store: Path) -> Iterator[str]:
    """The address of a server with the models of ``echo_store``, unproven."""
    with serve("--model-store", echo_store, "--unproven") as url:
        yield url
