"""The convolutions that a model asks for, shape by shape, and over a whole plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from handlers.shapes import Shape
from warmup.miopen.problem import ConvProblem


class TraceError(Exception):
    """A model that cannot be followed without running it; the message names the model, the shape and the reason."""


@dataclass(frozen=True)
class ShapeTrace:
    """One shape: how often each problem is asked of MIOpen, in the order of first use.

    ``elsewhere`` counts, by reason, the convolutions that the framework runs without MIOpen.
    """

    shape: Shape
    calls: Mapping[ConvProblem, int]
    elsewhere: Mapping[str, int] = field(default_factory=dict)

    @property
    def executions(self) -> int:
        """Convolutions that one run hands to MIOpen."""
        return sum(self.calls.values())


@dataclass(frozen=True)
class PlanTrace:
    """The traces of several shapes of one model. Tuning costs per distinct problem, not per shape."""

    shapes: tuple[ShapeTrace, ...]

    def __iter__(self) -> Iterator[ShapeTrace]:
        return iter(self.shapes)

    @cached_property
    def problems(self) -> tuple[ConvProblem, ...]:
        """The distinct problems over all shapes, in the order of first use."""
        return tuple(dict.fromkeys(problem for trace in self.shapes for problem in trace.calls))

    @cached_property
    def keys(self) -> Mapping[ConvProblem, str]:
        """The find-db key of every distinct problem. A plain and a transposed problem may share one."""
        return {problem: problem.find_db_key() for problem in self.problems}

    @property
    def total(self) -> int:
        """Problems counted once per shape that asks for them: what a sweep would cost without deduplication."""
        return sum(len(trace.calls) for trace in self.shapes)


def merged(traces: Sequence[PlanTrace]) -> PlanTrace:
    """One trace of a model that may run in several ways: what any of them asks for, as often as the one that asks for
    it most. All are of the same shapes, in the same order."""
    if len(traces) == 1:
        return traces[0]
    shapes = []
    for ways in zip(*traces, strict=True):
        calls, elsewhere = Counter(ways[0].calls), Counter(ways[0].elsewhere)
        for way in ways[1:]:
            calls |= Counter(way.calls)
            elsewhere |= Counter(way.elsewhere)
        shapes.append(ShapeTrace(ways[0].shape, calls, elsewhere))
    return PlanTrace(tuple(shapes))
