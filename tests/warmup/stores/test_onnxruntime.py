"""The store of optimised graphs: settings, and how a graph that is cut short is found without reading it as ONNX."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from warmup.stores.onnxruntime import OnnxRuntimeStore
from warmup.stores.store import Phase


@pytest.fixture
def graph(tmp_path: Path) -> bytes:
    weights = numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in "xy"]
    model = helper.make_model(helper.make_graph([node], "g", tensors[:1], tensors[1:], [weights]))
    return model.SerializeToString()


def findings(tmp_path: Path, data: bytes) -> list[str]:
    (tmp_path / "m-1.onnx").write_bytes(data)
    return [finding.what for finding in OnnxRuntimeStore().check(tmp_path)]


def test_a_whole_graph_is_whole(graph: bytes, tmp_path: Path) -> None:
    onnx.load_from_string(graph)
    assert findings(tmp_path, graph) == []


def test_a_graph_cut_inside_a_field_is_found(graph: bytes, tmp_path: Path) -> None:
    for size in (len(graph) // 2, len(graph) - 1, 5):
        found = findings(tmp_path, graph[:size])
        assert len(found) == 1
        assert "cut short" in found[0]


def test_empty_and_foreign_files_are_found(tmp_path: Path) -> None:
    assert findings(tmp_path, b"") == ["empty"]
    assert "no field at byte 0" in findings(tmp_path, b"\0\0\0\0")[0]
    assert "not an ONNX file" in findings(tmp_path, b"<html>")[0]


def test_the_engine_is_told_the_directory(tmp_path: Path) -> None:
    settings = OnnxRuntimeStore().settings(Phase.SERVE, tmp_path / "onnxruntime")
    assert settings.engine == {"onnxruntime.optimized_dir": str(tmp_path / "onnxruntime")}
    assert not settings.environment
