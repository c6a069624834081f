from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from handlers.engines.engine import example, open_engine
from handlers.errors import ModelError
from handlers.shapes import Shape
from handlers.spec import ModelSpec

Describe = Callable[..., ModelSpec]
SHAPE = Shape.parse("x=1x3x2x2:fp32")
CODE = """
class Scale:
    def __init__(self, factor=1.0):
        self.factor = factor

    def load(self):
        self.factor *= 2

    def run(self, inputs):
        return {"y": inputs["x"] * self.factor}


class Misnamed:
    def run(self, inputs):
        return {"z": inputs["x"]}


class Idle:
    pass
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "code.py").write_text(CODE)
    return tmp_path


def test_loads_once_and_runs(describe: Describe, folder: Path) -> None:
    spec = describe({"kind": "python", "source": "code.py:Scale", "arguments": {"factor": 1.5}})
    engine = open_engine(spec, folder, {})
    engine.load()
    engine.warm(SHAPE)
    inputs = example(SHAPE)
    assert np.array_equal(engine.run(inputs)["y"], inputs["x"] * 3)
    assert engine.outputs() == spec.outputs


def test_outputs_that_nobody_declared_show_when_warming(describe: Describe, folder: Path) -> None:
    engine = open_engine(describe({"kind": "python", "source": "code.py:Misnamed"}), folder, {})
    engine.load()
    with pytest.raises(ModelError, match=r"disagree about outputs \['y', 'z'\]"):
        engine.warm(SHAPE)


@pytest.mark.parametrize(
    ("source", "arguments", "message"),
    [
        ("code.py:Idle", {}, r"has no method run\(inputs\)"),
        ("code.py:Scale", {"depth": 1}, "engine.arguments: .*depth"),
        ("absent.py:Scale", {}, "no such file"),
        ("code.onnx", {}, "is not MODULE.py:CLASS"),
    ],
)
def test_what_cannot_be_loaded_is_named(
    describe: Describe, folder: Path, source: str, arguments: dict[str, int], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        open_engine(describe({"kind": "python", "source": source, "arguments": arguments}), folder, {}).load()


def test_outputs_must_be_declared(describe: Describe, folder: Path) -> None:
    with pytest.raises(ModelError, match="must name its outputs"):
        open_engine(describe({"kind": "python", "source": "code.py:Scale"}, outputs=[]), folder, {}).load()
