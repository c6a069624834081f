"""Where the time of an ONNX model goes, provider by provider: reading the file, optimising, executing, copying.

Times are of two kinds that do not know of each other: this process's own clock around loading, copying and executing,
and ONNX Runtime's profile of what happened inside. Each part comes from the one that can see it; what neither explains
is shown as the rest, and where that is over 3 % of the total the breakdown says that it does not hold.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from handlers.engines.binding import Bound, Times, device_of
from handlers.engines.engine import example
from handlers.shapes import Shape
from warmup.sessions import CannotOpen, Wanted, open_for, profiled, run, scratch

UNEXPLAINED = 0.03  # of the total
_COPIES = ("MemcpyToHost", "MemcpyFromHost")  # nodes that ONNX Runtime adds between providers
_MICRO = 1e-6
_COPY_BOUND = 0.5  # of an execution's time
Event = Mapping[str, Any]


@dataclass(frozen=True)
class Parts:
    """Seconds, which add up to ``total``: reading the file, optimising the graph and making its kernels (MIGraphX:
    compiling it), executing nodes, copying between host and device, and what nothing explains."""

    parse: float
    optimise: float
    execute: float
    copy: float
    rest: float

    @property
    def total(self) -> float:
        return self.parse + self.optimise + self.execute + self.copy + self.rest

    @property
    def holds(self) -> bool:
        """Whether the parts explain the total."""
        return abs(self.rest) <= UNEXPLAINED * self.total

    def __add__(self, other: Parts) -> Parts:
        return Parts(*(mine + theirs for mine, theirs in zip(self._values(), other._values(), strict=True)))

    def to_json(self) -> dict[str, object]:
        named = dict(zip(("parse", "optimise", "execute", "copy", "rest"), self._values(), strict=True))
        return {**named, "total": self.total, "holds": self.holds}

    def _values(self) -> tuple[float, ...]:
        return self.parse, self.optimise, self.execute, self.copy, self.rest


@dataclass(frozen=True)
class Breakdown:
    """One provider at one shape: ``first`` is from the file to the first outputs, ``steady`` the one of the further
    executions whose total was their median."""

    provider: str
    shape: Shape
    first: Parts
    steady: Parts

    def to_json(self) -> dict[str, object]:
        return {
            "provider": self.provider,
            "shape": self.shape.text,
            "first": self.first.to_json(),
            "steady": self.steady.to_json(),
        }


def of_loading(events: Iterable[Event], seconds: float) -> Parts:
    """The parts of making a session, which took ``seconds`` by our clock."""
    parse = optimise = 0.0
    for event in events:
        if event["name"].startswith("model_loading"):
            parse += event["dur"] * _MICRO
        elif event["name"] == "session_initialization":
            optimise += event["dur"] * _MICRO
    return Parts(parse, optimise, 0.0, 0.0, seconds - parse - optimise)


def of_executions(events: Sequence[Event], runs: Sequence[tuple[float, Times | None]]) -> list[Parts]:
    """The parts of every execution: ``runs`` has its seconds by our clock and, on a device, what the copies took."""
    models = sorted((event for event in events if event["name"] == "model_run"), key=lambda event: event["ts"])
    copies = [e for e in events if e.get("cat") == "Node" and e.get("args", {}).get("op_name") in _COPIES]
    if len(models) != len(runs):
        raise CannotOpen(f"ONNX Runtime's profile has {len(models)} executions, {len(runs)} were made")
    found = []
    for model, (seconds, times) in zip(models, runs, strict=True):
        start, end = model["ts"], model["ts"] + model["dur"]
        between = sum(e["dur"] for e in copies if start <= e["ts"] < end) * _MICRO
        copy = between + (times.copy_in + times.copy_out if times else 0.0)
        execute = model["dur"] * _MICRO - between
        found.append(Parts(0.0, 0.0, execute, copy, seconds - execute - copy))
    return found


def measure(path: Path, shape: Shape, wanted: Wanted, repeats: int) -> Breakdown:
    """Loads the graph for one shape, executes it once and then ``repeats`` times. Raises CannotOpen.

    The profile costs a few microseconds for each node, in all parts alike.
    """
    inputs = example(shape)
    with scratch() as folder:
        started = time.perf_counter()
        session = open_for(path, shape, wanted, Path(folder) / "profile")
        loaded = time.perf_counter() - started
        names = [node.name for node in session.get_outputs()]
        device = device_of(wanted.provider, wanted.options)
        bound = Bound(session, device, inputs, names) if device else None
        runs = [_run(session, bound, inputs, names) for _ in range(1 + repeats)]
        events = profiled(session)
    executions = of_executions(events, runs)
    further = sorted(executions[1:], key=lambda parts: parts.total)
    return Breakdown(wanted.provider, shape, of_loading(events, loaded) + executions[0], further[len(further) // 2])


def verdict(rows: Sequence[Breakdown]) -> str:
    """Which provider to serve a shape on, and why, in one sentence; ``rows`` are of one shape."""
    best = min(rows, key=lambda row: row.steady.total)
    others = [row for row in rows if row is not best]
    if not others:
        return f"only {best.provider} was measured: there is nothing to choose"
    if best.provider != "cpu":
        against = next((row for row in others if row.provider == "cpu"), others[0])
        return (
            f"{best.provider} wins: {against.steady.total / best.steady.total:.2f} times as fast as {against.provider}"
        )
    rival = min(others, key=lambda row: row.steady.total)
    ratio = rival.steady.total / best.steady.total
    if rival.steady.copy > _COPY_BOUND * rival.steady.total:
        why = f"{rival.provider} spends {rival.steady.copy / rival.steady.total:.0%} of its time copying"
    elif rival.steady.execute - best.steady.execute > 0:
        why = f"{rival.provider} executes no faster: the model is too small to fill it"
    else:
        why = f"what {rival.provider} gains in execution, copies take away"
    return f"the CPU wins: {ratio:.2f} times as fast as {rival.provider}, for {why}"


def _run(
    session: onnxruntime.InferenceSession,
    bound: Bound | None,
    inputs: Mapping[str, np.ndarray],
    names: Sequence[str],
) -> tuple[float, Times | None]:
    started = time.perf_counter()
    times = None
    if bound is not None:
        _, times = bound.run(inputs)
    else:
        run(session, names, inputs)
    return time.perf_counter() - started, times
