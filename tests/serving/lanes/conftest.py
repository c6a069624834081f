"""Small models for lanes: their engines are plain Python, so that a test decides how long an execution takes."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from handlers.engines.engine import Engine
from handlers.handler import Handler, Tensors
from handlers.shapes import Shape
from handlers.spec import ModelSpec, TensorSpec


def model(**changes: object) -> ModelSpec:
    document: dict[str, object] = {
        "name": "double",
        "engine": {"kind": "python", "source": "none.py:None"},
        "inputs": [{"name": "x", "dtype": "fp32", "dims": ["batch", "width"]}],
        "shapes": {"grid": {"batch": [1, 2, 4], "width": [4, 8]}, "pad": ["width"]},
        "cold": "pad",
    }
    return ModelSpec.model_validate(document | changes)


class CroppingHandler(Handler):
    """Outputs follow the input's width, so padding is cut off at the end of it."""

    def crop(self, outputs: Tensors, asked: Shape, ran: Shape) -> Tensors:
        return {"y": outputs["y"][:, : asked["x"].dims[1]]}


class DoublingEngine(Engine):
    """Doubles its input. Records what it ran; waits at ``gate`` where a test closed it."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec, Path(), {})
        self.ran: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.closed = False
        self.broken: Exception | None = None

    def load(self) -> None:
        if self.broken:
            raise self.broken

    def warm(self, shape: Shape) -> None:
        self.ran.append(f"warm {shape}")

    def run(self, inputs: Mapping[str, np.ndarray]) -> Tensors:
        self.entered.set()
        assert self.gate.wait(30)
        self.ran.append(Shape.of(inputs).text)
        if np.isnan(inputs["x"]).any():
            raise RuntimeError("the model chokes on NaN")
        return {"y": inputs["x"] * 2}

    def outputs(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec(name="y", dtype="fp32", dims=("batch", "width")),)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def spec() -> ModelSpec:
    return model()


@pytest.fixture
def handler(spec: ModelSpec) -> Handler:
    handler = CroppingHandler()
    handler.initialize(spec, Path())
    return handler


@pytest.fixture
def engine(spec: ModelSpec) -> DoublingEngine:
    return DoublingEngine(spec)
