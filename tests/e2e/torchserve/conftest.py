"""The same models, from the same bundle, in Preheat's server and in TorchServe, for tests of what both must do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import pytest

from serving.process import ServerProcess
from serving.torchserve.process import TorchServeProcess, free_ports

_NET = """
class Double:
    def run(self, inputs):
        if (inputs["x"] == 13).any():
            raise RuntimeError("thirteen")
        return {"y": inputs["x"] * 2}
"""

_DOUBLE = """
name: double
handler: handler.py
engine: {kind: python, source: "double.py:Double"}
inputs: [{name: x, dtype: float32, dims: [batch, width]}]
outputs: [{name: y, dtype: float32, dims: [batch, width]}]
shapes:
  list: ["x=1x4:fp32", "x=2x4:fp32", "x=4x4:fp32", "x=1x8:fp32"]
  pad: [width]
cold: pad
batching: {max_delay_ms: 200}
"""

_DOUBLE_HANDLER = """
from handlers.tensors import TensorHandler


class Double(TensorHandler):
    def crop(self, outputs, asked, ran):
        return {"y": outputs["y"][..., : asked["x"].dims[-1]]}
"""


@dataclass(frozen=True)
class Parity:
    """A server of ``counter`` and ``double``: where it answers inference, questions about models, and metrics."""

    name: str
    url: str
    management: str
    metrics: str
    at_first_ping: tuple[str, ...]  # the states of the workers of ``double`` when TorchServe's /ping first said healthy


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory, make_counter: Callable[[Path], None]) -> Path:
    """A directory with ``models``, and ``bundle`` in which every shape of theirs is proven."""
    place = tmp_path_factory.mktemp("parity")
    make_counter(place / "models")
    folder = place / "models" / "double"
    folder.mkdir()
    (folder / "model.yaml").write_text(_DOUBLE)
    (folder / "handler.py").write_text(_DOUBLE_HANDLER)
    (folder / "double.py").write_text(_NET)
    _preheat(place, "warm", "--model-store", str(place / "models"), "--out", str(place / "bundle"))
    return place


@pytest.fixture(scope="session")
def java() -> None:
    """Skips where TorchServe cannot run."""
    if shutil.which("java") is None:
        pytest.skip("TorchServe needs Java: install openjdk-17-jre-headless")


@pytest.fixture(scope="session", params=["preheat", "torchserve"])
def parity(request: pytest.FixtureRequest, place: Path) -> Iterator[Parity]:
    """One of the two servers, ready."""
    with ExitStack() as stack:
        if request.param == "preheat":
            models = ["--model-store", str(place / "models"), "--bundle", str(place / "bundle")]
            server = stack.enter_context(ServerProcess(models, _environment(place)))
            server.wait_ready(120)
            yield Parity("preheat", server.url, server.url, server.url, ("READY",))
        else:
            request.getfixturevalue("java")
            store = _archived(place, "store", "--bundle", str(place / "bundle"))
            server = stack.enter_context(TorchServeProcess(store, place / "run", _environment(place)))
            server.wait_answering(120)
            states = tuple(server.workers("double"))
            server.wait_ready(240)
            yield Parity("torchserve", server.url, server.management_url, server.metrics_url, states)


@pytest.fixture
def name(parity: Parity) -> str:
    return parity.name


@pytest.fixture
def server(parity: Parity) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=parity.url, timeout=60) as client:
        yield client


@pytest.fixture
def management(parity: Parity) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=parity.management, timeout=60) as client:
        yield client


@pytest.fixture(scope="session")
def archived(place: Path) -> Callable[..., Path]:
    """Makes a model store for TorchServe with ``preheat archive``, on ports of its own; returns its path."""
    return partial(_archived, place)


def _archived(place: Path, name: str, *arguments: str) -> Path:
    """A model store for TorchServe, made by ``preheat archive``."""
    out = place / name
    models = ["--model-store", str(place / "models"), "--out", str(out), "--port", str(free_ports(5))]
    _preheat(place, "archive", *models, *arguments)
    grpc = f"grpc_inference_port={free_ports(1)}\ngrpc_management_port={free_ports(1)}\n"
    with (out / "config.properties").open("a") as file:
        file.write(grpc)
    return out


def _environment(place: Path) -> dict[str, str]:
    return {**os.environ, "XDG_CACHE_HOME": str(place / "cache"), "XDG_STATE_HOME": str(place / "state")}


def _preheat(place: Path, *arguments: str) -> str:
    """Runs the command; its standard output."""
    command = [sys.executable, "-m", "serving", *arguments]
    done = subprocess.run(command, env=_environment(place), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
