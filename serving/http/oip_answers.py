"""Answers of the Open Inference Protocol v2, to the requests that ``oip`` reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import orjson

from handlers.errors import InvalidInput
from handlers.shapes import DTYPES
from serving.http.oip import HEADER_LENGTH, InferRequest, Place, Wanted, shown

_DATATYPES = {np.dtype(numpy_name): datatype for numpy_name, datatype in DTYPES.values() if datatype != "BF16"}


def encode(
    model: str,
    version: str,
    request: InferRequest,
    outputs: Mapping[str, np.ndarray],
    dtypes: Mapping[str, str] | None = None,
) -> tuple[bytes, tuple[tuple[str, str], ...]]:
    """The response body and its headers (content type, and the length of the JSON where binary data follows).

    ``dtypes`` overrides the dtype (short name) of an output that NumPy cannot name (bf16). Outputs that the request
    wants in shared memory are written there (``InferRequest.write``). In JSON, data is flat in row-major order, and NaN
    or infinity is null: JSON has no other word. Raises InvalidInput where the request wants an output that the model
    did not give, one with no room for it, or BF16 as JSON; TypeError where the model gave what has no name here.
    """
    wanted = request.outputs or tuple(Wanted(name, request.binary_default) for name in outputs)
    described: list[dict[str, Any]] = []
    buffers: list[Any] = []
    for name, binary, place in wanted:
        array = outputs.get(name)
        if array is None:
            raise InvalidInput(f"unknown output {shown(name)}; the model gives: {', '.join(outputs)}")
        datatype = DTYPES[dtypes[name]][1] if dtypes and name in dtypes else _DATATYPES.get(array.dtype)
        if datatype is None:
            raise TypeError(f"model {model!r} gave output {name!r} of dtype {array.dtype}, which the protocol lacks")
        tensor: dict[str, Any] = {"name": name, "datatype": datatype, "shape": array.shape}
        if place is not None:
            assert request.write is not None
            tensor["parameters"] = _write(array, name, place, request.write)
        elif binary:
            tensor["parameters"] = {"binary_data_size": array.nbytes}
            buffers.append(np.ascontiguousarray(array))
        elif datatype == "BF16":
            raise InvalidInput(f"output {name!r}: BF16 cannot be sent as JSON; ask for it with binary_data: true")
        else:
            tensor["data"] = np.ascontiguousarray(array).reshape(-1)
        described.append(tensor)
    answer: dict[str, Any] = {"model_name": model, "model_version": version, "outputs": described}
    if request.id is not None:
        answer["id"] = request.id
    head = orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
    if not buffers:
        return head, (("content-type", "application/json"),)
    headers = (("content-type", "application/octet-stream"), (HEADER_LENGTH, str(len(head))))
    return b"".join((head, *buffers)), headers


def _write(
    array: np.ndarray, name: str, place: Place, write: Callable[[Place, memoryview], None]
) -> dict[str, str | int]:
    """Puts an output where it is wanted, and says so."""
    if array.nbytes > place.size:
        raise InvalidInput(f"output {name!r} has {array.nbytes} bytes; shared_memory_byte_size is {place.size}")
    write(place, np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    told: dict[str, str | int] = {"shared_memory_region": place.region, "shared_memory_byte_size": array.nbytes}
    return told | ({"shared_memory_offset": place.offset} if place.offset else {})
