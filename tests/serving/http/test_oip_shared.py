"""Tensors in shared memory, in requests and answers of the Open Inference Protocol."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tritonclient.http as client
from tritonclient.http._utils import _get_inference_request

from handlers.errors import InvalidInput
from handlers.spec import TensorSpec
from serving.http.oip import Decoder, InferRequest, Place, Shared, Wanted
from serving.http.oip_answers import encode

INPUTS = (
    TensorSpec(name="x", dtype="fp32", dims=("batch", 2)),
    TensorSpec(name="z", dtype="fp32", dims=("batch", 2)),
)
OUTPUTS = (TensorSpec(name="y", dtype="bf16", dims=("batch", 2)), TensorSpec(name="w", dtype="fp32", dims=("batch",)))
HERE = {"shared_memory_region": "r", "shared_memory_byte_size": 8}
SENT = {"name": "z", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}


def decode(x: dict[str, Any], outputs: list[Any] | None = None, known: tuple[TensorSpec, ...] = ()) -> InferRequest:
    document: dict[str, Any] = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", **x}, SENT]}
    if outputs is not None:
        document["outputs"] = outputs
    return Decoder(INPUTS, known).decode(json.dumps(document).encode(), None)


def test_what_tritons_client_puts_in_shared_memory_is_found_there() -> None:
    inputs = [client.InferInput("x", [3, 2], "FP32"), client.InferInput("z", [3, 2], "FP32")]
    inputs[0].set_shared_memory("first", 24, offset=128)
    inputs[1].set_data_from_numpy(np.zeros((3, 2), np.float32))
    output = client.InferRequestedOutput("y")
    output.set_shared_memory("second", 12)
    body, length = _get_inference_request(inputs, "", [output], 0, False, False, 0, None, None)
    found = Decoder(INPUTS, OUTPUTS).decode(body, length)
    assert found.shared == {"x": Shared(Place("first", 128, 24), (3, 2))} and set(found.inputs) == {"z"}
    assert found.outputs[0].place == Place("second", 0, 12)
    assert found.places == [Place("first", 128, 24), Place("second", 0, 12)]


@pytest.mark.parametrize(
    ("x", "says"),
    [
        ({"parameters": {"shared_memory_region": "r"}}, "input 'x': shared_memory_region and .* go together"),
        ({"parameters": {"shared_memory_byte_size": 8}}, "input 'x': shared_memory_region and .* go together"),
        ({"parameters": HERE, "data": [1, 2]}, "input 'x' is in shared memory, and data is sent as well"),
        ({"parameters": {**HERE, "binary_data_size": 8}}, "input 'x' is in shared memory, and data is sent as well"),
        ({"parameters": {**HERE, "shared_memory_byte_size": 7}}, "shared_memory_byte_size is 7, but .* has 8 bytes"),
        ({"parameters": {**HERE, "shared_memory_offset": -1}}, "shared_memory_offset"),
        ({"parameters": {**HERE, "shared_memory_region": 5}}, "shared_memory_region"),
        ({"parameters": HERE, "name": "z"}, "input 'z' is given twice"),
    ],
)
def test_an_input_that_breaks_a_rule_is_told_which(x: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        decode(x)


def test_an_output_in_shared_memory_needs_a_size_and_no_json() -> None:
    with pytest.raises(InvalidInput, match="output 'y': shared_memory_region and"):
        decode({"data": [1, 2]}, [{"name": "y", "parameters": {"shared_memory_region": "r"}}], OUTPUTS)
    found = decode({"data": [1, 2]}, [{"name": "y", "parameters": HERE}], OUTPUTS)  # bf16, which JSON has not
    assert found.outputs == (Wanted("y", False, Place("r", 0, 8)),)


def test_an_output_is_written_where_it_is_wanted() -> None:
    written: list[tuple[Place, bytes]] = []
    place = Place("r", 16, 100)
    wanted = (Wanted("y", True, place), Wanted("w", True))
    asked = InferRequest(None, {}, wanted, write=lambda *what: written.append(_copy(*what)))
    y = np.array([[1, 2], [3, 4]], ml_dtypes.bfloat16).view(np.uint16).T  # not contiguous
    outputs = {"y": y, "w": np.array([5], np.float32)}
    answer, headers = encode("m", "1", asked, outputs, {"y": "bf16"})
    assert written == [(place, np.ascontiguousarray(y).tobytes())]
    result = client.InferResult.from_response_body(
        answer, header_length=int(dict(headers)["inference-header-content-length"])
    )
    told = result.get_output("y")
    assert told is not None and told["parameters"] == {
        "shared_memory_region": "r",
        "shared_memory_offset": 16,
        "shared_memory_byte_size": 8,
    }
    np.testing.assert_array_equal(result.as_numpy("w"), [5])


def test_an_output_that_has_no_room_is_refused() -> None:
    wanted = (Wanted("w", False, Place("r", 0, 7)),)
    asked = InferRequest(None, {}, wanted, write=lambda *what: pytest.fail("was written"))
    with pytest.raises(InvalidInput, match="output 'w' has 8 bytes; shared_memory_byte_size is 7"):
        encode("m", "1", asked, {"w": np.zeros(2, np.float32)})


def _copy(place: Place, data: memoryview) -> tuple[Place, bytes]:
    return place, bytes(data)
