from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from handlers.engines.engine import open_engine
from handlers.errors import ModelError
from handlers.loading import Model
from handlers.shapes import Shape
from handlers.spec import load_spec
from warmup.verify.onnx import Divergence
from warmup.verify.proving import OutputsCheck, OutputsDiffer
from warmup.verify.sides import NothingToCompare, check, engine_side, other_side, plain_side

SHAPES = (Shape.parse("x=1x3x8x8:fp32"), Shape.parse("x=2x3x8x10:fp32"))
TORCH = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, wrong: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.wrong = wrong

    def forward(self, image):
        y = torch.relu(self.conv(image))
        return y + 1 if self.wrong else y
"""


def torch_model(folder: Path, **engine: object) -> Model:
    folder.mkdir()
    (folder / "net.py").write_text(TORCH)
    extra = "".join(f", {key}: {value}" for key, value in engine.items())
    (folder / "model.yaml").write_text(
        f"name: {folder.name}\n"
        f"engine: {{kind: torch, source: 'net.py:Net', weights: 'random:1'{extra}}}\n"
        "inputs: [{name: image, dtype: fp32, dims: [batch, 3, height, width]}]\n"
        "outputs: [{name: map, dtype: fp32, dims: [batch, 4, rows, columns]}]\n"
        "shapes: {list: ['image=1x3x8x8:fp32']}\n"
    )
    return Model(load_spec(folder), folder)


def onnx_twin(folder: Path, torch_model: Model) -> Model:
    """An ONNX file with the weights of the torch model, and other names."""
    from handlers.engines.module import build_module

    folder.mkdir()
    weights = {
        name: tensor.numpy() for name, tensor in build_module(torch_model.spec, torch_model.folder).state_dict().items()
    }
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "conv.weight", "conv.bias"], ["c"], "conv"),
            helper.make_node("Relu", ["c"], ["y"], "relu"),
        ],
        "twin",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, "height", "width"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4, "rows", "columns"])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "net.onnx")
    (folder / "model.yaml").write_text(
        f"name: {folder.name}\n"
        "engine: {kind: onnx, source: net.onnx, threads: 1}\n"
        "inputs: [{name: x, dtype: fp32, dims: [batch, 3, height, width]}]\n"
        "shapes: {list: ['x=1x3x8x8:fp32']}\n"
    )
    return Model(load_spec(folder), folder)


def test_an_optimised_graph_gives_what_the_plain_one_gives(save: Callable[..., Model]) -> None:
    model = save("right")
    plain = plain_side(model.spec, model.folder)
    checks = check(plain, engine_side(model.spec, model.folder, {}), SHAPES, 1e-3, 0, True)
    assert [one.shape for one in checks] == list(SHAPES)
    assert all(one.close and one.divergence == "" for one in checks)
    assert [output.name for one in checks for output in one.outputs] == ["y", "z"] * 2
    assert plain.words == "ONNX Runtime on the CPU, unoptimised"


def test_another_model_that_differs_is_told_with_its_node(save: Callable[..., Model]) -> None:
    right, wrong = save("right"), save("wrong", "w.head")
    first = engine_side(right.spec, right.folder, {})
    second = other_side(right.spec, first.engine.outputs(), wrong, {})
    (found, _) = check(first, second, SHAPES, 1e-3, 0, True)
    assert {output.name: output.close for output in found.outputs} == {"y": False, "z": True}
    assert isinstance(found.divergence, Divergence)
    assert found.to_json()["divergence"] == {
        "nodes": [{"name": "head", "operation": "Conv"}],
        "inputs_relative": pytest.approx(0, abs=1e-4),
        "outputs_relative": pytest.approx(found.divergence.after.relative),
        "fused": False,
    }


def test_torch_against_onnx_under_other_names(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    model = torch_model(tmp_path / "net")
    twin = onnx_twin(tmp_path / "twin", model)
    shapes = [Shape.parse("image=1x3x8x8:fp32"), Shape.parse("image=2x3x9x8:fp32")]
    for wrong in (False, True):
        mine = torch_model(tmp_path / f"net-{wrong}", arguments=f"{{wrong: {str(wrong).lower()}}}")
        first = engine_side(mine.spec, mine.folder, {})
        second = other_side(mine.spec, first.engine.outputs(), twin, {})
        checks = check(first, second, shapes, 1e-3, 0, True)
        assert [one.close for one in checks] == [not wrong] * 2
        assert ("between two ONNX graphs only" in str(checks[0].divergence)) is wrong


def test_models_that_take_other_inputs_are_refused(tmp_path: Path, save: Callable[..., Model]) -> None:
    pytest.importorskip("torch")
    right, other = save("right"), torch_model(tmp_path / "net")
    first = engine_side(right.spec, right.folder, {})
    with pytest.raises(ModelError, match="outputs: y, z on one side, map on the other"):
        other_side(right.spec, first.engine.outputs(), other, {})


def test_a_model_that_is_its_own_reference_has_nothing_to_be_compared_with(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("eager execution on an accelerator has a reference: the CPU")
    model = torch_model(tmp_path / "net")
    with pytest.raises(NothingToCompare, match="runs as its own reference"):
        plain_side(model.spec, model.folder)
    engine = open_engine(model.spec, model.folder, {})
    engine.load()
    assert OutputsCheck(model.spec, model.folder).check(engine, Shape.parse("image=1x3x8x8:fp32")) is None


def test_half_precision_is_held_against_full_precision(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    model = torch_model(tmp_path / "net", precision="bf16")
    engine = open_engine(model.spec, model.folder, {})
    engine.load()
    proof = OutputsCheck(model.spec, model.folder).check(engine, Shape.parse("image=1x3x8x8:fp32"))
    assert proof is not None
    assert proof.against == "PyTorch eager in fp32 on the CPU"
    assert 0 < proof.relative <= proof.tolerance == pytest.approx(0.08)


def test_the_proof_of_an_engine_that_computes_something_else_fails(save: Callable[..., Model]) -> None:
    """As where a cache gives a compiled graph that holds the weights of another model."""
    right, wrong = save("right"), save("wrong", "w.stem")
    engine = open_engine(wrong.spec, wrong.folder, {})
    engine.load()
    check = OutputsCheck(right.spec, right.folder)
    with pytest.raises(
        OutputsDiffer, match=r"output '[yz]' differs from ONNX Runtime on the CPU, unoptimised by .* allowed"
    ):
        check.check(engine, SHAPES[0])
    check.close()


def test_a_models_own_tolerance_counts(save: Callable[..., Model]) -> None:
    model = save("right")
    strict = model.spec.model_copy(update={"tolerance": 1e-12})
    engine = open_engine(model.spec, model.folder, {})
    engine.load()
    assert OutputsCheck(model.spec, model.folder).check(engine, SHAPES[0])
    with pytest.raises(OutputsDiffer, match="allowed is 1e-12"):
        OutputsCheck(strict, model.folder).check(engine, SHAPES[0])
