"""Whether two runs of one PyTorch model gave the same outputs, as far as their precision can tell."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from handlers.engines.agreement import ROUNDING, measure

TOLERANCE = {
    torch.float64: ROUNDING["fp64"],
    torch.float32: ROUNDING["fp32"],
    torch.float16: ROUNDING["fp16"],
    torch.bfloat16: ROUNDING["bf16"],
}


def distance(expected: torch.Tensor, found: torch.Tensor) -> float:
    """The largest difference relative to the largest finite value of ``expected``; infinite where NaN or infinity is in
    one of them only, or where whole numbers differ."""
    if expected.dtype != found.dtype:
        return float("inf")
    return measure(_array(expected), _array(found)).relative


def difference(expected: Sequence[torch.Tensor], found: Sequence[torch.Tensor], precision: torch.dtype) -> str:
    """What is wrong with ``found``, empty where all is within the tolerance of ``precision``."""
    if len(expected) != len(found):
        return f"{len(found)} outputs instead of {len(expected)}"
    allowed = TOLERANCE[precision]
    for index, (mine, theirs) in enumerate(zip(expected, found, strict=True)):
        gap = distance(mine, theirs)
        if not gap <= allowed:
            return f"output {index} differs from eager execution by {gap:.2g}, allowed is {allowed:g}"
    return ""


def telling(outputs: Sequence[torch.Tensor]) -> bool:
    """Whether outputs have different values: where all are the same (zero, because a signal has vanished on its way, or
    NaN), another computation may give them too."""
    return any(tensor.numel() > 0 and not tensor.isclose(tensor.flatten()[0], 0, 0, True).all() for tensor in outputs)


def _array(tensor: torch.Tensor) -> np.ndarray:
    """On the host, with floats that NumPy has."""
    return (tensor.double() if tensor.is_floating_point() else tensor).cpu().numpy()
