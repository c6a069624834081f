"""Graphs with other dims, and the smallest graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from handlers.engines.onnxgraph import ONE_NODE, with_dims
from handlers.shapes import Shape


def save(path: Path, weights: np.ndarray, external: bool = False) -> None:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, "rows", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, "rows", 64])],
        [numpy_helper.from_array(weights, "w")],
        value_info=[helper.make_tensor_value_info("h", TensorProto.FLOAT, [None, "rows", 64])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path, save_as_external_data=external, location="weights.bin", size_threshold=0)


def session(graph: bytes, folder: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("external", [False, True])
def test_dims_without_a_name_are_set_in_the_graph(tmp_path: Path, external: bool) -> None:
    path = tmp_path / "net.onnx"
    save(path, np.eye(64, dtype=np.float32), external)
    fixed = session(with_dims(path, Shape.parse("x=3x5x64:fp32")), tmp_path)
    assert fixed.get_inputs()[0].shape == [3, 5, 64] and fixed.get_outputs()[0].shape == [3, 5, 64]
    x = np.random.default_rng(0).standard_normal((3, 5, 64), dtype=np.float32)
    (y,) = fixed.run(None, {"x": x})
    np.testing.assert_array_equal(y, np.maximum(x, 0))  # type: ignore[arg-type]


def test_the_smallest_graph_is_a_graph(tmp_path: Path) -> None:
    onnx.checker.check_model(onnx.load_from_string(ONE_NODE))
    (y,) = session(ONE_NODE, tmp_path).run(None, {"x": np.array([-1, 2], np.float32)})
    np.testing.assert_array_equal(y, [0, 2])  # type: ignore[arg-type]
