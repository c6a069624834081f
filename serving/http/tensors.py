"""One tensor of an inference request, from JSON or from raw bytes to an array, without a Python object per element.

JSON numbers go from the text to an array in C (simdjson's flattened buffers); raw bytes become a view of the body.
"""

from __future__ import annotations

import math
import threading
from typing import Any

import msgspec
import numpy as np
import simdjson

from handlers.errors import InvalidInput
from handlers.shapes import DTYPES
from handlers.spec import TensorSpec

# A parser keeps the memory of the largest document it has seen; one that has seen more than this is not kept.
_KEPT_BYTES = 4 << 20
# simdjson stores the length of an array in 24 bits and saturates (simdjson, "tape format").
_LONGEST_COUNTED = (1 << 24) - 1
_NUMPY = {short: np.dtype(numpy_name) for short, (numpy_name, _) in DTYPES.items()}
# simdjson's name of its flattened buffer, and NumPy's of that buffer's elements, by kind of dtype
_BUFFERS = {"f": ("d", np.dtype(np.float64)), "i": ("i", np.dtype(np.int64)), "u": ("u", np.dtype(np.uint64))}
# Integers go simdjson's way, which tells 1 from 1.0.
_flat = {short: msgspec.json.Decoder(list[float]) for short, dtype in _NUMPY.items() if dtype.kind == "f"}
_LARGEST = {_NUMPY[short]: float(np.finfo(_NUMPY[short]).max) for short in _flat}
_JSON_ELEMENTS = {"f": "numbers", "i": "integers", "u": "integers of 0 or more", "b": "true or false"}


class _Parsers(threading.local):
    """A parser for each thread, since a document lives in the memory of the parser that read it."""

    def __init__(self) -> None:
        self.parser = simdjson.Parser()


_parsers = _Parsers()


def parse(text: bytes | memoryview) -> Any:
    """A JSON document as simdjson's proxies, which must be dropped before this thread parses the next one.

    Raises InvalidInput where the text is not JSON.
    """
    try:
        return _parse(text)
    except (ValueError, RuntimeError) as error:
        raise InvalidInput(f"not JSON: {error}") from None


def _parse(text: bytes | memoryview) -> Any:
    parser = _parsers.parser
    if len(text) > _KEPT_BYTES:
        parser = simdjson.Parser()
    try:
        return parser.parse(text)
    except RuntimeError:
        # Somebody, a kept traceback say, still holds the previous document (or the text is too deep: raises again).
        _parsers.parser = simdjson.Parser()
        return _parsers.parser.parse(text)


def from_text(text: bytes, spec: TensorSpec, dims: tuple[int, ...]) -> np.ndarray:
    """As ``from_json``, from the text of a short array: a typed list is then quicker than simdjson's buffers."""
    decoder = _flat.get(spec.dtype) if text.count(b"[") == 1 else None
    if decoder is not None:
        array = _from_list(decoder, text, _NUMPY[spec.dtype], dims)
        if array is not None:
            return array
    return from_json(parse(text), spec, dims)


def _from_list(
    decoder: msgspec.json.Decoder[list[float]], text: bytes, dtype: np.dtype, dims: tuple[int, ...]
) -> np.ndarray | None:
    """None where anything is unusual; ``from_json`` then says what."""
    try:
        values = decoder.decode(text)
    except msgspec.DecodeError:
        return None
    limit = _LARGEST[dtype]
    if len(values) != math.prod(dims) or not values or max(values) > limit or min(values) < -limit:
        return None
    return np.array(values, dtype).reshape(dims)


def from_json(data: Any, spec: TensorSpec, dims: tuple[int, ...]) -> np.ndarray:
    """The array of ``dims`` from a JSON array (a simdjson proxy), flat in row-major order or nested as ``dims`` say.

    Raises InvalidInput on elements of another kind or out of the dtype's range, on another number of elements, and on
    nesting that contradicts ``dims``. BF16 has no JSON form (tritonclient refuses it likewise).
    """
    if spec.dtype == "bf16":
        raise InvalidInput(f"{_data(spec)}: BF16 cannot be sent as JSON; send it as binary data (binary_data_size)")
    if not isinstance(data, simdjson.Array):
        raise InvalidInput(f"{_data(spec)} must be an array of {_JSON_ELEMENTS[_NUMPY[spec.dtype].kind]}")
    flat = _elements(data, spec)
    count = math.prod(dims)
    if flat.size != count:
        raise InvalidInput(f"{_data(spec)} has {flat.size} elements, but shape {list(dims)} has {count}")
    _check_nesting(data, dims, count, spec)
    return flat.reshape(dims)


