"""Inputs in memory that another process shares: the device reads them where they lie, and nobody else does."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from handlers.engines.engine import example
from handlers.engines.graph import Replay
from handlers.engines.mapping import MappedMemory, can_map
from handlers.shapes import Shape

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA or HIP device is here"),
]
SMALL, ROW, LARGE = (Shape.parse(f"x={dims}:fp16") for dims in ("1x3x128x128", "1x3x512x512", "4x3x512x512"))


@pytest.fixture
def engine(opened: Any) -> Any:
    engine = opened()
    engine.expect({SMALL: 1.0, ROW: 1.0, LARGE: 1.0})
    for one in (SMALL, ROW, LARGE):
        engine.warm(one)
        assert engine.note(one) == "" and engine.reads_mapped(one)
    if not can_map():
        pytest.skip("nothing is mapped for this device, or by this NumPy")
    return engine


@pytest.fixture
def file() -> Iterator[int]:
    place = Path(f"/dev/shm/preheat-test-{os.getpid()}")
    descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    os.truncate(descriptor, 16 << 20)
    yield descriptor
    os.close(descriptor)
    place.unlink()


def shared(descriptor: int, view: memoryview, raw: np.ndarray, offset: int) -> dict[str, np.ndarray]:
    os.pwrite(descriptor, raw.tobytes(), 100 + offset)
    return {"x": np.frombuffer(view, raw.dtype, raw.size, offset).reshape(raw.shape)}


@pytest.mark.parametrize("shape", [SMALL, LARGE])
def test_it_gives_the_same_even_when_the_file_is_gone(engine: Any, file: int, shape: Shape) -> None:
    view = engine.map_memory(file, 100, 8 << 20)
    assert len(view) == 8 << 20 and view.readonly
    for seed in range(3):
        inputs = example(shape, seed)
        expected = engine.run(inputs)["y"]
        lent = shared(file, view, inputs["x"], 64 * seed)
        for gone in (False, seed == 2):
            if gone:  # whoever looked at it now would be ended by SIGBUS
                os.truncate(file, 0)
            assert isinstance(started := engine.start(lent), Replay)
            np.testing.assert_array_equal(engine.finish(started)["y"], expected)


def test_rows_in_it_run_with_others(engine: Any, file: int) -> None:
    view = engine.map_memory(file, 100, 8 << 20)
    rows = [example(ROW, seed) for seed in range(3)]
    fill = np.full(ROW.tensors[0].dims, 7, np.float16)
    expected = engine.run({"x": np.concatenate([*(row["x"] for row in rows), fill])})["y"]
    parts = [shared(file, view, rows[0]["x"], 0), rows[1], shared(file, view, rows[2]["x"], 4 << 20)]
    os.truncate(file, 0)
    np.testing.assert_array_equal(engine.finish(engine.start_joined(parts, LARGE, {"x": 7}))["y"], expected)


def test_rows_in_it_run_without_a_graph_too(engine: Any, file: int) -> None:
    """A batch size that is admitted while requests wait may have none."""
    view = engine.map_memory(file, 100, 8 << 20)
    rows = [example(ROW, seed) for seed in range(2)]
    parts = [shared(file, view, rows[0]["x"], 0), rows[1]]
    os.truncate(file, 0)
    found = engine.finish(engine.start_joined(parts, Shape.parse("x=5x3x512x512:fp16"), {"x": 0}))["y"]
    expected = np.concatenate([engine.run(row)["y"] for row in rows])
    np.testing.assert_allclose(found[:2], expected, rtol=2e-3, atol=1e-3)


def test_it_is_let_go_when_nobody_has_it(engine: Any, file: int) -> None:
    def mapped() -> int:
        gc.collect()
        return sum(isinstance(memory(), MappedMemory) for memory in engine._graphs._readable)

    view = engine.map_memory(file, 0, 4096)
    part = np.frombuffer(view, np.uint8)[7:]
    del view
    assert mapped() == 1
    del part
    assert mapped() == 0


def test_more_than_there_is_cannot_be_mapped(engine: Any, file: int) -> None:
    with pytest.raises(ValueError, match="length"):
        engine.map_memory(file, 0, 17 << 20)
