"""The plan: the finite, weighted set of shapes that a model may run.

What is warmed, what is padded to and what is served are the same object.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from handlers.document import shortened
from handlers.errors import ModelError
from handlers.shapes import Shape, ShapeError
from handlers.spec import AxisRange, ModelSpec

MAX_SHAPES = 4096  # more than this is a sign that the grid is wrong: every shape costs seconds to minutes


@dataclass(frozen=True)
class PlannedShape:
    """A shape and its share of the expected traffic (weights of a plan add up to 1)."""

    shape: Shape
    weight: float


@dataclass(frozen=True)
class Plan:
    """The planned shapes of one model, heaviest first, then in text order."""

    model: str
    shapes: tuple[PlannedShape, ...]

    def __iter__(self) -> Iterator[PlannedShape]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def __contains__(self, shape: Shape) -> bool:
        return shape in self._weights

    def weight(self, shape: Shape) -> float:
        """The share of a planned shape, 0 for any other."""
        return self._weights.get(shape, 0.0)

    @cached_property
    def _weights(self) -> dict[Shape, float]:
        return {planned.shape: planned.weight for planned in self.shapes}

    def shard(self, index: int, count: int) -> Plan:
        """Part ``index`` (from 1) of ``count``; the parts are disjoint and together the whole. Weights are kept."""
        if not 1 <= index <= count:
            raise ValueError(f"shard {index}/{count}: the index must be between 1 and {count}")
        return Plan(self.model, self.shapes[index - 1 :: count])


def expand(spec: ModelSpec, folder: Path) -> Plan:
    """The plan of a model; raises ModelError where it has no shape, too many, or one that does not fit the inputs."""
    if spec.shapes.grid is not None:
        count = 1
        for values in spec.shapes.grid.values():
            count *= len(values.values() if isinstance(values, AxisRange) else values)
        if count > MAX_SHAPES:
            raise ModelError(f"{spec.name}: shapes.grid has {count} shapes, at most {MAX_SHAPES} are allowed")
        weighted = _grid(spec)
    elif spec.shapes.list is not None:
        weighted = {Shape.parse(item.shape): item.weight for item in spec.shapes.list}
    else:
        weighted = _learned(spec, folder / str(spec.shapes.learned))
    if not weighted:
        raise ModelError(f"{spec.name}: the plan is empty")
    if len(weighted) > MAX_SHAPES:
        raise ModelError(f"{spec.name}: the plan has {len(weighted)} shapes, at most {MAX_SHAPES} are allowed")
    for shape in weighted:
        require(spec, shape, "planned shape ")
    total = sum(weighted.values())
    if not 0 < total < math.inf:
        raise ModelError(f"{spec.name}: shapes: the weights add up to {total}; make them larger or smaller")
    ordered = sorted(weighted.items(), key=lambda item: (-item[1], item[0].text))
    return Plan(spec.name, tuple(PlannedShape(shape, weight / total) for shape, weight in ordered))


def require(spec: ModelSpec, shape: Shape, what: str = "") -> Shape:
    """The shape; raises ModelError where it cannot be an input of the model. ``what`` goes before it in the message."""
    problem = mismatch(spec, shape)
    if problem:
        raise ModelError(f"{spec.name}: {what}{shape}: {problem}")
    return shape


def mismatch(spec: ModelSpec, shape: Shape) -> str | None:
    """Why a shape cannot be an input of the model, or None where it can."""
    names = tuple(tensor.name for tensor in shape)
    wanted = tuple(tensor.name for tensor in spec.inputs)
    if names != wanted:
        return f"inputs are {', '.join(names)}, the model takes {', '.join(wanted)}"
    sizes: dict[str, int] = {}
    for tensor, declared in zip(shape, spec.inputs, strict=True):
        if tensor.dtype != declared.dtype:
            return f"input {tensor.name!r} is {tensor.dtype}, the model takes {declared.dtype}"
        found = declared.sizes(tensor.dims)
        if found is None:
            return f"input {tensor.name!r} has dims {list(tensor.dims)}, the model takes {list(declared.dims)}"
        for axis, size in found.items():
            if sizes.setdefault(axis, size) != size:
                return f"axis {axis!r} is {sizes[axis]} in one input and {size} in another"
    return None


def _grid(spec: ModelSpec) -> dict[Shape, float]:
    assert spec.shapes.grid is not None
    axes = {a: v.values() if isinstance(v, AxisRange) else v for a, v in spec.shapes.grid.items()}
    weighted: dict[Shape, float] = {}
    for sizes in itertools.product(*axes.values()):
        point = dict(zip(axes, sizes, strict=True))
        weight = 1.0
        for axis, size in point.items():
            weight *= spec.shapes.weights.get(axis, {}).get(size, 1.0)
        weighted[Shape(tuple(tensor.shape(point) for tensor in spec.inputs))] = weight
    return weighted


def _learned(spec: ModelSpec, path: Path) -> dict[Shape, float]:
    try:
        counts = json.loads(path.read_text(encoding="utf-8"))
        return {Shape.parse(text): float(count) for text, count in counts["shapes"].items() if float(count) > 0}
    except OSError as error:
        raise ModelError(f"{spec.name}: shapes.learned: {path}: {error.strerror}") from error
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
        reason = shortened(str(error)) if isinstance(error, ShapeError) else 'expected {"shapes": {SHAPE: COUNT}}'
        raise ModelError(f"{spec.name}: shapes.learned: {path}: {reason}") from error
