from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from handlers.errors import ModelError
from handlers.spec import load_spec
from warmup.plan import expand
from warmup.trace.model import NHWC_VARIABLE, trace
from warmup.trace.result import TraceError

NET = """
from torch import nn
class Net(nn.Sequential):
    def __init__(self, width):
        super().__init__(nn.Conv2d(3, width, 3), nn.Conv2d(width, width, 1))
"""


def folder(path: Path, engine: str, outputs: str = "outputs: [{name: y, dtype: fp32, dims: [batch, 4, 6, 6]}]") -> Path:
    (path / "model.yaml").write_text(
        f"name: tiny\nengine: {engine}\ninputs: [{{name: x, dtype: fp32, dims: [batch, 3, 8, 8]}}]\n{outputs}\n"
        "shapes: {grid: {batch: [1, 2]}}\n"
    )
    return path


def traced(path: Path, **options) -> list[str]:
    spec = load_spec(path)
    shapes = [planned.shape for planned in expand(spec, path)]
    return list(trace(spec, path, shapes, **options).keys.values())


@pytest.fixture
def net(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(NET)
    arguments = "arguments: {width: 4}, precision: bf16, channels_last: true"
    engine = f"{{kind: torch, source: 'net.py:Net', weights: 'random:1', {arguments}}}"
    return folder(tmp_path, engine)


def test_a_torch_model_in_its_precision_and_layout(net, monkeypatch):
    monkeypatch.delenv(NHWC_VARIABLE, raising=False)
    plain = traced(net)
    assert plain[:2] == [
        "3-8-8-3x3-4-6-6-1-0x0-1x1-1x1-0-NCHW-BF16-F",
        "4-6-6-1x1-4-6-6-1-0x0-1x1-1x1-0-NCHW-BF16-F",
    ]
    assert len(plain) == 4
    last = [key.replace("-NCHW-", "-NHWC-NHWC-NHWC-") for key in plain]
    assert traced(net, nhwc=True) == last
    monkeypatch.setenv(NHWC_VARIABLE, "1")
    assert traced(net) == last
    assert traced(net, nhwc=False) == plain


def test_a_model_whose_layout_is_open_asks_for_both(net, monkeypatch):
    text = (net / "model.yaml").read_text()
    (net / "model.yaml").write_text(text.replace("channels_last: true", "channels_last: auto, execution: graph"))
    plain = traced(net, nhwc=False)
    assert len(plain) == 4 and all("-NCHW-" in key for key in plain)
    both = traced(net, nhwc=True)
    assert both == [way for key in (plain[:2], plain[2:]) for way in [*key, *(_last(one) for one in key)]]


def _last(key: str) -> str:
    return key.replace("-NCHW-", "-NHWC-NHWC-NHWC-")


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", "FP32"), ("fp16", "FP16")])
def test_an_onnx_model_in_the_precision_that_its_provider_makes(tmp_path, precision, dtype):
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"])],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.zeros((4, 3, 3, 3), np.float32), "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    engine = f"{{kind: onnx, source: m.onnx, precision: {precision}, providers: [migraphx, cpu]}}"
    assert traced(folder(tmp_path, engine, outputs="")) == [
        f"3-8-8-3x3-4-6-6-{batch}-0x0-1x1-1x1-0-NCHW-{dtype}-F" for batch in (1, 2)
    ]


def test_an_engine_without_a_graph_cannot_be_traced(tmp_path):
    with pytest.raises(TraceError, match="tiny: engine.kind python cannot be traced"):
        traced(folder(tmp_path, "{kind: python, source: 'net.py:Net'}"))


def test_errors_name_the_model_once(net):
    (net / "net.py").write_text(NET.replace("3, width, 3", "5, width, 3"))
    with pytest.raises(TraceError, match=r"^tiny: shape x=1x3x8x8:fp32: "):
        traced(net)
    (net / "net.py").unlink()
    with pytest.raises(ModelError, match=r"^tiny: (?!tiny)"):
        traced(net)
