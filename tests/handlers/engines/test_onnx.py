from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from handlers.engines.engine import example, open_engine
from handlers.engines.onnx import OnnxEngine
from handlers.errors import InvalidInput, ModelError
from handlers.shapes import Shape
from handlers.spec import ModelSpec

Describe = Callable[..., ModelSpec]
NET = {"kind": "onnx", "source": "net.onnx"}
SHAPE = Shape.parse("x=2x3x8x10:fp32")


def save_net(path: Path, seed: int = 0) -> None:
    """A convolution, a bias and a ReLU: enough for ONNX Runtime to have something to fuse."""
    generator = np.random.default_rng(seed)
    dims = ["batch", 3, "height", "width"]
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
            helper.make_node("Add", ["c", "b"], ["a"]),
            helper.make_node("Relu", ["a"], ["y"]),
        ],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch.0", 4, "height", None])],
        [
            numpy_helper.from_array(generator.standard_normal((4, 3, 3, 3), dtype=np.float32), "w"),
            numpy_helper.from_array(generator.standard_normal((1, 4, 1, 1), dtype=np.float32), "b"),
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_net(tmp_path / "net.onnx")
    return tmp_path


def loaded(spec: ModelSpec, folder: Path, options: dict[str, str] | None = None) -> OnnxEngine:
    engine = open_engine(spec, folder, options or {})
    assert isinstance(engine, OnnxEngine)
    engine.load()
    return engine


def expected(folder: Path) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(folder / "net.onnx"), providers=["CPUExecutionProvider"])
    return session.run(None, dict(example(SHAPE)))[0]  # type: ignore[return-value]


def test_runs_on_the_cpu_where_it_is_listed(describe: Describe, folder: Path) -> None:
    engine = loaded(describe(NET | {"threads": 1}), folder)
    engine.warm(SHAPE)
    assert engine.provider == "cpu"
    np.testing.assert_allclose(engine.run(example(SHAPE))["y"], expected(folder), rtol=1e-5, atol=1e-5)


def test_the_first_provider_that_can_be_had_is_used(describe: Describe, folder: Path) -> None:
    assert loaded(describe(NET | {"providers": ["migraphx", "cpu"]}), folder).provider in ("migraphx", "cpu")


