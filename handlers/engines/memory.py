"""Which shapes get a captured graph where there is not memory for all. Pure functions: no device, no framework.

Graphs that share one memory pool and never run at once need the working memory of the hungriest of them, not of all;
on top of that, each needs its own inputs and outputs for as long as it lives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from handlers.shapes import Shape


@dataclass(frozen=True)
class Need:
    """What a graph of ``shape`` takes, in bytes: ``work`` is shared with other graphs, ``own`` is not. ``weight`` is
    the shape's share of the traffic."""

    shape: Shape
    weight: float
    work: int
    own: int


def largest_first(shapes: Iterable[Shape]) -> list[Shape]:
    """The order in which graphs are captured: the largest makes the pool, the smaller ones find room in it."""
    return sorted(shapes, key=lambda shape: (-shape.elements, shape.text))


def admitted(needs: Sequence[Need], budget: int | None) -> frozenset[Shape]:
    """The shapes that get a graph within ``budget`` bytes (None: all), so that as much traffic as possible has one.

    The hungriest graph decides how much is shared; for each candidate for that place, the shapes that need no more are
    taken by their share of the traffic per byte of their own.
    """
    if budget is None:
        return frozenset(need.shape for need in needs)
    best: tuple[float, frozenset[Shape]] = (0.0, frozenset())
    for work in {need.work for need in needs}:
        left = budget - work
        taken: set[Shape] = set()
        weight = 0.0
        for need in sorted(
            (n for n in needs if n.work <= work), key=lambda n: (-n.weight / max(n.own, 1), n.shape.text)
        ):
            if need.own <= left:
                left -= need.own
                weight += need.weight
                taken.add(need.shape)
        if weight > best[0]:
            best = (weight, frozenset(taken))
    return best[1]


def scaled(known: Need, shape: Shape, weight: float) -> Need:
    """What another shape is expected to need: memory grows with the number of elements."""
    ratio = shape.elements / known.shape.elements
    return Need(shape, weight, round(known.work * ratio), round(known.own * ratio))
