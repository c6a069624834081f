"""Small ONNX models in model folders, as a whole and with one weight made wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from handlers.loading import Model
from handlers.spec import load_spec

MODEL = """
name: NAME
engine: {kind: onnx, source: net.onnx, threads: 1}
inputs: [{name: x, dtype: fp32, dims: [batch, 3, height, width]}]
shapes: {list: ["x=1x3x8x8:fp32", "x=2x3x8x10:fp32"]}
"""


def branched() -> onnx.ModelProto:
    """Nodes stem, left, right, mixed, head and gate: two branches between which a wrong node must be told."""
    random = np.random.default_rng(0)

    def weights(name: str, *dims: int) -> TensorProto:
        return numpy_helper.from_array(random.standard_normal(dims, dtype=np.float32) / 8, name)

    nodes = [
        helper.make_node("Conv", ["x", "w.stem"], ["stem.y"], "stem", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["stem.y"], ["stem.relu.y"], "stem.relu"),
        helper.make_node("Conv", ["stem.relu.y", "w.left"], ["left.y"], "left"),
        helper.make_node("Conv", ["stem.relu.y", "w.right", "b.right"], ["right.y"], "right"),
        helper.make_node("Add", ["left.y", "right.y"], ["mixed.y"], "mixed"),
        helper.make_node("Conv", ["mixed.y", "w.head"], ["head.y"], "head"),
        helper.make_node("Sigmoid", ["head.y"], ["y"], "gate"),
        helper.make_node("GlobalAveragePool", ["left.y"], ["z"], "pooled"),
    ]
    graph = helper.make_graph(
        nodes,
        "branched",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, "height", "width"])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "z")],
        [
            weights("w.stem", 8, 3, 3, 3),
            weights("w.left", 8, 8, 1, 1),
            weights("w.right", 8, 8, 1, 1),
            weights("b.right", 8),
            weights("w.head", 4, 8, 1, 1),
        ],
    )
    del graph.output[0].type.tensor_type.shape.dim[:]
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def spoil(model: onnx.ModelProto, name: str) -> None:
    """Makes one number of a weight wrong, by as much as the largest of that weight."""
    for tensor in model.graph.initializer:
        if tensor.name == name:
            array = numpy_helper.to_array(tensor).copy()
            array.flat[array.size // 2] += np.abs(array).max()
            tensor.CopyFrom(numpy_helper.from_array(array, name))
            return
    raise KeyError(name)


@pytest.fixture(name="spoil")
def _spoil() -> Callable[[onnx.ModelProto, str], None]:
    return spoil


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Model]:
    """Saves the branched model in a folder of that name, with the named weights spoilt."""

    def make(name: str, *spoilt: str) -> Model:
        folder = tmp_path / name
        folder.mkdir()
        model = branched()
        for weight in spoilt:
            spoil(model, weight)
        onnx.save(model, folder / "net.onnx")
        (folder / "model.yaml").write_text(MODEL.replace("NAME", name))
        return Model(load_spec(folder), folder)

    return make
