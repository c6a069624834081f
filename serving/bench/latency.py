"""Percentiles of measured times, in seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Summary:
    """How many times there were, and their percentiles, largest and mean, in seconds.

    A percentile is the nearest rank: a time that was really measured, never one between two. So P99.9 of fewer than
    1,000 times is the largest of them.
    """

    count: int
    p50: float
    p95: float
    p99: float
    p999: float
    max: float
    mean: float

    def to_json(self) -> dict[str, float]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping) -> Summary:  # type: ignore[type-arg]
        values = {name: float(document[name]) for name in ("p50", "p95", "p99", "p999", "max", "mean")}
        return cls(count=int(document["count"]), **values)


def summarize(seconds: Sequence[float]) -> Summary | None:
    """The summary of measured times, or None where there are none."""
    if not seconds:
        return None
    ordered = sorted(seconds)
    p50, p95, p99, p999 = (ordered[-(-len(ordered) * permille // 1000) - 1] for permille in (500, 950, 990, 999))
    return Summary(len(ordered), p50, p95, p99, p999, max=ordered[-1], mean=sum(ordered) / len(ordered))
