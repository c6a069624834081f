"""The real ROCm provider: it asks MIOpen for what the trace predicts, and what was proven searches nothing."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import onnx
import pytest

from handlers.errors import ModelError
from handlers.shapes import Shape
from handlers.sources import resolve
from warmup.sweep.unrecorded import reason
from warmup.trace.onnx import trace_onnx

pytestmark = pytest.mark.miopen
SHAPES = ("x=1x3x20x20:fp32", "x=1x3x20x24:fp32")
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
# Names of networks in the package onnx, and the dims of their input.
QUICK = ["squeezenet", "shufflenet"]
SLOW = ["resnet50", "densenet121", "inception_v2"]
# Half a minute more, which not every run of all tests need pay.
LARGE = pytest.mark.skipif(not os.environ.get("PREHEAT_LARGE_MODELS"), reason="set $PREHEAT_LARGE_MODELS to run it")
RUN = """
import sys
import numpy as np
import onnxruntime
path, *texts = sys.argv[1:]
session = onnxruntime.InferenceSession(path, providers=["ROCMExecutionProvider"])
assert session.get_providers()[0] == "ROCMExecutionProvider"
for text in texts:
    name, dims = text.split(":")[0].split("=")
    session.run(None, {name: np.zeros([int(dim) for dim in dims.split("x")], np.float32)})
"""


def predicted(path: Path, shapes: list[str]) -> set[str]:
    trace = trace_onnx(path, [Shape.parse(text) for text in shapes])
    return {problem.find_db_key() for shape in trace for problem in shape.calls}


def written(rocm, home, path: Path, shapes: list[str]) -> set[str]:
    done = rocm.run(home, "-c", RUN, str(path), *shapes)
    assert done.returncode == 0, done.stderr[-2000:]
    return home.keys()


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=[pytest.mark.slow, LARGE]) for name in SLOW)])
def test_what_is_predicted_is_what_is_written(rocm, machine, name):
    path = LIGHT / f"light_{name}.onnx"
    graph = onnx.load(path, load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    (value,) = [value for value in graph.input if value.name not in weights]
    dims = "x".join(str(dim.dim_value) for dim in value.type.tensor_type.shape.dim)
    shapes = [f"{value.name}={dims}:fp32"]
    assert written(rocm, machine, path, shapes) == predicted(path, shapes)


@pytest.mark.slow
@LARGE
def test_a_text_detector_at_four_shapes(rocm, machine):
    try:
        path = resolve("package:rapidocr/models/PP-OCRv6_det_small.onnx", Path())
    except ModelError as error:
        pytest.skip(str(error))
    shapes = [f"x={dims}:fp32" for dims in ("1x3x64x64", "1x3x96x128", "2x3x64x96", "1x3x192x320")]
    assert written(rocm, machine, path, shapes) == predicted(path, shapes)


@pytest.fixture(scope="module")
def shipped(rocm, warmed, tmp_path_factory) -> Path:
    return warmed(rocm, tmp_path_factory.mktemp("shipped"), "rocm")


def test_what_was_proven_searches_and_compiles_nothing_in_another_place(rocm, shipped, machine, run_model, tmp_path):
    manifest = json.loads((shipped / "bundle" / "manifest.json").read_text())
    assert set(manifest["stores"]) >= {"miopen", "onnxruntime"}
    root = tmp_path / "moved"
    shutil.copytree(shipped / "bundle" / "stores", root)
    (database,) = (root / "miopen" / "db").glob("*.ufdb.txt")
    keys = {line.split("=")[0] for line in database.read_text().splitlines()}
    assert keys == predicted(shipped / "models" / "net" / "net.onnx", list(SHAPES))
    loaded, *ran = run_model(rocm, machine, root, (shipped / "models" / "net", SHAPES))
    assert loaded["provider"] == "rocm"
    assert [answer["outputs"]["y"] for answer in ran] == [[1, 4, 20, 20], [1, 4, 20, 24]]
    assert all(answer["added"] == {} for answer in ran)
    assert machine.count("compile") == 0 and machine.count("launch") > 0
    assert all(seconds >= 0 for seconds in ran[-1]["times"]), "inputs and outputs are on the device, and timed"
    _, *proved = run_model(rocm, machine, root, (shipped / "models" / "net", SHAPES), phase="prove")
    assert all(answer["added"] == {} for answer in proved), "in the mode that would record a search"


def test_the_option_that_should_tune_does_nothing(rocm, model, machine):
    """Why a sweep tunes by MIOpen's environment: the provider never asks for an exhaustive search."""
    code = RUN.replace('"ROCMExecutionProvider"]', '("ROCMExecutionProvider", {"miopen_conv_exhaustive_search": "1"})]')
    path = str(model("net", "rocm") / "net.onnx")
    done = rocm.run(machine, "-c", code, path, SHAPES[0], MIOPEN_ENABLE_LOGGING="1")
    assert done.returncode == 0, done.stderr[-2000:]
    asked = [line for line in done.stderr.splitlines() if "exhaustiveSearch = " in line]
    assert asked and all(line.endswith("exhaustiveSearch = 0") for line in asked)
    assert not list((machine.root / "db").glob("*.udb.txt"))


def test_a_dilated_convolution_has_a_record_only_where_a_sweep_tells_miopen_to_keep_it(
    rocm, model, machine, mi300x, run_model, tmp_path
):
    folder = model("net", "rocm", dilation=2)
    path = folder / "net.onnx"
    (problem,) = {problem for shape in trace_onnx(path, [Shape.parse(SHAPES[0])]) for problem in shape.calls}
    assert reason(problem) == "MIOpen names no workspace for GEMM where dilation is above 1"
    assert written(rocm, machine, path, list(SHAPES[:1])) == set()
    _, ran = run_model(rocm, mi300x(tmp_path / "sweep"), tmp_path / "stores", (folder, SHAPES[:1]), phase="tune")
    assert f"find:{problem.find_db_key()}" in ran["added"]["miopen"]
