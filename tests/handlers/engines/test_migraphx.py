"""What decides the directory of a shape's program: everything that makes another program right."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from handlers.engines.migraphx import Sessions
from handlers.engines.session import Blueprint
from handlers.errors import InvalidInput
from handlers.shapes import Shape

SHAPE = Shape.parse("x=1x3x8x8:fp32")


def save_net(path: Path, seed: int = 0) -> None:
    weights = np.random.default_rng(seed).standard_normal((4, 3, 3, 3), dtype=np.float32)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, "height", "width"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weights, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


@pytest.fixture
def sessions(tmp_path: Path) -> Sessions:
    save_net(tmp_path / "net.onnx")
    described = onnxruntime.InferenceSession(str(tmp_path / "net.onnx"), providers=["CPUExecutionProvider"])
    return Sessions(
        path=tmp_path / "net.onnx",
        blueprint=Blueprint("migraphx", {}),
        precision="fp32",
        inputs=described.get_inputs(),
        outputs=["y"],
        root=tmp_path / "store",
        target='{"device": "gfx942130.HIP.3_4_0_"}',
    )


def test_the_key_is_the_same_for_the_same_facts_in_another_place(sessions: Sessions, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    save_net(tmp_path / "elsewhere" / "other.onnx")
    moved = dataclasses.replace(sessions, path=tmp_path / "elsewhere" / "other.onnx", root=tmp_path / "x")
    assert moved.key(SHAPE) == sessions.key(SHAPE)


def test_the_key_is_another_for_every_fact_that_asks_for_another_program(
    sessions: Sessions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_net(tmp_path / "weights.onnx", seed=1)
    keys = [sessions.key(SHAPE)]
    keys += [
        dataclasses.replace(sessions, **changes).key(SHAPE)
        for changes in (
            {"path": tmp_path / "weights.onnx"},
            {"precision": "fp16"},
            {"blueprint": Blueprint("migraphx", {"migraphx_exhaustive_tune": "1"})},
            {"blueprint": Blueprint("migraphx", {}, config={"session.disable_quant_qdq": "1"})},
            {"target": '{"device": "gfx94226.HIP.3_4_0_"}'},
        )
    ]
    keys += [sessions.key(Shape.parse(text)) for text in ("x=1x3x8x16:fp32", "x=1x3x16x8:fp32", "x=2x3x8x8:fp32")]
    monkeypatch.setenv("MIGRAPHX_DISABLE_FAST_GELU", "1")
    keys.append(sessions.key(SHAPE))
    monkeypatch.setattr(onnxruntime, "__version__", "0.0")
    keys.append(sessions.key(SHAPE))
    assert len(set(keys)) == len(keys)
    monkeypatch.setenv("MIGRAPHX_TRACE_COMPILE", "1")
    assert sessions.key(SHAPE) == keys[-1], "what is only printed makes no other program"


def test_dims_that_the_graph_cannot_have_are_the_clients_fault(sessions: Sessions) -> None:
    with pytest.raises(InvalidInput, match=r"'x' has dims \(1, 5, 8, 8\), the model takes \['batch', 3, "):
        sessions.run(((1, 5, 8, 8),), {"x": np.zeros((1, 5, 8, 8), np.float32)})
    assert not sessions.passing
