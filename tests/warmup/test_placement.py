from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from handlers.shapes import Shape
from handlers.sources import resolve
from warmup.placement import ProviderPlacement, by_rules, place
from warmup.sessions import Wanted

SHAPE = Shape.parse("x=1x3x8x8:fp32")
ROCM, CPU, MIGRAPHX = Wanted("rocm"), Wanted("cpu", threads=1), Wanted("migraphx")


def save(path: Path, nodes: list[onnx.NodeProto], element: int = TensorProto.FLOAT) -> Path:
    kind = helper.tensor_dtype_to_np_dtype(element)
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", element, ["n", 3, "h", "w"])],
        [helper.make_tensor_value_info("y", element, None)],
        [
            numpy_helper.from_array(np.ones((4, 3, 3, 3), kind), "w"),
            numpy_helper.from_array(np.array([1], np.int64), "one"),
            numpy_helper.from_array(np.array([2], np.int64), "two"),
            numpy_helper.from_array(np.array([-1], np.int64), "rest"),
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def flattened() -> list[onnx.NodeProto]:
    """A convolution, and a Reshape to a shape that is computed from the input's."""
    return [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Shape", ["c"], ["s"], "shape"),
        helper.make_node("Slice", ["s", "one", "two"], ["channels"], "slice"),
        helper.make_node("Concat", ["channels", "rest"], ["target"], "concat", axis=0),
        helper.make_node("Reshape", ["c", "target"], ["y"], "reshape"),
    ]


def placed(path: Path, wanted: Wanted) -> ProviderPlacement:
    found = place(path, SHAPE, wanted)
    assert isinstance(found, ProviderPlacement)
    return found


def test_nodes_that_compute_shapes_are_left_to_the_cpu_by_the_rules(tmp_path: Path) -> None:
    found = placed(save(tmp_path / "net.onnx", flattened()), ROCM)
    assert found.source == "rules"
    assert [(node.name, node.op) for node in found.left] == [("slice", "Slice"), ("concat", "Concat")]
    assert found.nodes == 5 and found.node_share == pytest.approx(3 / 5)
    macs = 4 * 64 * 27
    assert found.operations == macs + 1 + 2  # the numbers that Slice and Concat write
    assert found.operation_share == pytest.approx(macs / (macs + 3))


def test_what_has_no_kernel_is_left_to_the_cpu(tmp_path: Path) -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], "conv")]
    path = save(tmp_path / "net.onnx", nodes, TensorProto.DOUBLE)
    graph = onnx.load(path)
    tensors = {"x": (TensorProto.DOUBLE, (1, 3, 8, 8)), "w": (TensorProto.DOUBLE, (4, 3, 3, 3))}
    (left,) = by_rules(graph, tensors, {"y": 5})
    assert (left.name, left.operations, left.reason) == ("conv", 5, "no kernel for fp64")


def test_a_session_says_what_was_fused_and_transposed(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv"),
        helper.make_node("Sigmoid", ["c"], ["s"], "sigmoid"),
        helper.make_node("Mul", ["c", "s"], ["y"], "mul"),
    ]
    found = placed(save(tmp_path / "net.onnx", nodes), CPU)
    assert (found.source, found.nodes, found.left) == ("session", 3, ())
    assert found.node_share == found.operation_share == 1
    assert found.fused == {"QuickGelu": 1}
    assert found.transposes is not None and found.transposes >= 0


def test_what_migraphx_takes_is_not_guessed(tmp_path: Path) -> None:
    found = place(save(tmp_path / "net.onnx", flattened()), SHAPE, MIGRAPHX)
    if isinstance(found, ProviderPlacement):
        pytest.skip("MIGraphX is here")
    assert found.startswith("migraphx: ") and found.endswith("without a session nothing can be said")


@pytest.mark.skipif(importlib.util.find_spec("rapidocr") is None, reason="needs the models of rapidocr")
@pytest.mark.parametrize(
    ("model", "shape", "left"),
    [
        ("PP-OCRv6_det_small", "x=1x3x64x64:fp32", []),
        ("PP-OCRv6_rec_small", "x=1x3x48x320:fp32", ["Slice.2", "Concat.2"]),
        ("ch_ppocr_mobile_v2.0_cls_mobile", "x=1x3x48x192:fp32", []),
    ],
)
def test_the_rules_give_what_the_real_provider_was_seen_to_leave(
    tmp_path: Path, model: str, shape: str, left: list[str]
) -> None:
    """The ROCm provider of ONNX Runtime 1.22 ran 171 of 171, 171 of 173 and 164 of 164 nodes of these, and told of
    Slice.2 that the CPU is faster; see docs/onnxruntime.md."""
    found = place(resolve(f"package:rapidocr/models/{model}.onnx", tmp_path), Shape.parse(shape), ROCM)
    assert isinstance(found, ProviderPlacement)
    assert [node.name for node in found.left] == left
    assert found.operation_share > 0.9999
