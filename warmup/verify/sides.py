"""The two sides of a comparison: engines with the words that tell them apart, and their ONNX graphs where they have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from handlers.engines.engine import Engine, example, open_engine
from handlers.errors import ModelError
from handlers.handler import Tensors
from handlers.loading import Model
from handlers.shapes import Shape
from handlers.sources import resolve
from handlers.spec import ModelSpec, TensorSpec
from warmup.sessions import Wanted, wanted_for
from warmup.verify.comparison import OutputCheck, compare
from warmup.verify.onnx import CannotBisect, Divergence, OnnxGraph, bisect
from warmup.verify.reference import PlainOnnx, reference


class NothingToCompare(Exception):
    """A model for which no second engine exists; the message says what to name."""


@dataclass(frozen=True)
class Side:
    """A loaded engine. ``graph`` is what it runs, where that is an ONNX file.

    ``inputs`` and ``outputs`` translate the first side's names of tensors into this side's; those that are not in them
    are the same.
    """

    engine: Engine
    words: str
    graph: OnnxGraph | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)

    def run(self, inputs: Mapping[str, np.ndarray]) -> Tensors:
        """Outputs under the first side's names, for inputs under these."""
        back = self._back()
        found = self.engine.run({self.inputs.get(name, name): array for name, array in inputs.items()})
        return {back.get(name, name): array for name, array in found.items()}

    def described(self) -> tuple[TensorSpec, ...]:
        """The engine's outputs, under the first side's names."""
        back = self._back()
        return tuple(o.model_copy(update={"name": back.get(o.name, o.name)}) for o in self.engine.outputs())

    def _back(self) -> dict[str, str]:
        return {mine: theirs for theirs, mine in self.outputs.items()}


@dataclass(frozen=True)
class ShapeCheck:
    """One shape through both sides. ``divergence`` is where their graphs part, or why that is not known."""

    shape: Shape
    outputs: tuple[OutputCheck, ...]
    divergence: Divergence | str = ""

    @property
    def close(self) -> bool:
        return all(output.close for output in self.outputs)

    def to_json(self) -> dict[str, object]:
        divergence = self.divergence
        return {
            "shape": self.shape.text,
            "close": self.close,
            "outputs": [output.to_json() for output in self.outputs],
            "divergence": divergence.to_json() if isinstance(divergence, Divergence) else divergence or None,
        }


def plain_side(spec: ModelSpec, folder: Path) -> Side:
    """The model's reference, loaded. Raises NothingToCompare where it has none."""
    made = reference(spec, folder)
    if made is None:
        why = "is Python code" if spec.engine.kind == "python" else "runs as its own reference: eagerly, in fp32"
        raise NothingToCompare(f"{spec.name} {why}; name another model with --against")
    engine, words = made
    engine.load()
    graph = None
    if isinstance(engine, PlainOnnx):
        graph = OnnxGraph(resolve(spec.engine.source, folder), Wanted(threads=spec.engine.threads, optimise=False))
    return Side(engine, words, graph)


def engine_side(spec: ModelSpec, folder: Path, options: Mapping[str, str]) -> Side:
    """The engine that ``spec`` describes, loaded. Raises ModelError."""
    engine = open_engine(spec, folder, options)
    engine.load()
    if spec.engine.kind != "onnx":
        how = f"{spec.engine.execution} in {spec.engine.precision}" if spec.engine.kind == "torch" else "Python code"
        device = getattr(engine, "device", "")
        words = (
            f"{spec.name}: {'PyTorch ' if spec.engine.kind == 'torch' else ''}{how}{f' on {device}' if device else ''}"
        )
        return Side(engine, words)
    provider = engine.provider  # type: ignore[attr-defined]
    graph = OnnxGraph(resolve(spec.engine.source, folder), wanted_for(spec, provider))
    return Side(engine, f"{spec.name}: ONNX Runtime on {provider} in {spec.engine.precision}", graph)


def other_side(first: ModelSpec, outputs: tuple[TensorSpec, ...], other: Model, options: Mapping[str, str]) -> Side:
    """Another model as the second side: tensors are matched by name, or in order where the names differ.

    Raises ModelError where the two cannot take the same inputs or do not give as many outputs.
    """
    side = engine_side(other.spec, other.folder, options)
    inputs = _matched("inputs", first.inputs, other.spec.inputs)
    for mine in first.inputs:
        theirs = next(t for t in other.spec.inputs if t.name == inputs.get(mine.name, mine.name))
        if mine.dtype != theirs.dtype or len(mine.dims) != len(theirs.dims):
            raise ModelError(
                f"input {mine.name!r} of {first.name} is {mine.dtype} with {len(mine.dims)} dims, {theirs.name!r} of "
                f"{other.spec.name} {theirs.dtype} with {len(theirs.dims)}"
            )
    named = _matched("outputs", outputs, side.engine.outputs())
    return Side(side.engine, side.words, side.graph, inputs, named)


def check(
    first: Side, second: Side, shapes: Iterable[Shape], tolerance: float, seed: int, cut: bool
) -> list[ShapeCheck]:
    """The outputs of both sides for every shape, ``first`` being what is right; ``cut``: look for the first node that
    differs where they do."""
    checks = []
    for shape in shapes:
        inputs = example(shape, seed)
        first.engine.warm(shape)
        second.engine.warm(_renamed(shape, second.inputs))
        outputs = compare(first.run(inputs), second.run(inputs), second.described(), tolerance)
        wrong = [output.name for output in outputs if not output.close]
        divergence = _divergence(first, second, inputs, wrong, tolerance) if wrong and cut else ""
        checks.append(ShapeCheck(shape, outputs, divergence))
    return checks


def _divergence(first: Side, second: Side, inputs: Tensors, wrong: list[str], tolerance: float) -> Divergence | str:
    if first.graph is None or second.graph is None:
        return "the first node that differs can be found between two ONNX graphs only"
    if any(name != second.inputs.get(name, name) for name in inputs):
        return "the first node that differs can be found only where both graphs name their tensors alike"
    missing = [name for name in wrong if name not in first.graph.tensors & second.graph.tensors]
    if missing:
        return f"no node of both graphs writes {', '.join(missing)}"
    try:
        return bisect(first.graph, second.graph, inputs, wrong, tolerance)
    except CannotBisect as error:
        return str(error)


def _renamed(shape: Shape, names: Mapping[str, str]) -> Shape:
    return Shape(tuple(type(t)(names.get(t.name, t.name), t.dims, t.dtype) for t in shape))


def _matched(what: str, mine: tuple[TensorSpec, ...], theirs: tuple[TensorSpec, ...]) -> dict[str, str]:
    """Which of ``theirs`` each of ``mine`` is: by name, or in order where the names differ."""
    left, right = [tensor.name for tensor in mine], [tensor.name for tensor in theirs]
    if set(left) == set(right):
        return {}
    if len(left) != len(right):
        raise ModelError(f"{what}: {', '.join(left)} on one side, {', '.join(right)} on the other")
    return dict(zip(left, right, strict=True))
