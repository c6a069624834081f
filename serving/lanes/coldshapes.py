"""The shapes outside the warm set that were asked for: how often, and when first and last."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from serving.lanes.warmset import Dims

LIMIT = 4096  # distinct shapes; clients choose them, so there must be a bound


@dataclass
class ColdShape:
    """One shape. ``first`` and ``last`` are seconds since the epoch."""

    count: int
    first: float
    last: float


class ColdShapes:
    """Of one model. What comes after ``LIMIT`` distinct shapes is counted only if it is one of these."""

    def __init__(self) -> None:
        self._seen: dict[Dims, ColdShape] = {}

    def add(self, dims: Dims) -> None:
        now = time.time()
        seen = self._seen.get(dims)
        if seen is not None:
            seen.count += 1
            seen.last = now
        elif len(self._seen) < LIMIT:
            self._seen[dims] = ColdShape(1, now, now)

    def count(self, dims: Dims) -> int:
        """How often a shape was asked for; 0 for one that is not remembered."""
        seen = self._seen.get(dims)
        return seen.count if seen is not None else 0

    def __iter__(self) -> Iterator[tuple[Dims, ColdShape]]:
        """In the order of their first request."""
        return iter(self._seen.items())
