"""Which batch runs next. Pure functions over measured times: no clock, no queue, no thread.

A batch may only have a size of the plan, so ``n`` waiting rows are covered by planned sizes, some of them padded. What
is cheapest follows from the measured seconds of each size and from nothing else: where a batch of 4 costs less than
1 + 1 + 1, three rows run as a padded 4; where batching wins nothing, they run one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

Times = tuple[tuple[int, float], ...]  # (batch size, seconds), ascending by size
_MERGE_GAIN = 0.95  # a joint padded run must beat separate runs by 5 %, since the times are estimates


def frozen_times(seconds: Mapping[int, float]) -> Times:
    """The times of a group in the hashable form that the functions here take.

    A larger batch is never taken to be faster than a smaller one: that is noise, and padding for its sake a waste.
    """
    times: list[tuple[int, float]] = []
    for size, taken in sorted(seconds.items()):
        times.append((size, max(taken, times[-1][1]) if times else taken))
    return tuple(times)


@lru_cache(maxsize=65536)
def cover(rows: int, times: Times) -> tuple[float, int]:
    """The cheapest way to run ``rows`` rows in planned sizes: its total seconds, and the largest size in it."""
    largest = times[-1][0]
    whole = max(0, rows // largest - 1)  # far above the largest size, the best rate per row decides
    if whole:
        rate_size, rate_seconds = min(times, key=lambda item: item[1] / item[0])
        runs = (whole * largest) // rate_size
        seconds, size = cover(rows - runs * rate_size, times)
        return seconds + runs * rate_seconds, max(size, rate_size)
    best = [(0.0, 0)]
    for count in range(1, rows + 1):
        options = []
        for size, seconds in times:
            rest_seconds, rest_size = best[max(0, count - size)]
            options.append((seconds + rest_seconds, max(size, rest_size)))
        best.append(min(options))
    return best[rows]


def batch_size(rows: int, head: int, times: Times) -> int:
    """The planned size to run now, with ``rows`` rows waiting of which the oldest request has ``head``."""
    size = cover(rows, times)[1]
    if size >= head:
        return size
    return min((seconds, batch) for batch, seconds in times if batch >= head)[1]


def patience(rows: int, times: Times, arrivals: float, left: float) -> float:
    """How many seconds to wait for one more row before running ``rows`` rows; 0 means run now.

    ``arrivals`` are rows per second of late, ``left`` the seconds that the oldest request may still be held back. To
    wait costs every waiting row the expected gap; it gains what a joint run saves over a later run of its own.
    """
    if rows >= times[-1][0] or arrivals <= 0 or left <= 0:
        return 0.0
    gap = 1.0 / arrivals
    saving = cover(rows, times)[0] + cover(1, times)[0] - cover(rows + 1, times)[0]
    if gap > left or saving <= rows * gap:
        return 0.0
    return min(gap, left)


@dataclass(frozen=True)
class Waiting:
    """The waiting rows of one group: how many, and the groups (by index) that can hold them when padded."""

    rows: int
    times: Times
    holders: tuple[int, ...] = ()


@dataclass(frozen=True)
class Joint:
    """A run of two groups together at the dims of the group ``holder``; the head's rows go first, then what fits."""

    holder: int
    guest: int


def joint_run(head: int, queues: Sequence[Waiting]) -> Joint | None:
    """The other group that is best run together with the group ``head`` (index), or None where apart is cheaper."""
    best: tuple[float, Joint] | None = None
    for other, queue in enumerate(queues):
        if other == head or not queue.rows:
            continue
        for holder, guest in ((head, other), (other, head)):
            if holder not in queues[guest].holders:
                continue
            largest = queues[holder].times[-1][0]
            first = min(queues[head].rows, largest)
            second = min(queue.rows, largest - first)
            if not second:
                continue
            together = cover(first + second, queues[holder].times)[0]
            apart = cover(first, queues[head].times)[0] + cover(second, queue.times)[0]
            if together < _MERGE_GAIN * apart and (best is None or together / apart < best[0]):
                best = (together / apart, Joint(holder, guest))
    return best[1] if best else None
