"""A server whose models answer with what they were sent, one model for each dtype, for tests of the protocols."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from handlers.shapes import DTYPES
from serving.process import ServerProcess

_ECHO = """
class Echo:
    def run(self, inputs):
        return {"y": inputs["x"]}


class Pair:
    def run(self, inputs):
        return {"sum": inputs["a"].sum(axis=1, keepdims=True), "mask": inputs["mask"]}

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
engine: {kind: python, source: "histogram.py:Histogram"}
inputs: [{name: histogram, dtype: float32, dims: [batch, 256]}]
outputs: [{name: count, dtype: float32, dims: [batch, 1]}]
shapes: {list: ["histogram=1x256:fp32"]}
limits: {request_bytes: 100000}
"""

_HISTOGRAM = """
class Histogram:
    def run(self, inputs):
        return {"count": inputs["histogram"].sum(axis=1, keepdims=True)}
"""

_COUNTER_HANDLER = """
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
def make_counter() -> Callable[[Path], None]:
    """Puts ``counter`` into a model store: its handler counts the bytes of a body, and fails on the body ``fault``."""

    def make(store: Path) -> None:
        folder = store / "counter"
        folder.mkdir(parents=True)
        (folder / "model.yaml").write_text(_COUNTER)
        (folder / "handler.py").write_text(_COUNTER_HANDLER)
        (folder / "histogram.py").write_text(_HISTOGRAM)

    return make


@pytest.fixture(scope="session")
def echo_store(tmp_path_factory: pytest.TempPathFactory, make_counter: Callable[[Path], None]) -> Path:
    """A model store: ``echo-DTYPE`` (x -> y, any shape runs) and ``pair`` (a, mask -> sum, mask; cold is rejected), and
    ``counter`` whose handler counts the bytes of any body."""
    store = tmp_path_factory.mktemp("echo-store")
    models = {f"echo-{dtype}": _MODEL.format(dtype=dtype) for dtype in DTYPES} | {"pair": _PAIR}
    for name, text in models.items():
        folder = store / name
        folder.mkdir()
        (folder / "model.yaml").write_text(text)
        (folder / "echo.py").write_text(_ECHO)
    make_counter(store)
    return store


@pytest.fixture(scope="session")
def echo_server(echo_store: Path) -> Iterator[str]:
    """The address of a server of all models of ``echo_store``, unproven."""
    with ServerProcess(["--model-store", str(echo_store), "--unproven"]) as server:
        server.wait_ready(60)
        yield server.url


@pytest.fixture(scope="session")
def warm_server(echo_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of ``pair`` and ``echo-bf16``, warmed and proven."""
    place = tmp_path_factory.mktemp("warm-server")
    environment = {**os.environ, "XDG_CACHE_HOME": str(place / "cache"), "XDG_RUNTIME_DIR": str(place / "run")}
    models = ["pair", "echo-bf16", "--model-store", str(echo_store)]
    bundle = str(place / "bundle")
    warm = [sys.executable, "-m", "serving", "warm", *models, "--out", bundle]
    warmed = subprocess.run(warm, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert warmed.returncode == 0, warmed.stdout
    with ServerProcess([*models, "--bundle", bundle], environment) as server:
        server.wait_ready(60)
        yield server.url
