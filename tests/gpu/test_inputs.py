"""Where the inputs of captured graphs lie: in memory that the device reads by itself, in parts, or anywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from handlers.engines.engine import example
from handlers.engines.graph import Replay
from handlers.handler import Tensors
from handlers.shapes import Shape

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA or HIP device is here"),
]
WHOLE, ROW = Shape.parse("x=4x3x64x64:fp16"), Shape.parse("x=1x3x64x64:fp16")


@pytest.fixture
def engine(opened: Any) -> Any:
    engine = opened()
    engine.expect({WHOLE: 0.5, ROW: 0.5})
    assert engine.host_memory() is not None
    for one in (WHOLE, ROW):
        engine.warm(one)
        assert engine.note(one) == ""
    return engine


def received(engine: Any, inputs: Tensors) -> Tensors:
    """The same, in the engine's host memory and behind a few other bytes, as a server receives it."""
    array = inputs["x"]
    room = engine.host_memory().take(array.nbytes + 8)
    room[8:] = array.tobytes()
    found = np.frombuffer(room.toreadonly(), array.dtype, array.size, 8).reshape(array.shape)
    assert engine.host_memory().holds(found.ctypes.data)
    return {"x": found}


def test_inputs_in_host_memory_give_the_same(engine: Any) -> None:
    for seed in range(3):
        inputs = example(WHOLE, seed)
        expected = engine.run(inputs)["y"]
        assert isinstance(started := engine.start(received(engine, inputs)), Replay)
        np.testing.assert_array_equal(engine.finish(started)["y"], expected)


@pytest.mark.parametrize("there", [(), (0, 1, 2, 3), (1, 3)])
@pytest.mark.parametrize("missing", [0, 1])
def test_rows_of_several_requests_run_as_one(engine: Any, there: tuple[int, ...], missing: int) -> None:
    rows = [example(ROW, seed) for seed in range(4 - missing)]
    fill = [np.full(ROW.tensors[0].dims, 7, np.float16)] * missing
    expected = engine.run({"x": np.concatenate([*(row["x"] for row in rows), *fill])})["y"]
    parts = [received(engine, row) if index in there else row for index, row in enumerate(rows)]
    for _ in range(2):
        flying = [engine.start_joined(parts, WHOLE, {"x": 7}) for _ in range(engine.slots)]
        for started in flying:
            assert isinstance(started, Replay)
            np.testing.assert_array_equal(engine.finish(started)["y"], expected)


def test_rows_of_a_shape_without_a_graph_run_too(engine: Any) -> None:
    rows = [example(ROW, seed) for seed in range(2)]
    whole = Shape.parse("x=3x3x64x64:fp16")
    found = engine.finish(engine.start_joined(rows, whole, {"x": 0}))["y"]
    assert found.shape[0] == 3 and np.isfinite(found[:2]).all()


@pytest.mark.parametrize(
    "rewrite",
    [
        {"fold_batchnorm": True},
        {"fold_batchnorm": True, "fuse_activations": True},
        {"pointwise_as_matmul": True, "channels_last": True},
    ],
)
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_normalisations_and_activations_are_folded_into_what_is_captured(opened: Any, dtype: str, rewrite: Any) -> None:
    if "fuse_activations" in rewrite and torch.version.hip is not None:
        pytest.skip("cuDNN's kernels")
    engine = opened(dtype, **rewrite, source="net.py:Normal")
    eager = opened(dtype, execution="eager", source="net.py:Normal")
    one = Shape.parse(f"x=2x3x32x32:{dtype}")
    engine.warm(one)
    assert engine.note(one) == ""
    inputs = example(one, 5)
    assert isinstance(started := engine.start(inputs), Replay)
    np.testing.assert_allclose(engine.finish(started)["y"], eager.run(inputs)["y"], rtol=2e-3, atol=1e-3)


def test_a_compiled_model_is_captured(opened: Any) -> None:
    engine, eager = opened("fp32", execution="compile+graph"), opened("fp32", execution="eager")
    one = Shape.parse("x=1x3x32x32:fp32")
    engine.expect({one: 1.0})
    engine.warm(one)
    assert engine.note(one) == ""
    inputs = example(one, 5)
    assert isinstance(started := engine.start(inputs), Replay)
    np.testing.assert_allclose(engine.finish(started)["y"], eager.run(inputs)["y"], rtol=1e-3, atol=1e-5)
