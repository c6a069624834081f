from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from handlers.engines.engine import example
from handlers.loading import Model
from handlers.shapes import Shape
from handlers.sources import resolve
from warmup.sessions import CannotOpen, Wanted
from warmup.verify.onnx import CannotBisect, OnnxGraph, bisect

SHAPE = Shape.parse("x=1x3x8x8:fp32")
PLAIN = Wanted(threads=1, optimise=False)
FULL = Wanted(threads=1)


def graph(model: Model, wanted: Wanted = FULL) -> OnnxGraph:
    return OnnxGraph(model.folder / "net.onnx", wanted)


@pytest.mark.parametrize(
    ("weight", "node", "outputs"),
    [
        ("w.stem", "stem", ["y", "z"]),
        ("w.left", "left", ["y", "z"]),
        ("w.right", "right", ["y"]),
        ("b.right", "right", ["y"]),
        ("w.head", "head", ["y"]),
    ],
)
def test_the_node_whose_weight_was_changed_is_named(
    save: Callable[..., Model], weight: str, node: str, outputs: list[str]
) -> None:
    right, wrong = save("right"), save("wrong", weight)
    found = bisect(graph(right, PLAIN), graph(wrong), example(SHAPE), outputs, 1e-3)
    assert [step.name for step in found.nodes] == [node]
    assert found.alone and found.before.within(1e-3) and not found.after.within(1e-3)
    assert str(found).startswith(f"{node} (Conv): inputs agree to ")


def test_of_two_wrong_nodes_the_first_is_named(save: Callable[..., Model]) -> None:
    found = bisect(graph(save("right")), graph(save("wrong", "w.head", "w.left")), example(SHAPE), ["y"], 1e-3)
    assert [step.name for step in found.nodes] == ["left"]


def test_nodes_that_are_named_otherwise_in_between_are_taken_together(save: Callable[..., Model]) -> None:
    right, wrong = save("right"), save("wrong", "w.left")
    model = onnx.load(wrong.folder / "net.onnx")
    for node in model.graph.node:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                if name == "left.y":
                    names[index] = "renamed"
    onnx.save(model, wrong.folder / "net.onnx")
    found = bisect(graph(right), graph(wrong), example(SHAPE), ["y"], 1e-3)
    assert {step.name for step in found.nodes} == {"left", "right", "mixed"}
    assert "between" in str(found)


def test_a_tensor_that_no_session_can_give_says_so(save: Callable[..., Model]) -> None:
    right = graph(save("right"))
    with pytest.raises(CannotBisect, match="no node writes nothing"):
        bisect(right, right, example(SHAPE), ["nothing"], 1e-3)
    with pytest.raises(CannotOpen, match="rocm: onnxruntime .* was built without ROCM"):
        OnnxGraph(right.path, Wanted("rocm")).run(example(SHAPE), ["y"])


def test_bodies_of_branches_see_the_tensors_around_them(tmp_path: Path) -> None:
    info = helper.make_tensor_value_info

    def branch(scale: str) -> onnx.GraphProto:
        nodes = [helper.make_node("Mul", ["a", scale], ["b"])]
        return helper.make_graph(nodes, "branch", [], [info("b", onnx.TensorProto.FLOAT, None)])

    def build(path: Path, offset: float) -> OnnxGraph:
        constants = {"one": 1.0, "two": 2.0, "offset": offset}
        nodes = [
            helper.make_node("Add", ["x", "offset"], ["a"], "shift"),
            helper.make_node("ReduceMax", ["x"], ["most"], "most", keepdims=0),
            helper.make_node("Greater", ["most", "one"], ["large"], "large"),
            helper.make_node("If", ["large"], ["y"], "choice", then_branch=branch("one"), else_branch=branch("two")),
        ]
        inputs = [info("x", onnx.TensorProto.FLOAT, ["n"])]
        weights = [numpy_helper.from_array(np.array(value, np.float32), name) for name, value in constants.items()]
        made = helper.make_graph(nodes, "g", inputs, [info("y", onnx.TensorProto.FLOAT, ["n"])], weights)
        onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
        return OnnxGraph(path, FULL)

    right, wrong = build(tmp_path / "right.onnx", 1.0), build(tmp_path / "wrong.onnx", 2.0)
    found = bisect(right, wrong, {"x": np.arange(3, dtype=np.float32)}, ["y"], 1e-3)
    assert [step.name for step in found.nodes] == ["shift"]


def test_weights_in_files_of_their_own_are_found(save: Callable[..., Model]) -> None:
    right, wrong = save("right"), save("wrong", "w.right")
    for model in (right, wrong):
        path = model.folder / "net.onnx"
        onnx.save(onnx.load(path), path, save_as_external_data=True, location="net.bin", size_threshold=0)
        assert (model.folder / "net.bin").is_file()
    found = bisect(graph(right), graph(wrong), example(SHAPE), ["y"], 1e-3)
    assert [step.name for step in found.nodes] == ["right"]


@pytest.mark.skipif(importlib.util.find_spec("rapidocr") is None, reason="needs the models of rapidocr")
def test_a_wrong_weight_deep_in_a_real_network_is_found(tmp_path: Path, spoil: Callable[..., None]) -> None:
    path = resolve("package:rapidocr/models/PP-OCRv6_det_small.onnx", tmp_path)
    model = onnx.load(path)
    weights = {tensor.name for tensor in model.graph.initializer}
    convolutions = [node for node in model.graph.node if node.op_type == "Conv" and node.input[1] in weights]
    chosen = convolutions[len(convolutions) // 2]
    spoil(model, chosen.input[1])
    onnx.save(model, tmp_path / "wrong.onnx")
    output = model.graph.output[0].name
    inputs = example(Shape.parse("x=1x3x64x64:fp32"))
    found = bisect(OnnxGraph(path, PLAIN), OnnxGraph(tmp_path / "wrong.onnx", FULL), inputs, [output], 1e-3)
    assert [step.name for step in found.nodes] == [chosen.name]
