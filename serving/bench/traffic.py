"""The requests of a run: every distinct one is encoded once, before the clock starts, then picked by weight."""

from __future__ import annotations

import json
import mimetypes
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import orjson

from handlers.engines.engine import example
from handlers.shapes import DTYPES, Shape, ShapeError, TensorShape
from serving.bench.sharedmemory import SharedExamples

Encoding = Literal["binary", "json", "shared-memory"]
ALIGNMENT = 8  # JSON may end in spaces: they put the tensor where a server can use it as it lies, without a copy
_ALIGNMENT = 64  # of the first tensor's bytes in a body: where they are not aligned, the server has to copy them
WeightedShapes = Sequence[tuple[Shape, float]]


class TrafficError(ValueError):
    """Shapes or files that no traffic can be made of."""


@dataclass(frozen=True)
class Ask:
    """One distinct request. ``name`` is the shape's text or the file's name; ``body`` are parts sent one by one."""

    name: str
    weight: float
    path: str
    headers: Mapping[str, str]
    body: tuple[bytes | memoryview, ...]

    @property
    def size(self) -> int:
        """Bytes of the body."""
        return sum(len(part) for part in self.body)


def tensor_asks(
    model: str, shapes: WeightedShapes, encoding: Encoding = "binary", shared: SharedExamples | None = None
) -> tuple[Ask, ...]:
    """Open Inference Protocol requests, one for each shape: in JSON, with the binary tensor extension, or of tensors in
    shared memory, which must be given then.

    All tensors of a dtype share one buffer of example values, so that many large shapes need little memory.
    """
    path = f"/v2/models/{model}/infer"
    if encoding == "shared-memory":
        if shared is None:
            raise TrafficError("tensors in shared memory need the memory")
        return tuple(Ask(shape.text, weight, path, *_shared(shape, shared)) for shape, weight in shapes)
    values = examples(shapes)
    encode = _binary if encoding == "binary" else _json
    return tuple(Ask(shape.text, weight, path, *encode(shape, values)) for shape, weight in shapes)


def file_asks(model: str, paths: Iterable[Path]) -> tuple[Ask, ...]:
    """One request for each file, its bytes as the body, to TorchServe's inference API, all of the same weight."""
    asks = []
    for path in paths:
        try:
            body = path.read_bytes()
        except OSError as error:
            raise TrafficError(f"{path}: {error.strerror}") from error
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        asks.append(Ask(path.name, 1.0, f"/predictions/{model}", {"Content-Type": kind}, (body,)))
    return tuple(asks)


def sequence(weights: Sequence[float], count: int, seed: int) -> list[int]:
    """``count`` indices into ``weights``, drawn by weight; the same for the same seed."""
    if not weights or min(weights) < 0 or sum(weights) <= 0:
        raise TrafficError("there is no shape or file with a weight above 0 to send")
    chances = np.asarray(weights, dtype=np.float64)
    return np.random.default_rng(seed).choice(len(chances), size=count, p=chances / chances.sum()).tolist()


def read_shapes(path: Path) -> list[tuple[Shape, float]]:
    """Weighted shapes from a file ``{"shapes": {SHAPE: WEIGHT}}``, the form that a learned plan has as well."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return [(Shape.parse(text), float(weight)) for text, weight in document["shapes"].items()]
    except OSError as error:
        raise TrafficError(f"{path}: {error.strerror}") from error
    except ShapeError as error:
        raise TrafficError(f"{path}: {error}") from error
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise TrafficError(f'{path}: expected {{"shapes": {{SHAPE: WEIGHT}}}}') from error


def of_batch(shapes: WeightedShapes, batch: int) -> list[tuple[Shape, float]]:
    """The shapes whose inputs all have ``batch`` as their first dim."""
    kept = [(shape, weight) for shape, weight in shapes if all(tensor.dims[:1] == (batch,) for tensor in shape)]
    if not kept:
        raise TrafficError(f"no shape of the plan has the batch size {batch}")
    return kept


def examples(shapes: WeightedShapes) -> dict[str, np.ndarray]:
    """Example values of each dtype, as many as the largest tensor has."""
    largest: dict[str, int] = {}
    for shape, _ in shapes:
        for tensor in shape:
            largest[tensor.dtype] = max(largest.get(tensor.dtype, 0), tensor.elements)
    return {dtype: example(Shape((TensorShape("x", (elements,), dtype),)))["x"] for dtype, elements in largest.items()}


def _binary(shape: Shape, values: Mapping[str, np.ndarray]) -> tuple[dict[str, str], tuple[bytes | memoryview, ...]]:
    inputs, parts = [], []
    for tensor in shape:
        raw = values[tensor.dtype][: tensor.elements].data.cast("B")
        inputs.append(_input(tensor) | {"parameters": {"binary_data_size": len(raw)}})
        parts.append(raw)
    head = orjson.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}})
    head += b" " * (-len(head) % ALIGNMENT)
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
    return headers, (head, *parts)


def _json(shape: Shape, values: Mapping[str, np.ndarray]) -> tuple[dict[str, str], tuple[bytes | memoryview, ...]]:
    for tensor in shape:
        if tensor.dtype in ("fp16", "bf16"):
            raise TrafficError(f"{shape}: the protocol's JSON form has no {tensor.dtype}; use the binary encoding")
    inputs = [_input(tensor) | {"data": values[tensor.dtype][: tensor.elements]} for tensor in shape]
    return {"Content-Type": "application/json"}, (orjson.dumps({"inputs": inputs}, option=orjson.OPT_SERIALIZE_NUMPY),)


def _shared(shape: Shape, shared: SharedExamples) -> tuple[dict[str, str], tuple[bytes | memoryview, ...]]:
    inputs = [
        _input(tensor)
        | {
            "parameters": {
                "shared_memory_region": shared.region,
                "shared_memory_offset": shared.offsets[tensor.dtype],
                "shared_memory_byte_size": tensor.elements * tensor.numpy_dtype.itemsize,
            }
        }
        for tensor in shape
    ]
    document = {"inputs": inputs, "parameters": {"binary_data_output": True}}
    return {"Content-Type": "application/json"}, (orjson.dumps(document),)


def _input(tensor: TensorShape) -> dict[str, object]:
    return {"name": tensor.name, "shape": list(tensor.dims), "datatype": DTYPES[tensor.dtype][1]}
