from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.errors import InvalidInput
from handlers.handler import Payload
from handlers.shapes import Shape
from handlers.spec import ModelSpec
from handlers.tensors import TensorHandler, read_npy

Describe = Callable[..., ModelSpec]


def npy(array: Any, version: tuple[int, int] | None = None) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asanyarray(array), version=version)
    return file.getvalue()


@pytest.fixture
def handler(describe: Describe) -> TensorHandler:
    handler = TensorHandler()
    handler.initialize(describe({"kind": "onnx", "source": "net.onnx"}), Path())
    return handler


def test_an_npy_file_is_one_input(handler: TensorHandler) -> None:
    array = np.arange(48, dtype=np.float32).reshape(1, 3, 4, 4)
    prepared = handler.preprocess(Payload(npy(array)))
    assert np.array_equal(prepared.inputs["x"], array)
    assert handler.postprocess({"y": array}, prepared.context) == {"y": array.tolist()}


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((1, 3, 4, 4)), "is float64 in the .npy file, the model takes float32"),
        (
            np.zeros((1, 4, 4, 4), np.float32),
            r"has dims \[1, 4, 4, 4\], the model takes \['batch', 3, 'height', 'width'\]",
        ),
        (np.zeros((3, 4, 4), np.float32), "has dims"),
        (np.zeros((0, 3, 4, 4), np.float32), "has dims"),
    ],
)
def test_a_tensor_that_the_model_does_not_take(handler: TensorHandler, array: np.ndarray, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        handler.preprocess(Payload(npy(array)))


@pytest.mark.parametrize("body", [b"", b"{}", b"\x89PNG", b"\x93NUMP"])
def test_any_other_body_is_told_where_tensors_go(handler: TensorHandler, body: bytes) -> None:
    with pytest.raises(InvalidInput, match="takes tensors, not image/png: use /v2/models/model/infer"):
        handler.preprocess(Payload(body, "image/png"))


def test_one_file_cannot_hold_two_inputs(describe: Describe) -> None:
    handler = TensorHandler()
    inputs = [{"name": name, "dtype": "fp32", "dims": [2]} for name in "ab"]
    spec = describe({"kind": "onnx", "source": "n.onnx"}, inputs=inputs, shapes={"list": ["a=2:fp32,b=2:fp32"]})
    handler.initialize(spec, Path())
    with pytest.raises(InvalidInput, match="has the inputs a, b"):
        handler.preprocess(Payload(npy(np.zeros(2, np.float32))))


def test_padding_is_not_cut_by_guess(handler: TensorHandler) -> None:
    with pytest.raises(InvalidInput, match="has no rule to cut outputs"):
        handler.crop({}, Shape.parse("x=1x3x4x4:fp32"), Shape.parse("x=1x3x8x8:fp32"))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "bool", "uint8", ">f4"])
def test_reads_what_numpy_writes(dtype: str, version: tuple[int, int], order: str) -> None:
    array = np.asarray(np.arange(12).reshape(3, 4), dtype=dtype, order=order)  # type: ignore[call-overload]
    found = read_npy(npy(array, version))
    assert found.flags.c_contiguous
    assert np.array_equal(found, array)


def test_the_bodys_own_memory_is_used() -> None:
    body = npy(np.arange(4, dtype=np.float32))
    found = read_npy(body)
    assert not found.flags.owndata
    assert not found.flags.writeable


def test_a_header_that_lies_is_refused_before_anything_is_allocated() -> None:
    body = npy(np.zeros((4, 4), np.float32)).replace(b"(4, 4)", b"(4000000000, 4)")
    for wrong in (body, npy(np.zeros(3))[:-1], npy(np.zeros(3)) + b"x"):
        with pytest.raises(InvalidInput, match=r"header"):
            read_npy(wrong)


def test_objects_are_refused() -> None:
    file = io.BytesIO()
    np.save(file, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(InvalidInput, match="holds Python objects"):
        read_npy(file.getvalue())


def test_a_version_of_the_future_is_refused() -> None:
    body = bytearray(npy(np.zeros(3)))
    body[6] = 9
    with pytest.raises(InvalidInput, match=r"version \(9, 0\) of the .npy format"):
        read_npy(bytes(body))


@given(data=st.data())
def test_any_damage_is_invalid_input_or_an_array(data: st.DataObject) -> None:
    body = bytearray(npy(np.arange(6, dtype=np.float32).reshape(2, 3)))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(6, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = read_npy(bytes(body))
    except InvalidInput:
        return
    assert found.nbytes <= len(body)
