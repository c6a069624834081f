from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from serving.cli.verify import app

SHAPE = "x=1x3x8x8:fp32"


def add(store: Path, name: str, wrong: bool) -> None:
    folder = store / name
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    first, second = (random.standard_normal(dims, dtype=np.float32) for dims in ((4, 3, 3, 3), (2, 4, 1, 1)))
    if wrong:
        second[1] += 5
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c1"], "first"),
        helper.make_node("Relu", ["c1"], ["r1"], "middle"),
        helper.make_node("Conv", ["r1", "w2"], ["y"], "second"),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, "height", "width"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 2, "rows", "columns"])],
        [numpy_helper.from_array(first, "w1"), numpy_helper.from_array(second, "w2")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "net.onnx")
    (folder / "model.yaml").write_text(
        f"name: {name}\n"
        "engine: {kind: onnx, source: net.onnx, threads: 1, providers: [rocm, cpu]}\n"
        "inputs: [{name: x, dtype: fp32, dims: [batch, 3, height, width]}]\n"
        f"shapes: {{list: ['{SHAPE}', 'x=2x3x9x8:fp32']}}\n"
    )


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with the models ``right`` and ``wrong``, of which the second has one weight changed."""
    add(tmp_path / "store", "right", False)
    add(tmp_path / "store", "wrong", True)
    return tmp_path / "store"


def run(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_every_planned_shape_is_held_against_the_plain_cpu(store: Path) -> None:
    result = run("right", "--model-store", store, "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["expected"] == "ONNX Runtime on the CPU, unoptimised"
    assert document["close"] is True and document["tolerance"] == pytest.approx(1e-3)
    assert [shape["shape"] for shape in document["shapes"]] == [SHAPE, "x=2x3x9x8:fp32"]
    (output,) = document["shapes"][0]["outputs"]
    assert (output["output"], output["close"]) == ("y", True)
    assert output["relative"] < 1e-3 and output["cosine"] > 0.999


def test_a_difference_ends_with_1_and_the_name_of_the_node(store: Path) -> None:
    result = run("right", "--against", "wrong", "--model-store", store, "--shape", SHAPE)
    assert result.exit_code == 1
    assert "DIFFERS" in result.stdout
    assert f"{SHAPE}: first node that differs: second (Conv): inputs agree to" in result.stdout
    document = json.loads(run("right", "--against", "wrong", "--model-store", store, "--no-bisect", "--json").stdout)
    assert document["close"] is False
    assert [shape["divergence"] for shape in document["shapes"]] == [None, None]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("absent",), "'absent' is neither a folder with a model.yaml nor a model in"),
        (("right", "--provider", "rocm"), "no listed provider can be had: rocm: "),
        (("right", "--execution", "compile"), "--execution is for torch models; right is onnx"),
        (("right", "--shape", "x=1x4x8x8:fp32"), "x=1x4x8x8:fp32: input 'x' has dims [1, 4, 8, 8]"),
        (("right", "--shape", "eight"), "'eight' is not NAME=DIMxDIM...:DTYPE"),
    ],
)
def test_what_cannot_be_run_says_why_and_ends_with_2(store: Path, arguments: tuple[str, ...], said: str) -> None:
    result = run(*arguments, "--model-store", store)
    assert (result.exit_code, said in result.stderr) == (2, True), result.stderr
