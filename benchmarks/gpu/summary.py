"""From what was measured to checks, tables and a plot. Pure functions, but for the plot's file."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.records import Check
from handlers.engines.graph import EAGERLY

_PARTS = ("first", "steady")
_KEYS = ("p50", "p95", "p99", "max")


def median(found: Mapping[str, Any], part: str, number: str) -> float:
    """Of a number over the runs with graphs."""
    return statistics.median(run[part]["times"][number] for run in found["runs"])


def checks(name: str, found: Mapping[str, Any]) -> list[Check]:
    """What had to be reached, by medians over the runs; of what is not measured yet, nothing is said."""
    runs, proof, count = found["runs"], found["proof"], found["first_count"]
    steady50, steady99 = median(found, "steady", "p50"), median(found, "steady", "p99")
    first50, first99, slowest = (median(found, "first", key) for key in ("p50", "p99", "max"))
    hit = min(run["first"]["hit_rate"] or 0.0 for run in runs)
    own = statistics.median(run["own_shape"] for run in runs)
    graph = statistics.median(run["many"]["per_second"] for run in runs)
    busy = statistics.median(run["full"]["busy"] for run in runs)
    ready = statistics.median(run["ready"] for run in runs)
    replay = statistics.median(run["replay"] for run in runs)
    memory = max(run["graph_bytes"] for run in runs)
    eagerly = [note for note in proof["notes"] if f": {EAGERLY}" in note]
    as_they_are = [note for note in proof["notes"] if ": is captured as it is" in note]
    proven = f"{proof['proven']} of {found['shapes']}, {len(eagerly)} without a graph"
    if as_they_are:
        proven += f", {len(as_they_are)} captured as they are, since rewritten they are not that close"
    if "handler" in found:
        proven += f"; of two inputs they differ by {found['handler']['spread']:.2g}"
    listed = [
        ("hit rate of the first {count:,} requests 1.0", f"{hit:.3f}", hit == 1.0),
        (
            "their P99 at most 1.1 times the steady P99",
            f"{ms(first99)} / {ms(steady99)} = {first99 / steady99:.2f}",
            first99 <= 1.1 * steady99,
        ),
        (
            "none of them over 3 times their P50",
            f"{ms(slowest)} / {ms(first50)} = {slowest / first50:.1f}; against its own shape's median {own:.1f}",
            slowest <= 3 * first50,
        ),
        ("steady P50 at most 2.0 ms through REST", ms(steady50), steady50 <= 2e-3),
        ("steady P99 at most 4.0 ms through REST", ms(steady99), steady99 <= 4e-3),
        ("GPU busy over 85 % with batch 8", f"{busy:.0f} %", busy > 85),
        ("graphs within 2.5 GB", f"{memory / 1e9:.2f} GB", memory <= 2.5e9),
        (
            "every shape proven, outputs equal to eager within 1e-3",
            proven,
            proof["proven"] == found["shapes"] and not eagerly,
        ),
    ]
    memory_first = found.get("shared_first")
    shared = _medians(memory_first or [run["shared"]["steady"] for run in runs])
    listed += [
        ("in shared memory: P99 at most 4.0 ms", ms(shared["p99"]), shared["p99"] <= 4e-3),
        (
            f"in shared memory: none of the {'first' if memory_first else 'next'} {{count:,}} over 3 times their P50",
            f"{ms(shared['max'])} / {ms(shared['p50'])} = {shared['max'] / shared['p50']:.1f}",
            shared["max"] <= 3 * shared["p50"],
        ),
    ]
    if "eager" in found:
        eager = statistics.median(many["per_second"] for many in found["eager"]["many"])
        listed.append(
            (
                "32 clients get at least 4 times the requests/s of the eager engine",
                f"{graph:,.0f}/s against {eager:,.0f}/s = {graph / eager:.1f}",
                graph >= 4 * eager,
            )
        )
    if name == "resnet50":
        listed.append(
            (f"{found['shapes']} shapes ready under 15 s", f"{ready:.1f} s, {replay:.1f} s of it replay", ready < 15)
        )
    return [Check(f"{name}: {wanted.format(count=count)}", seen, holds) for wanted, seen, holds in listed]


def _medians(runs: list[Mapping[str, Any]]) -> dict[str, float]:
    return {key: statistics.median(run["times"][key] for run in runs) for key in _KEYS}


def rows(name: str, found: Mapping[str, Any]) -> list[list[str]]:
    """The table of times: medians over the runs."""

    def row(label: str, runs: list[Mapping[str, Any]]) -> list[str]:
        times = [ms(seconds) for seconds in _medians(runs).values()]
        return [f"{name}, {label}", *times, f"{statistics.median(run['per_second'] for run in runs):,.0f}"]

    graphs, eager, handler = found["runs"], found.get("eager"), found.get("handler")
    listed = [row(f"graphs, {part}", [run[part] for run in graphs]) for part in (*_PARTS, "many", "full")]
    if "shared_first" in found:
        listed.append(row("graphs, first, in shared memory", found["shared_first"]))
    listed += [
        row(f"graphs, {part}, in shared memory", [run["shared"][part] for run in graphs])
        for part in ("steady", "many", "full")
    ]
    if eager:
        listed += [row(f"eager engine, {part}", [eager[part]]) for part in _PARTS]
        listed.append(row("eager engine, many", eager["many"]))
    if handler:
        listed += [row(f"eager handler, {part}", [handler[part]]) for part in _PARTS]
    return listed


def paused(runs: list[Mapping[str, Any]]) -> str:
    """How long the machine itself keeps processes from running."""
    longest = max(run["pauses"]["longest"] for run in runs)
    often = statistics.median(run["pauses"]["per_second"] for run in runs)
    return f"{ms(longest)} at most, {often:.1f} a second over 1 ms"


def plot(models: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """How long requests take, from the quickest to the slowest: the first ones and the steady ones of each server."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(models), figsize=(6 * len(models), 4), squeeze=False, sharey=True)
    for axis, (name, found) in zip(axes[0], models.items(), strict=True):
        middle = sorted(found["runs"], key=lambda run: run["first"]["times"]["max"])[len(found["runs"]) // 2]
        for label, colour, runs in (
            ("graphs", "#0b7a75", middle),
            ("eager engine", "#d9822b", found.get("eager")),
            ("eager handler, no HTTP", "#7a7f87", found.get("handler")),
        ):
            if runs is None:
                continue
            for part, style in (("first", "-"), ("steady", ":")):
                curve = runs[part]["curve"]
                shares = [100 * index / (len(curve) - 1) for index in range(len(curve))]
                times = [1e3 * seconds for seconds in curve]
                axis.plot(shares, times, style, color=colour, label=f"{label}, {part}")
        axis.set(yscale="log", xlabel="% of requests", title=name)
        axis.grid(True, which="both", alpha=0.25)
    axes[0][0].set_ylabel("ms")
    axes[0][0].legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def ms(seconds: float) -> str:
    """A time as the tables show it."""
    return f"{seconds * 1e3:.2f} ms"
