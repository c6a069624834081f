"""Which convolutions MIOpen keeps no record of by itself, when ONNX Runtime's ROCm provider asks for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from handlers.loading import find_models
from warmup.miopen.problem import ConvProblem
from warmup.sweep import unrecorded as module
from warmup.sweep.unrecorded import FIXED, reason, unfolded_bytes, unrecorded

KEY = "4-16-16-3x3-4-16-16-1-2x2-1x1-2x2-0-NCHW-FP32-F"


def conv(size: int = 16, filter: int = 3, dilation: int = 1, channels: int = 64, **more) -> ConvProblem:
    return ConvProblem.from_dims(
        (1, channels, size, size),
        (channels, channels, filter, filter),
        pad=(dilation * (filter // 2),) * 2,
        stride=(1, 1),
        dilation=(dilation, dilation),
        **more,
    )


def test_the_workspace_of_gemm_is_what_the_library_writes_of_it() -> None:
    """The record of a convolution whose GemmFwdRest took 7375872 bytes (docs/miopen.md)."""
    key = "3-224-224-7x7-64-112-112-16-3x3-2x2-1x1-0-NCHW-FP32-F"
    assert unfolded_bytes(ConvProblem.from_find_db_key(key)) == 7375872


def test_dilation_hides_the_workspace_of_gemm() -> None:
    assert reason(conv(dilation=2)) == "MIOpen names no workspace for GEMM where dilation is above 1"
    assert reason(conv()) == ""


def test_a_fixed_workspace_is_too_small_for_large_images() -> None:
    large = conv(size=320)
    assert unfolded_bytes(large) > FIXED
    assert reason(large) == "", "the provider asks how much is needed"
    assert reason(large, max_workspace=False).startswith(f"GEMM needs {64 * 9 * 320 * 320 * 4} bytes of workspace")
    assert reason(conv(size=16), max_workspace=False) == ""
    assert reason(conv(size=640, filter=1), max_workspace=False) == "", "pointwise GEMM needs none"
    up = ConvProblem.from_dims(
        (1, 64, 320, 320), (64, 64, 4, 4), pad=(1, 1), stride=(2, 2), dilation=(1, 1), transposed=True
    )
    assert reason(up).startswith("GEMM needs ")


@pytest.mark.parametrize(("kept", "told"), [([KEY], "its record was kept"), ([], "there is none: serving takes what")])
def test_each_is_named_with_what_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: list[str], told: str
) -> None:
    folder = tmp_path / "models" / "net"
    folder.mkdir(parents=True)
    weights = numpy_helper.from_array(np.ones((4, 4, 3, 3), np.float32), "w")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], pads=[2, 2, 2, 2], dilations=[2, 2]),
        helper.make_node("Conv", ["h", "w"], ["y"], pads=[1, 1, 1, 1]),
    ]
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4, 16, 16]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", tensors[:1], tensors[1:], [weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "net.onnx")
    (folder / "model.yaml").write_text(
        "name: net\nengine: {kind: onnx, source: net.onnx, providers: [rocm, cpu]}\n"
        "inputs: [{name: x, dtype: float32, dims: [1, 4, 16, 16]}]\nshapes: {list: ['x=1x4x16x16:fp32']}\n"
    )
    database = tmp_path / "stores" / "miopen" / "db"
    database.mkdir(parents=True)
    record = "ConvDirectNaiveConvFwd:0.2,0,miopenConvolutionFwdAlgoDirect"
    (database / "gfx942130.HIP.3_4_0_.ufdb.txt").write_text("".join(f"{key}={record}\n" for key in kept))
    models = find_models(tmp_path / "models", ["net"])
    assert list(unrecorded(models, tmp_path / "stores")) == [], "the installed ONNX Runtime runs it on the CPU"
    monkeypatch.setattr(module, "provider_library", lambda name: Path("there"))
    (note,) = unrecorded(models, tmp_path / "stores")
    assert note.startswith(f"net: {KEY}: MIOpen by itself keeps no record of it: MIOpen names no workspace")
    assert told in note
