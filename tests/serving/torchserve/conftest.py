"""Models of plain Python, with a bundle in which what a test says is proven."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from handlers.loading import Model
from handlers.spec import load_spec
from serving.model import Served
from serving.prepare import Prepared
from serving.torchserve.session import Session
from warmup.plan import expand
from warmup.proof import Proof, ShapeProof
from warmup.stores.store import Settings

_NET = """
class Net:
    ran = []

    def run(self, inputs):
        self.ran.append(inputs["x"].shape)
        if (inputs["x"] == 13).any():
            raise RuntimeError("thirteen")
        return {"y": inputs["x"] * 2}
"""

_HANDLER = """
from handlers.tensors import TensorHandler


class Double(TensorHandler):
    def crop(self, outputs, asked, ran):
        return {"y": outputs["y"][..., : asked["x"].dims[-1]]}
"""

_MODEL = """
name: double
version: "3"
handler: handler.py
engine: {{kind: python, source: "net.py:Net"}}
inputs: [{{name: x, dtype: float32, dims: [batch, width]}}]
outputs: [{{name: y, dtype: float32, dims: [batch, width]}}]
shapes: {{list: ["x=1x4:fp32", "x=2x4:fp32", "x=4x4:fp32", "x=1x8:fp32"], pad: [width]}}
cold: {cold}
batching: {{max_delay_ms: 5, queue: 32}}
limits: {{request_bytes: 4096, timeout_s: 7.5}}
ready_coverage: {coverage}
"""

SECONDS = {"x=1x4:fp32": 0.010, "x=2x4:fp32": 0.012, "x=4x4:fp32": 0.014, "x=1x8:fp32": 0.020}


@pytest.fixture
def make_model(tmp_path: Path) -> Callable[..., Model]:
    """A model that doubles, named ``double``, in a folder of its own."""

    def make(cold: str = "pad", coverage: float = 1.0) -> Model:
        folder = tmp_path / "double"
        folder.mkdir(exist_ok=True)
        (folder / "model.yaml").write_text(_MODEL.format(cold=cold, coverage=coverage))
        (folder / "net.py").write_text(_NET)
        (folder / "handler.py").write_text(_HANDLER)
        return Model(load_spec(folder), folder)

    return make


@pytest.fixture
def make_session(make_model: Callable[..., Model], tmp_path: Path) -> Callable[..., Session]:
    """A session of that model, started; ``proven`` are the shapes that were, None where there is no proof."""

    def make(cold: str = "pad", proven: tuple[str, ...] | None = tuple(SECONDS), coverage: float = 1.0) -> Session:
        model = make_model(cold, coverage)
        plan = expand(model.spec, model.folder)
        proof = None
        if proven is not None:
            shapes = tuple(
                ShapeProof(p.shape, p.weight, p.shape.text in proven, 1.0, 0.5, SECONDS[p.shape.text]) for p in plan
            )
            proof = Proof("double", shapes)
        served = Served(model.spec, model.folder, plan, proof, {})
        session = Session(Prepared((served,), (), tmp_path, Settings(), None), {})
        session.start()
        return session

    return make
