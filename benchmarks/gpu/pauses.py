"""How long the machine keeps a process from running that wants nothing but to run: no server answers in that time."""

from __future__ import annotations

import time

_SECONDS = 2.0
_LONG = 1e-3  # seconds


def pauses() -> dict[str, float]:
    """Of a process that only looks at the clock: its longest pause in seconds, and how many a second were over 1 ms."""
    longest, many = 0.0, 0
    start = before = time.perf_counter()
    while before - start < _SECONDS:
        now = time.perf_counter()
        longest = max(longest, now - before)
        many += now - before > _LONG
        before = now
    return {"longest": longest, "per_second": many / _SECONDS}
