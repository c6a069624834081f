"""Requests and answers of the Open Inference Protocol v2."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tritonclient.http as client
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.http._utils import _get_inference_request

from handlers.errors import InvalidInput
from handlers.shapes import DTYPES
from handlers.spec import TensorSpec
from serving.http import oip
from serving.http.oip_answers import encode

IMAGE = (TensorSpec(name="x", dtype="fp32", dims=("batch", 2, "width")),)
PAIR = (
    TensorSpec(name="ids", dtype="int64", dims=("batch", "length")),
    TensorSpec(name="mask", dtype="bool", dims=("batch", "length")),
)


def decode(
    body: bytes, length: int | None, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...] = ()
) -> oip.InferRequest:
    return oip.Decoder(inputs, outputs).decode(body, length)


def request(*inputs: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"inputs": list(inputs), **more}).encode()


def entry(**changes: Any) -> dict[str, Any]:
    whole = {"name": "x", "shape": [1, 2, 3], "datatype": "FP32", "data": [1, 2, 3, 4, 5, 6.5], **changes}
    return {key: value for key, value in whole.items() if value is not ...}


def padded(body: bytes, size: int = 20_000) -> bytes:
    """The same request, long enough for the way that reads long requests."""
    return body[:1] + b" " * size + body[1:]


BOTH_WAYS = pytest.mark.parametrize("stretch", [bytes, padded], ids=["short", "long"])


@BOTH_WAYS
@pytest.mark.parametrize("data", [[1, 2, 3, 4, 5, 6.5], [[[1, 2, 3], [4, 5, 6.5]]]], ids=["flat data", "nested data"])
def test_json_numbers_become_an_array_of_the_declared_shape(stretch: Any, data: list[Any]) -> None:
    decoded = decode(stretch(request(entry(data=data), id="a7")), None, IMAGE)
    assert decoded.id == "a7"
    assert decoded.inputs["x"].dtype == np.float32
    np.testing.assert_array_equal(decoded.inputs["x"], np.array([[[1, 2, 3], [4, 5, 6.5]]], np.float32))


@BOTH_WAYS
def test_inputs_come_in_declared_order(stretch: Any) -> None:
    body = request(
        {"name": "mask", "shape": [1, 2], "datatype": "BOOL", "data": [True, False]},
        {"name": "ids", "shape": [1, 2], "datatype": "INT64", "data": [9007199254740993, -1]},
    )
    decoded = decode(stretch(body), None, PAIR)
    assert list(decoded.inputs) == ["ids", "mask"]
    assert decoded.inputs["ids"].tolist() == [[9007199254740993, -1]]
    assert decoded.inputs["mask"].tolist() == [[True, False]]


@pytest.mark.parametrize("short", [name for name in DTYPES if name != "bf16"])
@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
def test_every_dtype_survives_the_way_in_and_out(short: str, binary: bool) -> None:
    numpy_name, datatype = DTYPES[short]
    array = extremes(np.dtype(numpy_name)).reshape(2, -1)
    sent = client.InferInput("x", list(array.shape), datatype)
    sent.set_data_from_numpy(array, binary_data=binary)
    wanted = [client.InferRequestedOutput("y", binary_data=binary)]
    body, length = _get_inference_request([sent], "q", wanted, 0, False, False, 0, None, None)
    specs = (TensorSpec(name="x", dtype=short, dims=("batch", "n")),)

    decoded = decode(body, length, specs)
    np.testing.assert_array_equal(decoded.inputs["x"], array, strict=True)

    answer, headers = encode("m", "3", decoded, {"y": decoded.inputs["x"]})
    result = client.InferResult.from_response_body(answer, header_length=dict(headers).get(oip.HEADER_LENGTH))
    np.testing.assert_array_equal(result.as_numpy("y"), array, strict=True)
    assert {"id": "q", "model_name": "m", "model_version": "3"}.items() <= result.get_response().items()


def extremes(dtype: np.dtype) -> np.ndarray:
    if dtype.kind == "b":
        return np.array([True, False, False, True])
    if dtype.kind == "f":
        limits = np.finfo(dtype)
        return np.array([limits.min, limits.max, limits.tiny, 0.1], dtype)
    limits = np.iinfo(dtype)
    return np.array([limits.min, limits.max, 0, 7], dtype)


def test_bfloat16_travels_as_binary_data() -> None:
    array = np.array([[0.1, -3e38]], ml_dtypes.bfloat16)
    sent = client.InferInput("x", [1, 2], "BF16")
    sent.set_data_from_numpy(array)
    body, length = _get_inference_request([sent], "", None, 0, False, False, 0, None, None)
    specs = (TensorSpec(name="x", dtype="bf16", dims=("batch", 2)),)
    decoded = decode(body, length, specs)
    np.testing.assert_array_equal(decoded.inputs["x"], array.view(np.uint16), strict=True)

    answer, headers = encode("m", "1", decoded, {"y": decoded.inputs["x"]}, {"y": "bf16"})
    result = client.InferResult.from_response_body(answer, header_length=dict(headers)[oip.HEADER_LENGTH])
    np.testing.assert_array_equal(result.as_numpy("y"), array)


def test_bfloat16_has_no_json_form() -> None:
    specs = (TensorSpec(name="x", dtype="bf16", dims=("batch", 2)),)
    with pytest.raises(InvalidInput, match="BF16 cannot be sent as JSON"):
        decode(request(entry(shape=[1, 2], datatype="BF16", data=[1, 2])), None, specs)
    with pytest.raises(InvalidInput, match="binary_data: true"):
        decode(request(entry()), None, IMAGE, (TensorSpec(name="y", dtype="bf16", dims=("batch",)),))
    asked = oip.InferRequest(None, {})
    with pytest.raises(InvalidInput, match="output 'y': BF16 cannot be sent as JSON"):
        encode("m", "1", asked, {"y": np.zeros(2, np.uint16)}, {"y": "bf16"})


def binary_request(array: np.ndarray, head_size: int, size: int | None = None) -> tuple[bytes, int]:
    parameters = {"binary_data_size": array.nbytes if size is None else size}
    head = request(entry(shape=list(array.shape), data=..., parameters=parameters)).ljust(head_size)
    return head + array.tobytes(), len(head)


@pytest.mark.parametrize(("head_size", "shared"), [(160, True), (161, False)])
def test_aligned_binary_data_is_not_copied(head_size: int, shared: bool) -> None:
    array = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    body, length = binary_request(array, head_size)
    got = decode(body, length, IMAGE).inputs["x"]
    np.testing.assert_array_equal(got, array)
    assert got.flags.aligned
    assert np.shares_memory(got, np.frombuffer(body, np.uint8)) == shared


def test_several_binary_and_json_inputs_may_mix() -> None:
    ids = np.array([[5, 6]], np.int64)
    head = request(
        {"name": "mask", "shape": [1, 2], "datatype": "BOOL", "parameters": {"binary_data_size": 2}},
        {"name": "ids", "shape": [1, 2], "datatype": "INT64", "parameters": {"binary_data_size": 16}},
    )
    decoded = decode(head + b"\x01\x00" + ids.tobytes(), len(head), PAIR)
    assert decoded.inputs["mask"].tolist() == [[True, False]]
    assert decoded.inputs["ids"].tolist() == [[5, 6]]

    head = request(
        {"name": "mask", "shape": [1, 2], "datatype": "BOOL", "data": [True, True]},
        {"name": "ids", "shape": [1, 2], "datatype": "INT64", "parameters": {"binary_data_size": 16}},
    )
    decoded = decode(head + ids.tobytes(), len(head), PAIR)
    assert decoded.inputs["mask"].tolist() == [[True, True]]
    assert decoded.inputs["ids"].tolist() == [[5, 6]]


@BOTH_WAYS
def test_wanted_outputs_follow_the_general_setting_unless_they_say_otherwise(stretch: Any) -> None:
    outputs = [{"name": "a"}, {"name": "b", "parameters": {"binary_data": False}}]
    body = request(entry(), outputs=outputs, parameters={"binary_data_output": True, "priority": 3})
    decoded = decode(stretch(body), None, IMAGE)
    assert decoded.outputs == (oip.Wanted("a", True), oip.Wanted("b", False))
    assert decoded.binary_default


@BOTH_WAYS
@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "inference request|not JSON"),
        (b"{", "inference request|not JSON"),
        (b"[]", "object"),
        (b'"x"', "object"),
        (b"\xff\xfe{}", "inference request|not JSON"),
        (b"[" * 100_000, "inference request|not JSON"),
        (b"{}", "inputs"),
        (b'{"inputs": 3}', "inputs"),
        (b'{"inputs": {"x": 1}}', "inputs"),
        (b'{"inputs": [3]}', r"inputs\[0\]|inputs\[\.\.\.\]"),
        (request(), "missing input x"),
        (request(entry(), id=3), "id"),
        (request(entry(), parameters=[]), "parameters"),
        (request(entry(), outputs=[{}]), "name"),
        (request(entry(name=...)), "name"),
        (request(entry(name=3)), "name"),
        (request(entry(name="other")), "unknown input 'other'; the model takes: x"),
        (request(entry(name="n" * 5000)), r"unknown input 'nnn.*\.\.\.; the model"),
        (request(entry(), entry()), "'x' is given twice"),
        (request(entry(datatype="FP16")), "datatype 'FP16'; the model takes FP32"),
        (request(entry(datatype="BYTES", data=["a"])), "datatype 'BYTES'; the model takes FP32"),
        (request(entry(datatype="fp32")), "datatype 'fp32'"),
        (request(entry(shape=...)), "shape"),
        (request(entry(shape=[2, 3])), r"shape \[2, 3\]; the model takes \[batch, 2, width\]"),
        (request(entry(shape=[1, 3, 2])), r"shape \[1, 3, 2\]"),
        (request(entry(shape=[0, 2, 3], data=[])), "shape"),
        (request(entry(shape=[-1, 2, 3])), "shape"),
        (request(entry(shape=[1, 2, 1.5])), "shape"),
        (request(entry(shape=[1, 2, "3"])), "shape"),
        (request(entry(shape=[1, 2, True])), "shape"),
        (request(entry(shape=[1, 2, 2**40])), "shape"),
        (request(entry(shape=[2**31, 2, 2**31])), "6 elements, but shape .* has"),
        (request(entry(data=...)), "neither data nor"),
        (request(entry(data=None)), "array of numbers|neither data nor"),
        (request(entry(data=3)), "array of numbers"),
        (request(entry(data=[])), "0 elements"),
        (request(entry(data=[1, 2, 3])), r"3 elements, but shape \[1, 2, 3\] has 6"),
        (request(entry(data=[1, 2, 3, 4, 5, "6"])), "numbers only, as FP32"),
        (request(entry(data=[1, 2, 3, 4, 5, None])), "numbers only"),
        (request(entry(data=[1, 2, 3, 4, 5, True])), "numbers only"),
        (request(entry(data=[1, 2, 3, 4, 5, {}])), "numbers only"),
        (request(entry(data=[1, 2, 3, 4, 5, float("nan")])), "inference request|not JSON"),
        (request(entry(data=[1, 2, 3, 4, 5, float("-inf")])), "inference request|not JSON"),
        (request(entry(data=[1, 2, 3, 4, 5, 1e39])), "beyond FP32"),
        (request(entry(data=[[1, 2], [3, 4], [5, 6]])), "nested otherwise than shape"),
        (request(entry(data=[[[1, 2], [3, 4, 5, 6]]])), "nested otherwise than shape"),
        (request(entry(data=[[[[1], [2], [3]], [4, 5, 6]]])), "nested otherwise than shape"),
        (request(entry(data=[1, [2, 3, 4, 5, 6]])), "mixes elements and arrays"),
        (request(entry(parameters={"binary_data_size": 24}, data=...)), "Inference-Header-Content-Length is missing"),
        (request(entry(parameters={"binary_data_size": 24})), "both data and"),
        (request(entry(parameters={"binary_data_size": "24"}, data=...)), "binary_data_size"),
        (request(entry(parameters={"binary_data_size": -24}, data=...)), "binary_data_size"),
        (request(entry(), outputs=[{"name": "y"}, {"name": "y"}]), "'y' is asked for twice"),
        (request(entry(), outputs=[{"name": "z"}]), "unknown output 'z'; the model gives: y"),
        (request(entry(), outputs=[{"name": "y", "parameters": {"classification": 3}}]), "classification is not"),
        (request(entry(), outputs=[{"name": "y", "parameters": {"binary_data": 1}}]), "binary_data"),
    ],
)
def test_a_request_that_breaks_a_rule_is_told_which(stretch: Any, body: bytes, says: str) -> None:
    outputs = (TensorSpec(name="y", dtype="fp32", dims=("batch",)),)
    with pytest.raises(InvalidInput, match=says):
        decode(stretch(body), None, IMAGE, outputs)


@pytest.mark.parametrize(
    ("short", "data", "says"),
    [
        ("int8", [128], "beyond INT8, -128 to 127"),
        ("int8", [1.0], "integers only, as INT8"),
        ("int8", [True], "integers only"),
        ("int64", [2**63], "integers only"),
        ("uint8", [-1], "integers of 0 or more only, as UINT8"),
        ("uint8", [256], "beyond UINT8, 0 to 255"),
        ("uint64", [2**64], "integers of 0 or more only|not JSON"),
        ("fp16", [70000], "beyond FP16, up to 65504"),
        ("bool", [1], "true or false only"),
        ("bool", ["true"], "true or false only"),
        ("bool", [[True], []], "unevenly"),
    ],
)
def test_json_elements_must_be_of_the_dtype(short: str, data: list[Any], says: str) -> None:
    specs = (TensorSpec(name="x", dtype=short, dims=("n",)),)
    body = request(entry(shape=[1], datatype=DTYPES[short][1], data=data))
    with pytest.raises(InvalidInput, match=says):
        decode(body, None, specs)


@BOTH_WAYS
def test_inputs_must_agree_on_a_shared_axis(stretch: Any) -> None:
    body = request(
        {"name": "ids", "shape": [1, 2], "datatype": "INT64", "data": [1, 2]},
        {"name": "mask", "shape": [2, 2], "datatype": "BOOL", "data": [True] * 4},
    )
    with pytest.raises(InvalidInput, match="input 'mask': axis batch is 2, but elsewhere 1"):
        decode(stretch(body), None, PAIR)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda body, length: (body, -1), "is -1, but the body has"),
        (lambda body, length: (body, len(body) + 1), "but the body has"),
        (lambda body, length: (body, 0), "inference request"),
        (lambda body, length: (body, length - 40), "40 bytes after the last"),
        (lambda body, length: (body, length + 4), "inference request"),
        (lambda body, length: (body[:-1], length), "the body has 23 bytes left"),
        (lambda body, length: (body + b"\0", length), "1 bytes after the last"),
        (lambda body, length: (body, None), "inference request"),
    ],
)
def test_lengths_that_lie_are_refused(change: Any, says: str) -> None:
    body, length = change(*binary_request(np.zeros((1, 2, 3), np.float32), 160))
    with pytest.raises(InvalidInput, match=says):
        decode(body, length, IMAGE)


@pytest.mark.parametrize("size", [0, 23, 25, 2**40])
def test_a_binary_size_must_match_the_shape(size: int) -> None:
    body, length = binary_request(np.zeros((1, 2, 3), np.float32), 160, size)
    with pytest.raises(InvalidInput, match=rf"binary_data_size is {size}, but shape \[1, 2, 3\] of FP32 has 24 bytes"):
        decode(body, length, IMAGE)


def test_a_binary_boolean_is_zero_or_one() -> None:
    specs = (TensorSpec(name="x", dtype="bool", dims=(2,)),)
    head = request(entry(shape=[2], datatype="BOOL", data=..., parameters={"binary_data_size": 2}))
    with pytest.raises(InvalidInput, match="must be 0 or 1, found 2"):
        decode(head + b"\x01\x02", len(head), specs)


@pytest.mark.parametrize("text", ["-1", "1.5", "", "ten", "٣", "1" * 30, " 5"])
def test_a_header_length_must_be_a_number(text: str) -> None:
    with pytest.raises(InvalidInput, match="Inference-Header-Content-Length must be a number"):
        oip.parse_header_length(text)


def test_a_header_length_is_optional() -> None:
    assert oip.parse_header_length(None) is None
    assert oip.parse_header_length("17") == 17


def test_an_integer_beyond_64_bits_is_a_number_in_a_short_request_and_refused_in_a_long_one() -> None:
    body = request(entry(data=[1, 2, 3, 4, 5, 10**30]))
    assert decode(body, None, IMAGE).inputs["x"].ravel()[-1] == np.float32(1e30)
    with pytest.raises(InvalidInput, match="numbers only|not JSON"):
        decode(padded(body), None, IMAGE)


def test_a_scalar_input_has_no_dims() -> None:
    specs = (TensorSpec(name="x", dtype="fp32", dims=()),)
    got = decode(request(entry(shape=[], data=[0.5])), None, specs).inputs["x"]
    assert got.shape == () and got == 0.5


def test_an_error_that_is_kept_does_not_block_the_next_request() -> None:
    with pytest.raises(InvalidInput) as kept:
        decode(padded(request(entry(data=[[1, 2], [3, 4], [5, 6]]))), None, IMAGE)
    assert decode(padded(request(entry())), None, IMAGE).inputs["x"].shape == (1, 2, 3)
    assert kept.value.__traceback__ is not None


def test_json_answers_are_flat_and_say_null_where_json_has_no_number() -> None:
    outputs = {"y": np.array([[1, np.nan], [np.inf, 2]], np.float32).T, "none": np.zeros((0, 4), np.int32)}
    answer, headers = encode("m", "1", oip.InferRequest(None, {}), outputs)
    assert headers == (("content-type", "application/json"),)
    assert json.loads(answer) == {
        "model_name": "m",
        "model_version": "1",
        "outputs": [
            {"name": "y", "datatype": "FP32", "shape": [2, 2], "data": [1.0, None, None, 2.0]},
            {"name": "none", "datatype": "INT32", "shape": [0, 4], "data": []},
        ],
    }


def test_binary_answers_follow_the_json_in_order() -> None:
    asked = oip.InferRequest("i", {}, (oip.Wanted("b", True), oip.Wanted("c", False), oip.Wanted("a", True)))
    outputs = {"a": np.arange(4, dtype=np.int16).reshape(2, 2).T, "b": np.array(2.5), "c": np.array([True])}
    answer, headers = encode("m", "1", asked, outputs)
    length = int(dict(headers)[oip.HEADER_LENGTH])
    assert dict(headers)["content-type"] == "application/octet-stream"
    described = json.loads(answer[:length])["outputs"]
    assert [(tensor["name"], tensor.get("parameters")) for tensor in described] == [
        ("b", {"binary_data_size": 8}),
        ("c", None),
        ("a", {"binary_data_size": 8}),
    ]
    assert answer[length:] == np.array(2.5).tobytes() + np.array([0, 2, 1, 3], np.int16).tobytes()


def test_an_output_that_the_model_did_not_give_is_refused() -> None:
    with pytest.raises(InvalidInput, match="unknown output 'z'; the model gives: y"):
        encode("m", "1", oip.InferRequest(None, {}, (oip.Wanted("z", False),)), {"y": np.zeros(1)})


def test_an_output_without_a_datatype_is_the_models_fault() -> None:
    with pytest.raises(TypeError, match="complex128"):
        encode("m", "1", oip.InferRequest(None, {}), {"y": np.zeros(1, complex)})


# Fuzzing: whatever arrives, the answer is a request or InvalidInput.

SPECS = (*PAIR, TensorSpec(name="x", dtype="fp32", dims=("batch", 2, "width")))
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
trees = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner), max_leaves=12
)
dims = st.lists(st.integers(-1, 4), max_size=4) | trees
entries = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["x", "ids", "mask"]) | trees,
        "shape": st.just([1, 2, 3]) | dims,
        "datatype": st.sampled_from(["FP32", "INT64", "BOOL", "BYTES"]) | trees,
        "data": st.lists(st.integers(), max_size=8) | st.lists(st.booleans(), max_size=4) | trees,
        "parameters": st.fixed_dictionaries({}, optional={"binary_data_size": st.integers(-1, 64)}) | trees,
    },
)
documents = st.fixed_dictionaries(
    {}, optional={"inputs": st.lists(entries, max_size=4) | trees, "id": trees, "outputs": trees, "parameters": trees}
)


def decode_or_refuse(body: bytes, header_length: int | None) -> None:
    try:
        decoded = decode(body, header_length, SPECS)
    except InvalidInput as refusal:
        assert 0 < len(str(refusal)) < 2000
    else:
        assert list(decoded.inputs) == [spec.name for spec in SPECS]
        encode("m", "1", oip.InferRequest(decoded.id, {}), decoded.inputs)


@given(st.binary(max_size=200), st.none() | st.integers(-2, 210))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_decoded_or_refused(body: bytes, header_length: int | None) -> None:
    decode_or_refuse(body, header_length)


@given(documents | trees, st.binary(max_size=40), st.none() | st.integers(-3, 3), st.booleans())
@settings(max_examples=500, deadline=None)
def test_any_document_is_decoded_or_refused(document: Any, tail: bytes, lie: int | None, long: bool) -> None:
    head = json.dumps(document).encode()
    if long:
        head = b" " * 9000 + head
    decode_or_refuse(head + tail, None if lie is None else len(head) + lie)


@given(st.data(), st.sampled_from([0, 9000]))
@settings(max_examples=300, deadline=None)
def test_a_damaged_request_is_decoded_or_refused(data: st.DataObject, padding: int) -> None:
    whole = bytearray(
        b" " * padding
        + request(
            {"name": "ids", "shape": [1, 2], "datatype": "INT64", "data": [1, 2]},
            {"name": "mask", "shape": [1, 2], "datatype": "BOOL", "data": [[True, False]]},
            entry(),
            id="\u00e9\ud83d\ude00",
            outputs=[{"name": "x", "parameters": {"binary_data": True}}],
        )
    )
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(padding, len(whole) - 1))
        whole[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    decode_or_refuse(bytes(whole), None)


@given(st.integers(1, 3), st.integers(1, 4), st.data())
@settings(max_examples=100, deadline=None)
def test_json_and_binary_carry_the_same_tensor(batch: int, width: int, data: st.DataObject) -> None:
    count = batch * 2 * width
    numbers = data.draw(
        st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=count, max_size=count)
    )
    array = np.array(numbers, np.float32).reshape(batch, 2, width)
    body, length = binary_request(array, 0)
    by_json = decode(request(entry(shape=array.shape, data=array.tolist())), None, IMAGE).inputs["x"]
    np.testing.assert_array_equal(decode(body, length, IMAGE).inputs["x"], by_json, strict=True)
    np.testing.assert_array_equal(by_json, array, strict=True)