def test_the_cpu_is_never_a_silent_fallback(
    describe: Describe, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(
        ModelError, match=r"no listed provider can be had: migraphx: .*built without MIGraphX.*; rocm: "
    ):
        loaded(describe(NET | {"providers": ["migraphx", "rocm"]}), folder)
    assert "EP Error" not in capfd.readouterr().out


def test_a_session_that_ended_up_elsewhere_is_refused(
    describe: Describe, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build that has the provider, and a session that was made without it, as with a library that does not load."""
    monkeypatch.setattr("handlers.engines.onnx.check_available", lambda provider: None)

    class OnTheCpu(onnxruntime.InferenceSession):
        def __init__(self, path: str, settings: Any, **_: Any) -> None:
            super().__init__(path, settings, providers=["CPUExecutionProvider"])

    monkeypatch.setattr(onnxruntime, "InferenceSession", OnTheCpu)
    with pytest.raises(ModelError, match="rocm: the session was made with CPUExecutionProvider instead of ROCM"):
        loaded(describe(NET | {"providers": ["rocm"]}), folder)


def test_what_onnx_runtime_says_before_it_goes_on_with_the_cpu_is_the_reason(
    describe: Describe, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Printed, and gone on, as its ROCm build 1.22 does whatever it is told."""
    monkeypatch.setattr("handlers.engines.onnx.check_available", lambda provider: None)

    class GoesOn(onnxruntime.InferenceSession):
        def __init__(self, path: str, settings: Any, **_: Any) -> None:
            print("*************** EP Error ***************")
            print('EP Error /a/long/path.cc:44 f() : 1 : FAIL : options.h:146 Parse Unknown provider option: "gpu".')
            print(" when using ['ROCMExecutionProvider']")
            print("Falling back to ['CPUExecutionProvider'] and retrying.")
            super().__init__(path, settings, providers=["CPUExecutionProvider"])

    monkeypatch.setattr(onnxruntime, "InferenceSession", GoesOn)
    with pytest.raises(ModelError, match=r'^model: rocm: Unknown provider option: "gpu"\.$'):
        loaded(describe(NET | {"providers": ["rocm", "cpu"]}), folder)
    assert "EP Error" not in capfd.readouterr().out


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_precision_that_the_provider_cannot_give_is_refused(describe: Describe, folder: Path, precision: str) -> None:
    with pytest.raises(ModelError, match=f"cpu: .*precision {precision} needs a model converted to it"):
        loaded(describe(NET | {"precision": precision}), folder)


def test_options_are_checked(describe: Describe, folder: Path) -> None:
    with pytest.raises(
        ModelError, match=r"engine\.options: unknown \['gpu'\]; allowed: migraphx, rocm, cuda, cpu, sess"
    ):
        loaded(describe(NET | {"options": {"gpu": {"a": "b"}}}), folder)
    engine = loaded(describe(NET | {"options": {"session": {"session.intra_op.allow_spinning": "0"}}}), folder)
    assert engine.run(example(SHAPE))["y"].shape == (2, 4, 8, 10)


def test_outputs_are_described_by_the_graph_where_nobody_declares_them(describe: Describe, folder: Path) -> None:
    (output,) = loaded(describe(NET, outputs=[]), folder).outputs()
    assert (output.name, output.dtype, output.dims) == ("y", "fp32", ("batch_0", 4, "height", "dim_3"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"inputs": [{"name": "z", "dtype": "fp32", "dims": ["batch", 3]}], "shapes": {"list": ["z=1x3:fp32"]}},
            "takes",
        ),
        (
            {"inputs": [{"name": "x", "dtype": "fp16", "dims": ["b", 3, "h", "w"]}]},
            r"'x' is fp16, .* takes tensor\(float\)",
        ),
        ({"inputs": [{"name": "x", "dtype": "fp32", "dims": ["b", 3, "h"]}]}, "'x' has 3 dims"),
        ({"outputs": [{"name": "z", "dtype": "fp32", "dims": []}]}, r"outputs \['z'\] are not in"),
    ],
)
def test_a_description_that_does_not_fit_the_graph_is_refused(
    describe: Describe, folder: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        loaded(describe(NET, **changes), folder)


def test_a_damaged_graph_is_named(describe: Describe, tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(b"nonsense")
    with pytest.raises(ModelError, match=r"net\.onnx"):
        loaded(describe(NET), tmp_path)


def test_inputs_that_the_graph_cannot_run_are_the_clients_fault(describe: Describe, folder: Path) -> None:
    engine = loaded(describe(NET), folder)
    with pytest.raises(InvalidInput, match="cannot run inputs of shape x=1x5x8x8"):
        engine.run({"x": np.zeros((1, 5, 8, 8), np.float32)})
    engine.warm(SHAPE)


def test_an_optimised_graph_is_written_once_and_then_loaded(
    describe: Describe, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"onnxruntime.optimized_dir": str(tmp_path / "store")}
    first = loaded(describe(NET), folder, options).run(example(SHAPE))["y"]
    (file,) = (tmp_path / "store").iterdir()
    assert file.name.startswith("model-")
    assert len(onnx.load(file).graph.node) < 3
    written = file.stat().st_mtime_ns, file.read_bytes()
    levels = []
    real = onnxruntime.InferenceSession

    def spy(path: str, settings: onnxruntime.SessionOptions, **rest: Any) -> onnxruntime.InferenceSession:
        levels.append((Path(path), settings.graph_optimization_level))
        return real(path, settings, **rest)

    monkeypatch.setattr(onnxruntime, "InferenceSession", spy)
    second = loaded(describe(NET), folder, options).run(example(SHAPE))["y"]
    assert levels == [(file, onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL)]
    assert (file.stat().st_mtime_ns, file.read_bytes()) == written
    assert list((tmp_path / "store").iterdir()) == [file]
    assert np.array_equal(first, second)


def test_another_graph_under_the_same_name_has_its_own_file(describe: Describe, folder: Path, tmp_path: Path) -> None:
    options = {"onnxruntime.optimized_dir": str(tmp_path / "store")}
    loaded(describe(NET), folder, options)
    save_net(folder / "net.onnx", seed=1)
    found = loaded(describe(NET), folder, options).run(example(SHAPE))["y"]
    assert len(list((tmp_path / "store").iterdir())) == 2
    np.testing.assert_allclose(found, expected(folder), rtol=1e-5, atol=1e-5)


def test_a_failure_leaves_nothing_half_written(describe: Describe, tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(b"nonsense")
    with pytest.raises(ModelError):
        loaded(describe(NET), tmp_path, {"onnxruntime.optimized_dir": str(tmp_path / "store")})
    assert list((tmp_path / "store").iterdir()) == []


def test_a_damaged_optimised_graph_is_named(describe: Describe, folder: Path, tmp_path: Path) -> None:
    options = {"onnxruntime.optimized_dir": str(tmp_path / "store")}
    loaded(describe(NET), folder, options)
    (file,) = (tmp_path / "store").iterdir()
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ModelError, match=file.name):
        loaded(describe(NET), folder, options)
