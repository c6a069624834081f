"""The outputs of two engines for the same inputs, one against the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from handlers.engines.agreement import Agreement, measure, widened
from handlers.spec import TensorSpec


@dataclass(frozen=True)
class OutputCheck:
    """One output of one shape: how far it is from the reference's, and whether that is within the tolerance."""

    name: str
    agreement: Agreement
    close: bool

    def to_json(self) -> dict[str, object]:
        return {
            "output": self.name,
            "absolute": finite(self.agreement.absolute),
            "relative": finite(self.agreement.relative),
            "cosine": self.agreement.cosine,
            "close": self.close,
        }


def compare(
    expected: Mapping[str, np.ndarray],
    found: Mapping[str, np.ndarray],
    outputs: Iterable[TensorSpec],
    tolerance: float,
) -> tuple[OutputCheck, ...]:
    """Every output of ``outputs`` in turn; one that either side lacks is infinitely far."""
    checks = []
    for output in outputs:
        absent = np.empty(0, np.float32)
        mine, theirs = (widened(side.get(output.name, absent), output.dtype) for side in (expected, found))
        agreement = measure(mine, theirs)
        checks.append(OutputCheck(output.name, agreement, agreement.within(tolerance)))
    return tuple(checks)


def worst(checks: Sequence[OutputCheck]) -> OutputCheck:
    """The output that is farthest off."""
    return max(checks, key=lambda check: (not check.close, check.agreement.relative, -check.agreement.cosine))


def finite(value: float) -> float | None:
    """A number as JSON can hold it: None for what is infinitely far."""
    return value if np.isfinite(value) else None
