"""Conformance to the Open Inference Protocol v2, as Triton's own client speaks it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tritonclient.http as client
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from handlers.shapes import DTYPES


@pytest.fixture(scope="module")
def server(echo_server: str) -> Iterator[client.InferenceServerClient]:
    with client.InferenceServerClient(echo_server.removeprefix("http://")) as connected:
        yield connected


def sample(dtype: str, batch: int = 1, width: int = 3) -> np.ndarray:
    if dtype == "bf16":
        return np.linspace(-3, 3, batch * 2 * width).reshape(batch, 2, width).astype(ml_dtypes.bfloat16)
    numpy_dtype = np.dtype(DTYPES[dtype][0])
    values = np.arange(batch * 2 * width).reshape(batch, 2, width)
    if numpy_dtype.kind == "b":
        return values % 2 == 0
    return (values * 0.1 - 0.2).astype(numpy_dtype) if numpy_dtype.kind == "f" else values.astype(numpy_dtype)


def tensor(name: str, array: np.ndarray, datatype: str, binary: bool = True) -> client.InferInput:
    made = client.InferInput(name, list(array.shape), datatype)
    return made.set_data_from_numpy(array, binary_data=binary)


def test_health(server: client.InferenceServerClient) -> None:
    assert server.is_server_live()
    assert server.is_server_ready()
    assert server.is_model_ready("echo-fp32")
    assert server.is_model_ready("echo-fp32", "3")
    assert not server.is_model_ready("nobody")
    assert not server.is_model_ready("echo-fp32", "4")


def test_server_metadata(server: client.InferenceServerClient) -> None:
    metadata = server.get_server_metadata()
    assert metadata["name"] == "preheat"
    assert "binary_tensor_data" in metadata["extensions"]


def test_model_metadata(server: client.InferenceServerClient) -> None:
    metadata = server.get_model_metadata("pair")
    assert {key: metadata[key] for key in ("name", "versions", "inputs", "outputs")} == {
        "name": "pair",
        "versions": ["1"],
        "inputs": [
            {"name": "a", "datatype": "INT64", "shape": [-1, -1]},
            {"name": "mask", "datatype": "BOOL", "shape": [-1, -1]},
        ],
        "outputs": [
            {"name": "sum", "datatype": "INT64", "shape": [-1, 1]},
            {"name": "mask", "datatype": "BOOL", "shape": [-1, -1]},
        ],
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", [1, 2, 3, 4])
def test_binary_tensors_of_every_dtype(server: client.InferenceServerClient, dtype: str, batch: int) -> None:
    array = sample(dtype, batch)
    result = server.infer(f"echo-{dtype}", [tensor("x", array, DTYPES[dtype][1])], request_id=f"r{batch}")
    np.testing.assert_array_equal(result.as_numpy("y"), array, strict=True)
    answer = result.get_response()
    assert (answer["model_name"], answer["model_version"], answer["id"]) == (f"echo-{dtype}", "3", f"r{batch}")


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype != "bf16"])
@pytest.mark.parametrize(("binary_in", "binary_out"), [(False, False), (True, False), (False, True)])
def test_json_tensors_of_every_dtype(
    server: client.InferenceServerClient, dtype: str, binary_in: bool, binary_out: bool
) -> None:
    array = sample(dtype, 2)
    sent = tensor("x", array, DTYPES[dtype][1], binary=binary_in)
    wanted = client.InferRequestedOutput("y", binary_data=binary_out)
    result = server.infer(f"echo-{dtype}", [sent], model_version="3", outputs=[wanted])
    np.testing.assert_array_equal(result.as_numpy("y"), array, strict=True)


def test_several_inputs_and_outputs(server: client.InferenceServerClient) -> None:
    numbers, mask = np.arange(8).reshape(2, 4), np.arange(8).reshape(2, 4) % 3 == 0
    sent = [tensor("mask", mask, "BOOL", binary=False), tensor("a", numbers, "INT64")]
    wanted = [client.InferRequestedOutput("mask"), client.InferRequestedOutput("sum", binary_data=False)]
    result = server.infer("pair", sent, outputs=wanted)
    np.testing.assert_array_equal(result.as_numpy("sum"), [[6], [22]])
    np.testing.assert_array_equal(result.as_numpy("mask"), mask)
    only = server.infer("pair", sent, outputs=[client.InferRequestedOutput("sum")])
    assert [output["name"] for output in only.get_response()["outputs"]] == ["sum"]


def test_many_requests_at_once_get_their_own_answers(echo_server: str) -> None:
    with client.InferenceServerClient(echo_server.removeprefix("http://"), concurrency=8) as server:
        arrays = [np.full((1 + index % 4, 2, 2 + index % 3), index, np.float32) for index in range(64)]
        pending = [server.async_infer("echo-fp32", [tensor("x", array, "FP32")]) for array in arrays]
        for array, answer in zip(arrays, pending, strict=True):
            np.testing.assert_array_equal(answer.get_result().as_numpy("y"), array, strict=True)


@pytest.mark.parametrize(
    ("model", "inputs", "more", "status", "says"),
    [
        ("nobody", {"x": sample("fp32")}, {}, "404", "nobody"),
        ("echo-fp32", {"x": sample("fp32")}, {"model_version": "9"}, "404", "9"),
        ("echo-fp32", {"z": sample("fp32")}, {}, "400", "unknown input 'z'; the model takes: x"),
        ("echo-fp32", {}, {}, "400", "missing input x"),
        ("echo-fp32", {"x": sample("fp64")}, {}, "400", "datatype 'FP64'; the model takes FP32"),
        ("echo-fp32", {"x": sample("fp32")[0]}, {}, "400", r"the model takes \[batch, 2, width\]"),
        ("echo-fp32", {"x": np.zeros((1, 3, 3), np.float32)}, {}, "400", r"the model takes \[batch, 2, width\]"),
        ("echo-fp32", {"x": np.zeros((0, 2, 3), np.float32)}, {}, "400", "shape"),
        ("echo-fp32", {"x": np.array([[["a"]]], object)}, {}, "400", "datatype 'BYTES'; the model takes FP32"),
        (
            "echo-fp32",
            {"x": sample("fp32")},
            {"outputs": [client.InferRequestedOutput("w")]},
            "400",
            "unknown output 'w'; the model gives: y",
        ),
        (
            "echo-fp32",
            {"x": sample("fp32")},
            {"outputs": [client.InferRequestedOutput("y", class_count=2)]},
            "400",
            "classification is not supported",
        ),
        (
            "echo-bf16",
            {"x": sample("bf16")},
            {"outputs": [client.InferRequestedOutput("y", binary_data=False)]},
            "400",
            "BF16 cannot be sent as JSON",
        ),
        ("echo-fp32", {"x": np.zeros((1, 2, 10_000), np.float32)}, {}, "413", "at most 65536"),
        ("echo-fp32", {"x": sample("fp32")}, {"request_compression_algorithm": "gzip"}, "415", "gzip"),
        (
            "pair",
            {"a": np.zeros((1, 4), np.int64), "mask": np.zeros((2, 4), bool)},
            {},
            "400",
            "input 'mask': axis batch is 2, but elsewhere 1",
        ),
    ],
)
def test_wrong_requests(
    server: client.InferenceServerClient,
    model: str,
    inputs: dict[str, np.ndarray],
    more: dict[str, Any],
    status: str,
    says: str,
) -> None:
    sent = [tensor(name, array, np_to_triton_dtype(array.dtype) or "") for name, array in inputs.items()]
    with pytest.raises(InferenceServerException, match=says) as refused:
        server.infer(model, sent, **more)
    assert refused.value.status() == status


def test_compressed_answers_are_not_forced_on_anyone(server: client.InferenceServerClient) -> None:
    array = sample("fp32")
    result = server.infer("echo-fp32", [tensor("x", array, "FP32")], response_compression_algorithm="gzip")
    np.testing.assert_array_equal(result.as_numpy("y"), array, strict=True)


def test_the_server_lives_on_after_wrong_requests(server: client.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException):
        server.infer("echo-fp32", [])
    np.testing.assert_array_equal(
        server.infer("echo-fp32", [tensor("x", sample("fp32"), "FP32")]).as_numpy("y"), sample("fp32")
    )


def test_a_proven_model_that_rejects_cold_shapes_says_what_it_would_serve(warm_server: str) -> None:
    with client.InferenceServerClient(warm_server.removeprefix("http://")) as server:
        warm = [tensor("a", np.ones((2, 4), np.int64), "INT64"), tensor("mask", np.ones((2, 4), bool), "BOOL")]
        np.testing.assert_array_equal(server.infer("pair", warm).as_numpy("sum"), [[4], [4]])
        cold = [tensor("a", np.ones((1, 3), np.int64), "INT64"), tensor("mask", np.ones((1, 3), bool), "BOOL")]
        says = r"a=1x3:int64,mask=1x3:bool is not warm; shapes that would have been served: a=.x4:int64"
        with pytest.raises(InferenceServerException, match=says) as refused:
            server.infer("pair", cold)
        assert refused.value.status() == "503"


def test_requests_that_share_a_batch_get_their_own_rows(warm_server: str) -> None:
    with client.InferenceServerClient(warm_server.removeprefix("http://"), concurrency=8) as server:
        arrays = [np.full((1 + index % 3, 2, 3), index, ml_dtypes.bfloat16) for index in range(48)]
        pending = [server.async_infer("echo-bf16", [tensor("x", array, "BF16")]) for array in arrays]
        for array, answer in zip(arrays, pending, strict=True):
            np.testing.assert_array_equal(answer.get_result().as_numpy("y"), array, strict=True)
