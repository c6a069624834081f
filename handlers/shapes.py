"""Concrete input shapes and their one canonical text form, ``images=8x3x224x224:fp16``.

A shape names the dims and dtype of every input of one execution; several inputs are joined by ``,`` in the order of
the model's declaration. A scalar input has no dims: ``threshold=:fp32``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

# Short names as PyTorch and MIOpen users write them, against NumPy's and the Open Inference Protocol's names
# (Open Inference Protocol v2, "Tensor Data Types"). NumPy has no bfloat16: such tensors travel as raw 16-bit words.
DTYPES: dict[str, tuple[str, str]] = {
    "bool": ("bool", "BOOL"),
    "uint8": ("uint8", "UINT8"),
    "uint16": ("uint16", "UINT16"),
    "uint32": ("uint32", "UINT32"),
    "uint64": ("uint64", "UINT64"),
    "int8": ("int8", "INT8"),
    "int16": ("int16", "INT16"),
    "int32": ("int32", "INT32"),
    "int64": ("int64", "INT64"),
    "fp16": ("float16", "FP16"),
    "bf16": ("uint16", "BF16"),
    "fp32": ("float32", "FP32"),
    "fp64": ("float64", "FP64"),
}
_ALIASES = {
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "float": "fp32",
    "float64": "fp64",
}
_TENSOR = re.compile(r"(?P<name>[A-Za-z_][\w.\-/]*)=(?P<dims>(?:\d+(?:x\d+)*)?):(?P<dtype>\w+)")


class ShapeError(ValueError):
    """A text that is not a shape, or dims that no tensor can have."""


def dtype_name(name: str) -> str:
    """The short name of a dtype (``fp32`` for ``float32``); raises ShapeError on one that no engine here takes."""
    short = _ALIASES.get(name.lower(), name.lower())
    if short not in DTYPES:
        raise ShapeError(f"unknown dtype {name!r}; allowed: {', '.join(DTYPES)}")
    return short


@dataclass(frozen=True, order=True)
class TensorShape:
    """The dims and dtype (short name) of one input."""

    name: str
    dims: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        if any(dim < 1 for dim in self.dims):
            raise ShapeError(f"input {self.name!r} has dims {self.dims}: every dim must be at least 1")

    def __str__(self) -> str:
        return f"{self.name}={'x'.join(map(str, self.dims))}:{self.dtype}"

    @property
    def elements(self) -> int:
        """The number of elements of the tensor."""
        count = 1
        for dim in self.dims:
            count *= dim
        return count

    @property
    def numpy_dtype(self) -> np.dtype:
        return np.dtype(DTYPES[self.dtype][0])


@dataclass(frozen=True, order=True)
class Shape:
    """All inputs of one execution."""

    tensors: tuple[TensorShape, ...]

    def __str__(self) -> str:
        return self.text

    @cached_property
    def text(self) -> str:
        """The canonical text form."""
        return ",".join(map(str, self.tensors))

    @cached_property
    def dims(self) -> tuple[tuple[int, ...], ...]:
        """The dims of every input, in order."""
        return tuple(tensor.dims for tensor in self.tensors)

    @classmethod
    def parse(cls, text: str) -> Shape:
        """Reads the canonical text form; raises ShapeError naming the part that is not of it."""
        tensors = []
        for part in text.split(","):
            match = _TENSOR.fullmatch(part.strip())
            if not match:
                raise ShapeError(f"{part.strip()!r} is not NAME=DIMxDIM...:DTYPE, as in images=8x3x224x224:fp16")
            dims = tuple(int(dim) for dim in match["dims"].split("x")) if match["dims"] else ()
            tensors.append(TensorShape(match["name"], dims, dtype_name(match["dtype"])))
        names = [tensor.name for tensor in tensors]
        if len(set(names)) != len(names):
            raise ShapeError(f"{text!r} names an input twice")
        return cls(tuple(tensors))

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray], dtypes: Mapping[str, str] | None = None) -> Shape:
        """The shape of concrete arrays; ``dtypes`` overrides the dtype of an input that NumPy cannot name (bf16)."""
        dtypes = dtypes or {}
        return cls(
            tuple(
                TensorShape(name, tuple(array.shape), dtypes.get(name) or dtype_name(array.dtype.name))
                for name, array in arrays.items()
            )
        )

    def __iter__(self) -> Iterator[TensorShape]:
        return iter(self.tensors)

    def __getitem__(self, name: str) -> TensorShape:
        for tensor in self.tensors:
            if tensor.name == name:
                return tensor
        raise KeyError(name)

    @property
    def elements(self) -> int:
        """The number of elements of all inputs together."""
        return sum(tensor.elements for tensor in self.tensors)
