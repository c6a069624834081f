"""What a run must hold to before a rollout goes on."""

from __future__ import annotations

from serving.bench.result import BenchResult


def broken(result: BenchResult, max_p99: float | None, min_hit_rate: float | None) -> list[str]:
    """The limits that a run breaks, each as a sentence; none where it holds.

    ``max_p99`` is in seconds and for the first requests, which a cold server answers worst; ``min_hit_rate`` is a
    share from 0 to 1. What could not be measured does not hold.
    """
    found = []
    if max_p99 is not None:
        p99 = result.first_part.p99 if result.first_part else None
        if p99 is None:
            found.append(f"none of the first {result.first} requests was answered")
        elif p99 > max_p99:
            found.append(f"P99 of the first {result.first} requests is {p99:.4g} s, at most {max_p99:g} s is allowed")
    if min_hit_rate is not None:
        if result.hit_rate is None:
            found.append("the server does not count hits")
        elif result.hit_rate < min_hit_rate:
            found.append(f"the hit rate is {result.hit_rate:.4%}, at least {min_hit_rate:.4%} is wanted")
    return found
