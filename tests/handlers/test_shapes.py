from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.shapes import DTYPES, Shape, ShapeError, TensorShape, dtype_name

names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.\-/]{0,8}", fullmatch=True)
tensors = st.builds(
    TensorShape, names, st.lists(st.integers(1, 10**6), max_size=5).map(tuple), st.sampled_from(sorted(DTYPES))
)
shapes = st.lists(tensors, min_size=1, max_size=4, unique_by=lambda tensor: tensor.name).map(
    lambda found: Shape(tuple(found))
)


@given(shape=shapes)
def test_the_text_form_is_exact(shape: Shape) -> None:
    assert Shape.parse(shape.text) == shape
    assert str(Shape.parse(shape.text)) == shape.text


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("images=8x3x224x224:fp16", "images=8x3x224x224:fp16"),
        ("x=2:float32", "x=2:fp32"),
        (" a=1x2:half , b=:bfloat16 ", "a=1x2:fp16,b=:bf16"),
    ],
)
def test_reads_aliases_and_writes_one_form(text: str, canonical: str) -> None:
    assert Shape.parse(text).text == canonical


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not NAME=DIMxDIM"),
        ("x", "'x' is not NAME"),
        ("x=1x2", "is not NAME"),
        ("x=1xx2:fp32", "is not NAME"),
        ("x=-1:fp32", "is not NAME"),
        ("1x=2:fp32", "is not NAME"),
        ("x=1x2:fp33", "unknown dtype 'fp33'; allowed: bool, uint8"),
        ("x=1x0:fp32", "every dim must be at least 1"),
        ("x=1:fp32,x=2:fp32", "names an input twice"),
        ("x=1:fp32,,y=2:fp32", "'' is not NAME"),
    ],
)
def test_names_the_part_that_is_wrong(text: str, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        Shape.parse(text)


def test_of_arrays() -> None:
    arrays = {"x": np.zeros((2, 3), np.float16), "y": np.zeros((4,), np.uint16)}
    assert Shape.of(arrays).text == "x=2x3:fp16,y=4:uint16"
    assert Shape.of(arrays, {"y": "bf16"}).text == "x=2x3:fp16,y=4:bf16"


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_has_a_numpy_form(name: str) -> None:
    assert dtype_name(name) == name
    assert TensorShape("x", (1,), name).numpy_dtype == np.dtype(DTYPES[name][0])


def test_lookup_and_size() -> None:
    shape = Shape.parse("x=2x3:fp32,y=:bool")
    assert [tensor.elements for tensor in shape] == [6, 1]
    assert shape.elements == 7
    assert shape["y"].dims == ()
    with pytest.raises(KeyError):
        shape["z"]
