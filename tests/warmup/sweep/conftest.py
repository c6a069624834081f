"""Small models to sweep: one in plain Python that does what its shapes tell it, one for ONNX Runtime."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import yaml

from handlers.loading import Model
from handlers.spec import load_spec

# What a shape's size makes the model do.
FAILS, DIES, HANGS = 13, 14, 15
CODE = f"""
import os, signal, threading
import numpy as np


class Net:
    def run(self, inputs):
        size = inputs["x"].shape[0]
        if size == {FAILS}:
            raise ValueError("thirteen is not served")
        if size == {DIES}:
            os.kill(os.getpid(), signal.SIGSEGV)
        if size == {HANGS}:
            threading.Event().wait()
        return {{"y": inputs["x"] * np.float32(2)}}
"""
MakeModel = Callable[..., Model]


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of bundles made here is the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def python_model(tmp_path: Path) -> MakeModel:
    """Makes a model in plain Python with the given sizes and weights."""

    def make(sizes: Iterable[int], name: str = "plain", weights: dict[int, float] | None = None) -> Model:
        shapes = [{"shape": f"x={size}:fp32", "weight": (weights or {}).get(size, 1.0)} for size in sizes]
        folder = tmp_path / "models" / name
        return _write(folder, name, {"kind": "python", "source": "net.py:Net"}, ["n"], shapes, CODE)

    return make


@pytest.fixture
def onnx_model(tmp_path: Path) -> MakeModel:
    """Makes a model for ONNX Runtime with the given batch sizes."""

    def make(sizes: Iterable[int], name: str = "graph") -> Model:
        import numpy as np
        import onnx
        from onnx import TensorProto, helper, numpy_helper

        folder = tmp_path / "models" / name
        folder.mkdir(parents=True, exist_ok=True)
        weights = numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
        nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Relu", ["m"], ["y"])]
        tensors = [helper.make_tensor_value_info(tensor, TensorProto.FLOAT, ["n", 4]) for tensor in "xy"]
        graph = helper.make_graph(nodes, "g", tensors[:1], tensors[1:], [weights])
        opset = [helper.make_opsetid("", 17)]
        onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), folder / "graph.onnx")
        shapes = [{"shape": f"x={size}x4:fp32"} for size in sizes]
        return _write(folder, name, {"kind": "onnx", "source": "graph.onnx"}, ["batch", 4], shapes)

    return make


def _write(folder: Path, name: str, engine: dict, dims: list, shapes: list, code: str = "") -> Model:
    folder.mkdir(parents=True, exist_ok=True)
    if code:
        (folder / "net.py").write_text(code)
    document = {
        "name": name,
        "engine": engine,
        "inputs": [{"name": "x", "dtype": "float32", "dims": dims}],
        "outputs": [{"name": "y", "dtype": "float32", "dims": dims}],
        "shapes": {"list": shapes},
    }
    (folder / "model.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(document))))
    return Model(load_spec(folder), folder)
