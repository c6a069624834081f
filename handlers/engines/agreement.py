"""How far two arrays that should be the same are from each other, and how far they may be.

Errors are relative to the largest value of the tensor, not to each element: next to a large value, a small one carries
the rounding of the large one, and its own relative error says nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# The largest relative error of two runs of the same operations, by precision: a few units in the last place, since
# another algorithm may add in another order.
ROUNDING = {"fp64": 1e-9, "fp32": 1e-4, "fp16": 1e-3, "bf16": 8e-3}
# The same for two engines: one fuses what the other does not, and a whole network lets the difference grow.
ENGINES = {precision: 10 * tolerance for precision, tolerance in ROUNDING.items()}


@dataclass(frozen=True)
class Agreement:
    """The largest difference of two arrays, the same relative to the largest finite value of the first, and the cosine
    of the angle between them. The differences are infinite, and the cosine is 0, where dims or dtype differ, where NaN
    or infinity is in one of them only, or where whole numbers differ."""

    absolute: float
    relative: float
    cosine: float

    def within(self, tolerance: float) -> bool:
        """Whether the relative error is at most ``tolerance`` and the cosine at least 1 less that."""
        return self.relative <= tolerance and self.cosine >= 1 - tolerance


SAME = Agreement(0.0, 0.0, 1.0)
_APART = Agreement(float("inf"), float("inf"), 0.0)


def measure(expected: np.ndarray, found: np.ndarray) -> Agreement:
    """How far ``found`` is from ``expected``. bf16 must come as floats: see ``widened``."""
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return _APART
    if expected.dtype.kind not in "fc":
        return SAME if np.array_equal(expected, found) else _APART
    wide, other = expected.astype(np.float64).ravel(), found.astype(np.float64).ravel()
    finite = np.isfinite(wide)
    if not np.array_equal(finite, np.isfinite(other)):
        return _APART
    if not np.array_equal(wide[~finite], other[~finite], equal_nan=True):
        return _APART
    wide, other = wide[finite], other[finite]
    if not wide.size:
        return SAME
    gap, scale = float(np.abs(wide - other).max()), float(np.abs(wide).max())
    if gap == 0:
        return SAME
    return Agreement(gap, gap / scale if scale else float("inf"), _cosine(wide, other))


def widened(array: np.ndarray, dtype: str) -> np.ndarray:
    """The array itself, or fp32 numbers where it holds the 16-bit words of bf16."""
    if dtype != "bf16" or array.dtype != np.uint16:
        return array
    return (array.astype(np.uint32) << 16).view(np.float32)


def _cosine(left: np.ndarray, right: np.ndarray) -> float:
    lengths = float(np.linalg.norm(left)) * float(np.linalg.norm(right))
    return min(1.0, float(left @ right) / lengths) if lengths else 0.0
