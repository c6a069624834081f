from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from handlers.shapes import Shape
from serving.bench.breakdown import (
    Breakdown,
    Parts,
    Times,
    measure,
    of_executions,
    of_loading,
    verdict,
)
from warmup.sessions import CannotOpen, Wanted

SHAPE = Shape.parse("x=1x3x8x8:fp32")


def event(name: str, start: float, duration: float, op: str = "") -> dict[str, Any]:
    """An event of a profile; microseconds."""
    found: dict[str, Any] = {"name": name, "ts": start, "dur": duration, "cat": "Node" if op else "Session", "args": {}}
    if op:
        found["args"] = {"op_name": op, "provider": "ROCMExecutionProvider"}
    return found


def steady(provider: str, execute: float, copy: float) -> Breakdown:
    parts = Parts(0, 0, execute, copy, 0)
    return Breakdown(provider, SHAPE, parts, parts)


def test_loading_is_reading_the_file_optimising_and_a_rest() -> None:
    events = [event("model_loading_uri", 5, 40_000), event("session_initialization", 40_100, 90_000)]
    parts = of_loading(events, 0.131)
    assert (parts.parse, parts.optimise, parts.execute, parts.copy) == pytest.approx((0.04, 0.09, 0, 0))
    assert parts.rest == pytest.approx(0.001)
    assert parts.total == pytest.approx(0.131) and parts.holds


def test_copies_between_providers_are_taken_out_of_the_execution_that_they_are_in() -> None:
    events = [
        event("model_run", 1000, 500),
        event("memcpy_kernel_time", 1100, 100, "MemcpyToHost"),
        event("conv_kernel_time", 1200, 250, "Conv"),
        event("model_run", 2000, 400),
        event("memcpy_kernel_time", 2100, 50, "MemcpyFromHost"),
    ]
    first, second = of_executions(events, [(600e-6, Times(40e-6, 505e-6, 50e-6)), (400e-6, None)])
    assert (first.execute, first.copy) == pytest.approx((400e-6, 190e-6))
    assert first.rest == pytest.approx(10e-6) and first.holds
    assert (second.execute, second.copy, second.rest) == pytest.approx((350e-6, 50e-6, 0))


@given(
    st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 10**5), st.integers(0, 10**4)), min_size=1, max_size=9),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.integers(0, 10**5),
)
def test_the_parts_always_add_up_to_the_clock(runs: list, parse: int, optimise: int, rest: int) -> None:
    """By construction: nothing is counted twice, and what is not explained is shown."""
    loading = of_loading(
        [event("model_loading_uri", 0, parse), event("session_initialization", parse, optimise)],
        (parse + optimise + rest) * 1e-6,
    )
    assert loading.total == pytest.approx((parse + optimise + rest) * 1e-6)
    assert loading.rest == pytest.approx(rest * 1e-6, abs=1e-12)
    events, clocks, start = [], [], 0
    for run, copy, more in runs:
        events.append(event("model_run", start, run))
        clocks.append(((run + 2 * copy + more) * 1e-6, Times(copy * 1e-6, run * 1e-6, copy * 1e-6)))
        start += run + 2 * copy + more
    for parts, (seconds, _), (_, _, more) in zip(of_executions(events, clocks), clocks, runs, strict=True):
        assert parts.total == pytest.approx(seconds)
        assert (loading + parts).total == pytest.approx(loading.total + seconds)
        assert parts.holds is (abs(parts.rest) <= 0.03 * parts.total)
        assert parts.rest == pytest.approx(more * 1e-6, abs=1e-12)


def test_a_profile_that_lacks_an_execution_is_not_believed() -> None:
    with pytest.raises(CannotOpen, match="profile has 1 executions, 2 were made"):
        of_executions([event("model_run", 0, 10)], [(1e-5, None), (1e-5, None)])


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([steady("cpu", 3, 0)], "only cpu was measured: there is nothing to choose"),
        ([steady("cpu", 3, 0), steady("rocm", 0.5, 0.5)], "rocm wins: 3.00 times as fast as cpu"),
        (
            [steady("rocm", 1, 3), steady("cpu", 2, 0)],
            "the CPU wins: 2.00 times as fast as rocm, for rocm spends 75% of its time copying",
        ),
        (
            [steady("rocm", 3, 0.5), steady("cpu", 2, 0)],
            "the CPU wins: 1.75 times as fast as rocm, for rocm executes no faster: the model is too small to fill it",
        ),
        (
            [steady("rocm", 1.5, 1), steady("cpu", 2, 0)],
            "the CPU wins: 1.25 times as fast as rocm, for what rocm gains in execution, copies take away",
        ),
    ],
)
def test_the_verdict_is_honest(rows: list[Breakdown], said: str) -> None:
    assert verdict(rows) == said


def test_a_real_session_is_taken_apart(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).standard_normal((8, 3, 3, 3), np.float32)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], "conv")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, "h", "w"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weights, "w")],
    )
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    found = measure(path, SHAPE, Wanted(threads=1), repeats=3)
    for parts in (found.first, found.steady):
        assert parts.execute > 0
        assert parts.total == pytest.approx(parts.parse + parts.optimise + parts.execute + parts.copy + parts.rest)
    assert found.first.parse > 0 and found.first.optimise > 0
    assert (found.steady.parse, found.steady.optimise, found.steady.copy) == (0, 0, 0)
    assert not list(tmp_path.glob("profile*"))
    with pytest.raises(CannotOpen, match="rocm: onnxruntime .* was built without ROCM"):
        measure(path, SHAPE, Wanted("rocm"), repeats=1)
