from __future__ import annotations

import numpy as np
import pytest

from handlers.engines.engine import example
from handlers.shapes import DTYPES, Shape


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_example_has_the_shape_it_is_of(dtype: str) -> None:
    shape = Shape.parse(f"x=2x3:{dtype},y=:{dtype}")
    arrays = example(shape)
    assert Shape.of(arrays, {"x": dtype, "y": dtype}) == shape


def test_an_example_is_the_same_every_time_and_another_with_another_seed() -> None:
    shape = Shape.parse("x=64:fp32")
    assert np.array_equal(example(shape)["x"], example(shape)["x"])
    assert not np.array_equal(example(shape)["x"], example(shape, seed=1)["x"])


def test_floats_lie_between_zero_and_one() -> None:
    values = example(Shape.parse("a=1000:fp32,b=1000:bf16"))
    halves = (values["b"].astype(np.uint32) << 16).view(np.float32)
    for array in (values["a"], halves):
        assert 0 <= array.min() < 0.1
        assert 0.9 < array.max() <= 1
