"""What a handler may know of a model's plan: the largest size that an input is planned for."""

from __future__ import annotations

import json
from pathlib import Path

from handlers.document import shortened
from handlers.errors import ModelError
from handlers.shapes import Shape
from handlers.spec import BATCH, AxisRange, ModelSpec


def largest(spec: ModelSpec, folder: Path, axes: tuple[str, ...]) -> tuple[int, ...]:
    """The sizes of ``axes`` in the planned shape where their product is greatest, so that what fits them is planned.

    Raises ModelError where an input lacks the axes, or a learned plan cannot be read.
    """
    if spec.shapes.grid is not None:
        missing = [axis for axis in axes if axis not in spec.shapes.grid]
        if missing:
            raise ModelError(f"{spec.name}: shapes.grid has no sizes for {', '.join(missing)}, which its handler needs")
        sizes = {a: v.values() if isinstance(v, AxisRange) else v for a, v in spec.shapes.grid.items()}
        return tuple(max(sizes[axis]) for axis in axes)
    found = [sizes for shape in _shapes(spec, folder) if (sizes := _sizes(spec, shape)) and set(axes) <= sizes.keys()]
    if not found:
        raise ModelError(f"{spec.name}: no planned shape has the axes {', '.join(axes)}, which its handler needs")
    best = max(found, key=lambda sizes: _product([sizes[axis] for axis in axes]))
    return tuple(best[axis] for axis in axes)


def _shapes(spec: ModelSpec, folder: Path) -> list[Shape]:
    if spec.shapes.list is not None:
        return [Shape.parse(item.shape) for item in spec.shapes.list]
    path = folder / str(spec.shapes.learned)
    try:
        return [Shape.parse(text) for text in json.loads(path.read_text(encoding="utf-8"))["shapes"]]
    except OSError as error:
        raise ModelError(f"{spec.name}: shapes.learned: {path}: {error.strerror}") from error
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ModelError(f"{spec.name}: shapes.learned: {path}: {shortened(str(error))}") from error


def _sizes(spec: ModelSpec, shape: Shape) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for declared, tensor in zip(spec.inputs, shape, strict=False):
        sizes |= declared.sizes(tensor.dims) or {}
    sizes.pop(BATCH, None)
    return sizes


def _product(sizes: list[int]) -> int:
    product = 1
    for size in sizes:
        product *= size
    return product
