"""The arithmetic of ``scale``: how far from linear, what stood in the way, and whether the goals are reached.

Pure functions, but for the plot's file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.records import Check

LINEAR, TAIL = 0.93, 1.3  # goals: the part of linear, and the P99 against that of one
SWEEP = 8 / 6  # a sweep by N may take this part of an N-th of one's: a sixth by 8
_SATURATED = 0.9  # the share of a resource from which on it is named as what stands in the way


@dataclass(frozen=True)
class Point:
    """What was measured with ``count`` server processes.

    ``busy`` is each accelerator's share of time at work, from 0 to 1. ``host`` is the share of all cores that was in
    use, ``server_cores`` and ``client_cores`` how many of them the processes used, ``busiest_client`` the share of a
    core that the busiest client process used. ``resident`` are bytes of the server, ``wire`` bytes a second that
    crossed the loopback both ways, ``sweep`` seconds of ``preheat warm``; None where there was no sweep.
    """

    count: int
    per_second: float
    p50: float
    p99: float
    busy: tuple[float, ...]
    host: float
    server_cores: float
    client_cores: float
    client: float
    resident: int
    accelerator_memory: int
    wire: float
    sweep: float | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def efficiency(one: Point, point: Point) -> float:
    """Requests a second as a part of ``count`` times those of one."""
    return point.per_second / (point.count * one.per_second)


def bottleneck(point: Point, loopback: float) -> str:
    """The first resource that was used up, with the measurement that shows it; ``loopback`` is what the loopback alone
    carries, in bytes a second.

    Accelerators come first: where they are at work all the time, nothing else stands in the way.
    """
    least = min(point.busy, default=0.0)
    shares = (
        (least, f"the accelerators: the least busy one {least:.0%} of the time"),
        (point.host, f"the host's processor: {point.host:.0%} of all cores in use"),
        (point.client, f"the clients: each uses {point.client:.0%} of its core"),
        (
            point.wire / loopback,
            f"the loopback: {point.wire / 1e9:.1f} GB/s of the {loopback / 1e9:.1f} that it carries alone",
        ),
    )
    for share, words in shares:
        if share >= _SATURATED:
            return words
    return f"none of these: at most {max(share for share, _ in shares):.0%} of any is in use"


def checks(points: Sequence[Point], loopback: float) -> list[Check]:
    """Whether the goals are reached at the largest count; the points are in the order of their counts, from 1."""
    one, most = points[0], points[-1]
    if most.count == 1:
        return []
    part, tail = efficiency(one, most), most.p99 / one.p99
    found = [
        Check(
            f"{most.count} at least {LINEAR} of linear, or what stands in the way",
            f"{part:.2f}; {bottleneck(most, loopback)}",
            part >= LINEAR,
        ),
        Check(f"P99 within {TAIL} times that of one", f"{tail:.2f}", tail <= TAIL),
    ]
    if one.sweep and most.sweep:
        wanted, took = SWEEP / most.count, most.sweep / one.sweep
        found.append(Check(f"a sweep at most {wanted:.2f} of one's", f"{took:.2f}", took <= wanted))
    return found


HEAD = [
    "",
    "requests/s",
    "of linear",
    "P50",
    "P99",
    "busy",
    "host",
    "server",
    "clients",
    "memory",
    "GPU memory",
    "sweep",
]


def rows(points: Sequence[Point]) -> list[list[str]]:
    """A row for each count."""
    one = points[0]
    return [
        [
            str(point.count),
            f"{point.per_second:,.0f}",
            f"{efficiency(one, point):.2f}",
            f"{point.p50 * 1e3:.2f} ms",
            f"{point.p99 * 1e3:.2f} ms",
            f"{min(point.busy):.0%} to {max(point.busy):.0%}" if point.busy else "-",
            f"{point.host:.0%}",
            f"{point.server_cores:.1f} cores",
            f"{point.client_cores:.1f} cores",
            f"{point.resident / 1e9:.2f} GB",
            f"{point.accelerator_memory / 1e9:.1f} GB" if point.accelerator_memory else "-",
            f"{point.sweep:.0f} s" if point.sweep else "-",
        ]
        for point in points
    ]


def plot(points: Sequence[Point], path: Path) -> None:
    """Requests a second against the count, beside what linear would be; and the P99."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    counts = [point.count for point in points]
    figure, (rate, tail) = pyplot.subplots(1, 2, figsize=(9, 3.6))
    rate.plot(counts, [count * points[0].per_second for count in counts], ":", color="#7a7f87", label="linear")
    rate.plot(counts, [point.per_second for point in points], "o-", color="#0b7a75", label="measured")
    rate.set(xlabel="server processes", ylabel="requests/s", ylim=(0, None), xticks=counts)
    rate.legend()
    for label, style, times in (("P50", "o-", [p.p50 for p in points]), ("P99", "s--", [p.p99 for p in points])):
        tail.plot(counts, [1e3 * seconds for seconds in times], style, label=label)
    tail.set(xlabel="server processes", ylabel="ms", ylim=(0, None), xticks=counts)
    tail.legend()
    for axes in (rate, tail):
        axes.grid(alpha=0.25)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


@dataclass(frozen=True)
class Look:
    """Processor seconds used so far, by everything on the host (``host``) and by the server, at ``time`` in seconds."""

    time: float
    host: float
    server: float


def steady(looks: Sequence[Look]) -> tuple[float, float]:
    """Cores that the host and the server used while the load was on: over the intervals in which the server used at
    least half of its most, so that the clients' own start is left out."""
    pairs = zip(looks, looks[1:], strict=False)
    used = [(b.time - a.time, b.host - a.host, b.server - a.server) for a, b in pairs if b.time > a.time]
    most = max((server / seconds for seconds, _, server in used), default=0.0)
    on = [interval for interval in used if interval[2] / interval[0] >= most / 2]
    seconds = sum(interval[0] for interval in on)
    if not seconds:
        return 0.0, 0.0
    return sum(interval[1] for interval in on) / seconds, sum(interval[2] for interval in on) / seconds


def mean_bytes(sizes: Sequence[int], weights: Sequence[float]) -> float:
    """Of a request's body, by the weights of the shapes."""
    return sum(size * weight for size, weight in zip(sizes, weights, strict=True)) / sum(weights)


def counts(most: int) -> list[int]:
    """1, 2, 4, ... and ``most`` itself."""
    doubled = [1 << power for power in range(most.bit_length()) if 1 << power < most]
    return [*doubled, most]
