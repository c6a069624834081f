from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from handlers.errors import InvalidInput, UnplannedShape
from handlers.handler import Handler, Payload
from handlers.shapes import Shape
from handlers.spec import ModelSpec


@pytest.fixture
def handler(describe: Callable[..., ModelSpec]) -> Handler:
    handler = Handler()
    handler.initialize(describe({"kind": "onnx", "source": "net.onnx"}), Path())
    return handler


def test_the_base_takes_tensors_only(handler: Handler) -> None:
    with pytest.raises(InvalidInput, match="takes tensors, not text/plain: use /v2/models/model/infer"):
        handler.preprocess(Payload(b"hello", "text/plain"))


def test_the_base_answers_lists_and_pads_with_zero(handler: Handler) -> None:
    assert handler.postprocess({"y": np.array([[1.5, 2.0]])}, None) == {"y": [[1.5, 2.0]]}
    assert handler.pad_value("x") == 0.0
    handler.check({"x": np.array([np.nan])})


def test_the_base_does_not_guess_how_to_cut(handler: Handler) -> None:
    with pytest.raises(InvalidInput, match="no rule to cut outputs of x=2:fp32 to x=1:fp32"):
        handler.crop({}, Shape.parse("x=1:fp32"), Shape.parse("x=2:fp32"))


def test_an_unplanned_shape_names_those_that_would_do() -> None:
    error = UnplannedShape("x=3:fp32", ("x=2:fp32", "x=4:fp32"))
    assert str(error) == "shape x=3:fp32 is not warm; shapes that would have been served: x=2:fp32, x=4:fp32"
    assert str(UnplannedShape("x=3:fp32", ())).endswith("served: none")
