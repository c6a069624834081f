"""What a handler made is put in the model's order and layout, or refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from handlers.spec import ModelSpec, load_spec
from serving.declared import HandlerFault, as_declared

_MODEL = """
name: pair
engine: {kind: python, source: "pair.py:Pair"}
inputs:
  - {name: a, dtype: float32, dims: [batch, 1, width]}
  - {name: b, dtype: float32, dims: [batch, 1, width]}
shapes: {list: ["a=1x1x4:fp32,b=1x1x4:fp32"]}
"""


@pytest.fixture
def spec(tmp_path: Path) -> ModelSpec:
    (tmp_path / "model.yaml").write_text(_MODEL)
    return load_spec(tmp_path)


def test_tensors_come_in_the_models_order(spec: ModelSpec) -> None:
    array = np.zeros((1, 1, 4), np.float32)
    assert list(as_declared(spec, {"b": array, "a": array})) == ["a", "b"]


def test_an_axis_of_size_one_has_the_stride_that_a_new_array_has(spec: ModelSpec) -> None:
    row = np.arange(4, dtype=np.float32)
    view = row[None, None]
    assert view.strides == (0, 0, 4)
    found = as_declared(spec, {"a": view, "b": view})["a"]
    assert found.strides == np.empty((1, 1, 4), np.float32).strides
    assert np.shares_memory(found, row)


def test_what_does_not_lie_row_by_row_is_copied(spec: ModelSpec) -> None:
    columns = np.asfortranarray(np.arange(8, dtype=np.float32).reshape(2, 1, 4))
    found = as_declared(spec, {"a": columns, "b": columns})["a"]
    assert found.flags["C_CONTIGUOUS"]
    assert (found == columns).all()


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({"a": np.zeros((1, 1, 4), np.float32)}, "disagree on b"),
        ({"a": np.zeros((1, 2, 4), np.float32), "b": np.zeros((1, 1, 4), np.float32)}, r"\[1, 2, 4\]"),
        ({"a": np.zeros((1, 1, 4), np.float64), "b": np.zeros((1, 1, 4), np.float32)}, "fp64"),
    ],
)
def test_what_the_model_does_not_take_is_a_fault_of_the_handler(
    spec: ModelSpec, inputs: dict[str, np.ndarray], says: str
) -> None:
    with pytest.raises(HandlerFault, match=says):
        as_declared(spec, inputs)
