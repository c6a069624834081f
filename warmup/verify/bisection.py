"""Finds the first node at which two computations of one graph part, by cutting the graph in two again and again.

A cut lies between two nodes of an order in which every node comes after those that it needs. The tensors that cross it
are all that the rest of the graph knows of what came before: where they agree, the fault is behind the cut. So half of
the nodes drop out with every look, and only the tensors of one cut are looked at: to ask for all of them would undo the
fusions that may be at fault.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """A node as a bisection sees it: its name, what it does, and the tensors that it reads and writes."""

    name: str
    operation: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name} ({self.operation})"


def needed(steps: Sequence[Step], outputs: Sequence[str]) -> tuple[Step, ...]:
    """The steps that ``outputs`` depend on, in their order."""
    wanted, kept = set(outputs), []
    for step in reversed(steps):
        if wanted.intersection(step.writes):
            wanted.update(step.reads)
            kept.append(step)
    return tuple(reversed(kept))


def crossing(steps: Sequence[Step], cut: int, outputs: Sequence[str]) -> tuple[str, ...]:
    """The tensors that the first ``cut`` steps write and a later one reads, or that are ``outputs``."""
    wanted = set(outputs).union(*(step.reads for step in steps[cut:]))
    return tuple(name for step in steps[:cut] for name in step.writes if name in wanted)


def first_difference(
    steps: Sequence[Step],
    outputs: Sequence[str],
    differ: Callable[[tuple[str, ...]], bool],
    comparable: Callable[[str], bool] = lambda name: True,
) -> tuple[Step, ...]:
    """The step whose inputs agree and whose outputs differ; several where no cut between them can be compared.

    ``steps`` are those that ``outputs`` need, and ``outputs`` are known to differ. ``differ`` says whether any of the
    given tensors does. Asks it about log2 of the number of steps.
    """
    low, high = 0, len(steps)
    while high - low > 1:
        middle = _nearest(steps, low, high, outputs, comparable)
        if middle is None:
            break
        if differ(crossing(steps, middle, outputs)):
            high = middle
        else:
            low = middle
    return tuple(steps[low:high])


def _nearest(
    steps: Sequence[Step], low: int, high: int, outputs: Sequence[str], comparable: Callable[[str], bool]
) -> int | None:
    """The cut nearest to the middle of two, of which every tensor can be compared; None where there is none."""
    middle = (low + high) // 2
    for cut in sorted(range(low + 1, high), key=lambda cut: abs(cut - middle)):
        if all(map(comparable, crossing(steps, cut, outputs))):
            return cut
    return None
