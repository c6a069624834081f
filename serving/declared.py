"""What a handler makes of a request is checked against what its model takes before it may wait with others."""

from __future__ import annotations

import numpy as np

from handlers.handler import Tensors
from handlers.shapes import Shape
from handlers.spec import ModelSpec
from warmup.plan import mismatch


class HandlerFault(Exception):
    """A handler made tensors that its model does not take; the client is not to blame (HTTP 500)."""


def as_declared(spec: ModelSpec, inputs: Tensors) -> Tensors:
    """A handler's tensors in the model's order, row by row; raises HandlerFault on what the model does not take."""
    missing = {tensor.name for tensor in spec.inputs} ^ inputs.keys()
    if missing:
        raise HandlerFault(f"the handler of {spec.name!r} and its model disagree on {', '.join(sorted(missing))}")
    ordered = {tensor.name: _row_by_row(inputs[tensor.name]) for tensor in spec.inputs}
    dtypes = {tensor.name: tensor.dtype for tensor in spec.inputs if tensor.dtype == "bf16"}
    problem = mismatch(spec, Shape.of(ordered, dtypes))
    if problem:
        raise HandlerFault(f"the handler of {spec.name!r}: {problem}")
    return ordered


def _row_by_row(array: np.ndarray) -> np.ndarray:
    """The array as a new one of its dims would lie in memory; a copy only where it does not.

    NumPy calls an array contiguous whatever the stride of an axis of size 1 is, and ``array[None]`` gives it 0. A model
    that is compiled looks at strides too: it would be compiled again, in the first request.
    """
    return np.ascontiguousarray(array).reshape(-1).reshape(array.shape)
