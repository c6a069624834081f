"""Captured graphs on a real GPU: equal to eager, in flight by twos, and what happens where a graph cannot be."""

from __future__ import annotations

import re
import threading
from typing import Any

import numpy as np
import pytest

from handlers.engines.engine import example
from handlers.engines.graph import Replay
from handlers.errors import OutOfDeviceMemory
from handlers.shapes import Shape

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA or HIP device is here"),
]


def shape(batch: int, side: int, dtype: str) -> Shape:
    return Shape.parse(f"x={batch}x3x{side}x{side}:{dtype}")


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_a_replay_gives_what_eager_execution_gives(opened: Any, dtype: str, channels_last: bool) -> None:
    graph = opened(dtype, channels_last=channels_last)
    eager = opened(dtype, channels_last=channels_last, execution="eager")
    graph.expect({shape(4, 64, dtype): 0.5, shape(1, 32, dtype): 0.5})
    for one in (shape(4, 64, dtype), shape(1, 32, dtype)):
        graph.warm(one)
        assert graph.note(one) == ""
        for seed in range(3):
            inputs = example(one, seed)
            assert isinstance(started := graph.start(inputs), Replay)
            np.testing.assert_array_equal(graph.finish(started)["y"], eager.run(inputs)["y"])
    assert graph.graph_bytes > 0


@pytest.mark.parametrize("rewrite", [{}, {"fold_batchnorm": True, "source": "net.py:Normal"}])
def test_the_quicker_of_two_layouts_is_captured(opened: Any, rewrite: Any) -> None:
    engine = opened("fp32", channels_last="auto", **rewrite)
    eager = opened("fp32", execution="eager", **{key: rewrite[key] for key in rewrite if key == "source"})
    for one in (shape(4, 64, "fp32"), shape(1, 32, "fp32")):
        engine.warm(one)
        assert engine.note(one) == ""
        times = [float(part) for part in re.findall(r"(\d+\.\d+) ms", engine.choice(one))]
        assert len(times) == 2 and times[0] <= times[1] / 0.97  # the kept one is told first
        inputs = example(one, 3)
        assert isinstance(started := engine.start(inputs), Replay)
        np.testing.assert_allclose(engine.finish(started)["y"], eager.run(inputs)["y"], rtol=1e-3, atol=1e-4)


def test_two_executions_in_flight_do_not_mix(opened: Any) -> None:
    engine = opened()
    shapes = [shape(4, 64, "fp16"), shape(1, 32, "fp16")]
    for one in shapes:
        engine.warm(one)
    asked = [example(shapes[index % 2], seed=index) for index in range(40)]
    expected = [engine.run(inputs)["y"] for inputs in asked]
    flying: list[object] = []
    found = []
    for inputs in asked:
        flying.append(engine.start(inputs))
        if len(flying) == engine.slots:
            found.append(engine.finish(flying.pop(0))["y"])
    found += [engine.finish(started)["y"] for started in flying]
    for mine, theirs in zip(expected, found, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_read_only_inputs_are_taken_as_they_are(opened: Any) -> None:
    engine = opened()
    one = shape(1, 32, "fp16")
    engine.warm(one)
    inputs = example(one)
    view = np.frombuffer(inputs["x"].tobytes(), np.float16).reshape(inputs["x"].shape)
    np.testing.assert_array_equal(engine.run({"x": view})["y"], engine.run(inputs)["y"])


def test_what_cannot_be_captured_runs_eagerly_and_says_so(opened: Any) -> None:
    engine = opened("fp32")
    for batch in (3, 2, 1, 4):
        engine.warm(shape(batch, 32, "fp32"))
    assert "differs from eager execution" in engine.note(shape(3, 32, "fp32"))
    assert "no graph" in engine.note(shape(2, 32, "fp32"))
    for batch in (1, 4):  # captured after the failures
        assert engine.note(shape(batch, 32, "fp32")) == ""
        assert isinstance(started := engine.start(example(shape(batch, 32, "fp32"))), Replay)
        engine.finish(started)
    for batch in (2, 3):
        assert np.isfinite(engine.run(example(shape(batch, 32, "fp32")))["y"]).all()


def test_a_budget_leaves_the_least_valuable_shape_without_a_graph(opened: Any) -> None:
    wide, small = shape(4, 64, "fp32"), shape(1, 32, "fp32")
    engine = opened("fp32", graph_memory="20KB")
    engine.expect({wide: 0.1, small: 0.9})
    for one in (wide, small):
        engine.warm(one)
    assert "graph_memory" in engine.note(wide)
    assert np.isfinite(engine.run(example(wide))["y"]).all()


def test_out_of_memory_ends_one_request_and_leaves_the_graphs_valid(opened: Any) -> None:
    engine = opened("fp32")
    one = shape(1, 32, "fp32")
    engine.warm(one)
    before = engine.run(example(one))["y"]
    free, _ = torch.cuda.mem_get_info()
    hoard = torch.empty(int(free * 0.98), dtype=torch.uint8, device="cuda")
    try:
        with pytest.raises(OutOfDeviceMemory):
            engine.run({"x": np.zeros((600, 3, 640, 640), np.float32)})
        np.testing.assert_array_equal(engine.run(example(one))["y"], before)
    finally:
        del hoard
        torch.cuda.empty_cache()


def test_an_engine_lives_on_a_thread_of_its_own(opened: Any) -> None:
    found: list[np.ndarray] = []

    def live() -> None:
        engine = opened()
        one = shape(1, 32, "fp16")
        engine.warm(one)
        found.append(engine.run(example(one))["y"])

    thread = threading.Thread(target=live)
    thread.start()
    thread.join()
    assert np.isfinite(found[0]).all()
