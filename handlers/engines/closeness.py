"""Whether two runs of one model gave the same outputs, as far as their precision can tell."""

from __future__ import annotations

from collections.abc import Sequence

import torch

# The largest allowed difference, relative to the largest value of the tensor: a few units in the last place, since
# another algorithm may add in another order.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def distance(expected: torch.Tensor, found: torch.Tensor) -> float:
    """The largest difference relative to the largest finite value of ``expected``; infinite where NaN or infinity is in
    one of them only, or where whole numbers differ."""
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return float("inf")
    if not expected.is_floating_point():
        return 0.0 if torch.equal(expected, found) else float("inf")
    wide, other = expected.double(), found.double()
    finite = torch.isfinite(wide)
    if not torch.equal(finite, torch.isfinite(other)):
        return float("inf")
    special = ~finite
    if not torch.equal(wide[special].nan_to_num(), other[special].nan_to_num()):
        return float("inf")
    if not bool(finite.any()):
        return 0.0
    scale = wide[finite].abs().max().item()
    gap = (wide[finite] - other[finite]).abs().max().item()
    return 0.0 if gap == 0 else gap / scale if scale else float("inf")


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
