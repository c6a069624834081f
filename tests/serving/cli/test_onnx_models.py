"""What ``preheat plan --placement`` and ``preheat bench --breakdown`` say of an ONNX model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from serving.cli.bench import app as bench
from serving.cli.plan import app as plan

SHAPE = "x=1x3x8x8:fp32"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the ONNX model ``net`` and the Python model ``code``."""
    store = tmp_path_factory.mktemp("store")
    (store / "net").mkdir()
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["c"], "conv"), helper.make_node("Relu", ["c"], ["y"], "relu")],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, "height", "width"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, store / "net" / "net.onnx")
    (store / "net" / "model.yaml").write_text(
        "name: net\n"
        "engine: {kind: onnx, source: net.onnx, threads: 1, providers: [migraphx, rocm, cpu]}\n"
        "inputs: [{name: x, dtype: fp32, dims: [batch, 3, height, width]}]\n"
        f"shapes: {{list: ['{SHAPE}', 'x=2x3x8x8:fp32']}}\n"
    )
    (store / "code").mkdir()
    (store / "code" / "model.yaml").write_text(
        "name: code\n"
        "engine: {kind: python, source: 'code.py:Code'}\n"
        "inputs: [{name: x, dtype: fp32, dims: [batch, 3]}]\n"
        "outputs: [{name: y, dtype: fp32, dims: [batch, 3]}]\n"
        "shapes: {list: ['x=1x3:fp32']}\n"
    )
    return store


def run(app, *arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_placement_of_every_provider_at_the_heaviest_shape(store: Path) -> None:
    result = run(plan, "net", "--model-store", store, "--placement", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    found = {placed["provider"]: placed for placed in document["placements"]}
    assert found["cpu"]["source"] == "session"
    assert found["rocm"]["operations"] == 4 * 36 * 27 + 4 * 36
    assert (found["rocm"]["nodes_taken"], found["rocm"]["nodes"], found["rocm"]["shape"]) == (2, 2, SHAPE)
    assert found.keys() | document["unknown"].keys() == {"migraphx", "rocm", "cpu"}
    table = run(plan, "net", "--model-store", store, "--placement").stdout
    assert "2 of 2 (100.0%)" in table


def test_breakdown_of_every_provider_that_can_be_had(store: Path) -> None:
    result = run(
        bench, "--breakdown", "--model", "net", "--model-store", store, "--shape", SHAPE, "--repeats", 2, "--json"
    )
    document = json.loads(result.stdout)
    assert result.exit_code == (0 if all(r["first"]["holds"] and r["steady"]["holds"] for r in document["rows"]) else 1)
    measured = {row["provider"] for row in document["rows"]}
    assert "cpu" in measured and measured | document["absent"].keys() == {"migraphx", "rocm", "cpu"}
    assert document["verdicts"].keys() == {SHAPE}
    for row in document["rows"]:
        for parts in (row["first"], row["steady"]):
            named = [parts[name] for name in ("parse", "optimise", "execute", "copy", "rest")]
            assert sum(named) == pytest.approx(parts["total"])
    shown = run(bench, "--breakdown", "--model", "net", "--model-store", store, "--repeats", 1).stdout
    assert "T_parse" in shown and "x=2x3x8x8:fp32" in shown


@pytest.mark.parametrize(
    ("app", "arguments", "said"),
    [
        (plan, ("code", "--placement"), "code: --placement is for ONNX models, this one is python"),
        (bench, ("--breakdown", "--model", "code"), "--breakdown is for ONNX models; code is python"),
        (bench, ("--breakdown",), "--breakdown takes --model and no URL"),
        (bench, ("http://127.0.0.1:1", "--breakdown", "--model", "net"), "--breakdown takes --model and no URL"),
    ],
)
def test_what_cannot_be_said_is_an_error(store: Path, app, arguments: tuple[str, ...], said: str) -> None:
    result = run(app, *arguments, "--model-store", store)
    assert (result.exit_code, said in result.stderr) == (2, True), result.stderr