def from_bytes(body: bytes | memoryview, offset: int, spec: TensorSpec, dims: tuple[int, ...]) -> np.ndarray:
    """The array of ``dims`` whose bytes (little-endian, row-major) begin at ``offset`` and were checked to be there.

    A read-only view of ``body`` where the offset is a multiple of the element's size, else an aligned copy.
    Raises InvalidInput on a BOOL other than 0 or 1.
    """
    dtype = _NUMPY[spec.dtype]
    count = math.prod(dims)
    if dtype.kind == "b":
        raw = np.frombuffer(body, np.uint8, count, offset)
        if raw.max() > 1:
            raise InvalidInput(f"input {spec.name!r}: a BOOL in binary data must be 0 or 1, found {raw.max()}")
        return raw.view(dtype).reshape(dims)
    array = np.frombuffer(body, dtype, count, offset).reshape(dims)
    return array if array.flags.aligned else array.copy()


def over(memory: memoryview, spec: TensorSpec, dims: tuple[int, ...]) -> np.ndarray:
    """The array of ``dims`` that lies in ``memory``, which is aligned for it; nothing of it is looked at."""
    return np.frombuffer(memory, _NUMPY[spec.dtype]).reshape(dims)


def itemsize(spec: TensorSpec) -> int:
    """Bytes of one element in binary data."""
    return _NUMPY[spec.dtype].itemsize


def _data(spec: TensorSpec) -> str:
    return f"input {spec.name!r}: data"


def _elements(data: Any, spec: TensorSpec) -> np.ndarray:
    dtype = _NUMPY[spec.dtype]
    if dtype.kind == "b":
        return _booleans(data, spec)
    buffer, wide_dtype = _BUFFERS[dtype.kind]
    try:
        wide = np.frombuffer(data.as_buffer(of_type=buffer), wide_dtype)
    except (TypeError, ValueError, RuntimeError):
        raise InvalidInput(
            f"{_data(spec)} must hold {_JSON_ELEMENTS[dtype.kind]} only, as {DTYPES[spec.dtype][1]}"
        ) from None
    if dtype == wide_dtype:
        return wide
    if dtype.kind == "f":
        try:
            return _narrowed(wide, dtype)
        except FloatingPointError:
            limit = np.finfo(dtype).max
            raise InvalidInput(f"{_data(spec)} has numbers beyond {DTYPES[spec.dtype][1]}, up to {limit:.6g}") from None
    limits = np.iinfo(dtype)
    if wide.size and (wide.min() < limits.min or wide.max() > limits.max):
        raise InvalidInput(f"{_data(spec)} has integers beyond {DTYPES[spec.dtype][1]}, {limits.min} to {limits.max}")
    return wide.astype(dtype)


@np.errstate(over="raise")
def _narrowed(wide: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return wide.astype(dtype)


def _booleans(data: Any, spec: TensorSpec) -> np.ndarray:
    try:
        array = np.asarray(data.as_list())
    except ValueError:  # NumPy's word for a ragged list
        raise InvalidInput(f"{_data(spec)} is nested unevenly") from None
    if array.size and array.dtype != np.bool_:
        raise InvalidInput(f"{_data(spec)} must hold true or false only, as BOOL")
    return array.reshape(-1)


def _check_nesting(data: Any, dims: tuple[int, ...], count: int, spec: TensorSpec) -> None:
    """Looks at rows, never at elements: a flat array is one row."""
    if isinstance(data[0], simdjson.Array):
        if not _nested_as(data, dims):
            raise InvalidInput(
                f"{_data(spec)} is nested otherwise than shape {list(dims)} says; flat data is allowed too"
            )
    elif len(data) != min(count, _LONGEST_COUNTED):
        raise InvalidInput(
            f"{_data(spec)} mixes elements and arrays; allowed: flat, or nested as shape {list(dims)} says"
        )


def _nested_as(data: Any, dims: tuple[int, ...]) -> bool:
    if not dims or len(data) != min(dims[0], _LONGEST_COUNTED):
        return False
    if len(dims) == 1:
        return not isinstance(data[0], simdjson.Array)
    return all(isinstance(row, simdjson.Array) and _nested_as(row, dims[1:]) for row in data)
