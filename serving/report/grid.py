"""Lays shapes out on two axes: the two dims that vary most, with a panel for each combination of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from handlers.shapes import Shape

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Axis:
    """A dim that varies, or several that always vary together, by a label such as ``x[2] = x[3]``."""

    label: str
    sizes: Sizes  # of each shape, in the order of the shapes

    @property
    def ticks(self) -> Sizes:
        """The different sizes, in order."""
        return tuple(sorted(set(self.sizes)))


@dataclass(frozen=True)
class Panel:
    """One sheet of the grid: ``title`` says what the other dims are; ``cells`` map (row, column) to the index of a
    shape."""

    title: str
    cells: dict[tuple[int, int], int]


@dataclass(frozen=True)
class Grid:
    """Rows are sizes along ``y``, columns along ``x``; either has a single, unnamed size where nothing varies."""

    x: Axis
    y: Axis
    panels: tuple[Panel, ...]


def arrange(shapes: Sequence[Shape]) -> Grid | None:
    """The grid of shapes of one model, or None where their inputs differ in name or in number of dims."""
    kinds = {tuple((tensor.name, len(tensor.dims), tensor.dtype) for tensor in shape) for shape in shapes}
    if len(kinds) != 1:
        return None
    axes = _axes(shapes)[::-1]  # of equals the last comes first: width, then height
    axes.sort(key=lambda axis: -len(axis.ticks))
    still = Axis("", (0,) * len(shapes))
    x = axes[0] if axes else still
    y = axes[1] if len(axes) > 1 else still
    panels: dict[str, dict[tuple[int, int], int]] = {}
    for index in range(len(shapes)):
        title = ", ".join(f"{axis.label}: {axis.sizes[index]}" for axis in axes[2:])
        cell = (y.ticks.index(y.sizes[index]), x.ticks.index(x.sizes[index]))
        panels.setdefault(title, {})[cell] = index
    return Grid(x, y, tuple(Panel(title, cells) for title, cells in panels.items()))


def _axes(shapes: Sequence[Shape]) -> list[Axis]:
    labels: dict[Sizes, list[str]] = {}
    for number, tensor in enumerate(shapes[0]):
        for dim in range(len(tensor.dims)):
            sizes = tuple(shape.tensors[number].dims[dim] for shape in shapes)
            if len(set(sizes)) > 1:
                labels.setdefault(sizes, []).append(f"{tensor.name}[{dim}]")
    return [Axis(" = ".join(names), sizes) for sizes, names in labels.items()]
