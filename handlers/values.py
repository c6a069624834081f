"""What a handler may demand of the values in a tensor."""

from __future__ import annotations

import numpy as np

from handlers.errors import InvalidInput
from handlers.handler import Tensors


def require_finite(inputs: Tensors) -> None:
    """Raises InvalidInput naming the input that holds NaN or an infinity."""
    for name, array in inputs.items():
        if array.dtype.kind != "f":
            continue
        # A sum is several times cheaper than looking at every element, and is finite if they are, short of overflow.
        with np.errstate(over="ignore", invalid="ignore"):
            finite = np.isfinite(array.sum()) or np.isfinite(array).all()
        if not finite:
            raise InvalidInput(f"input {name!r} holds NaN or infinite values, which this model does not take")
