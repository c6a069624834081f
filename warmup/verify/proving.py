"""Checks the outputs of shapes that are being proven: the reference runs beside the engine, in the same process."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from handlers.engines.agreement import ENGINES
from handlers.engines.engine import Engine, example
from handlers.shapes import Shape
from handlers.spec import ModelSpec
from warmup.proof import OutputsProof
from warmup.verify.comparison import compare, worst
from warmup.verify.reference import reference


class OutputsDiffer(Exception):
    """An engine that computes something else than the reference; the message says which output, and how far off."""


def tolerance(spec: ModelSpec) -> float:
    """The largest relative error that a model's outputs may have: its own, or that of its precision."""
    return spec.tolerance if spec.tolerance is not None else ENGINES[spec.engine.precision]


@dataclass(frozen=True)
class _Reference:
    engine: Engine
    words: str


class OutputsCheck:
    """The reference of one model, loaded when the first shape is checked."""

    def __init__(self, spec: ModelSpec, folder: Path) -> None:
        self._spec = spec
        self._folder = folder
        self._loaded: _Reference | None = None
        self._none = False

    def check(self, engine: Engine, shape: Shape) -> OutputsProof | None:
        """How far a warm shape's outputs are from the reference's; None where the model has no reference.

        Raises OutputsDiffer where that is over the tolerance.
        """
        found = self._reference()
        if found is None:
            return None
        inputs, allowed = example(shape), tolerance(self._spec)
        checks = compare(found.engine.run(inputs), engine.run(inputs), engine.outputs(), allowed)
        far = worst(checks)
        if not far.close:
            raise OutputsDiffer(
                f"output {far.name!r} differs from {found.words} by {far.agreement.relative:.2g} of its largest value "
                f"(cosine {far.agreement.cosine:.6f}), allowed is {allowed:g}; preheat verify says at which node"
            )
        return OutputsProof(found.words, allowed, **asdict(far.agreement))

    def close(self) -> None:
        if self._loaded is not None:
            self._loaded.engine.close()

    def _reference(self) -> _Reference | None:
        if self._loaded is None and not self._none:
            made = reference(self._spec, self._folder)
            if made is None:
                self._none = True
            else:
                self._loaded = _Reference(*made)
                self._loaded.engine.load()
        return self._loaded
