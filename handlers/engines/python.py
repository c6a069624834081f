"""Runs a plain Python class: ``MODULE.py:CLASS`` in the model's folder, with ``run`` and, if it likes, ``load``."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from handlers.engines.engine import Engine, example
from handlers.errors import ModelError
from handlers.handler import Tensors
from handlers.shapes import Shape
from handlers.sources import load_class
from handlers.spec import TensorSpec


class PythonEngine(Engine):
    """``CLASS(**engine.arguments)``; ``run(inputs)`` takes and returns a dict of arrays by name.

    A class whose ``run`` does not mind which thread calls it may say so with ``any_thread = True``: what is very short
    is then run without a switch of threads. It is never called from two at once.
    """

    def load(self) -> None:
        source = self.spec.engine.source
        if not self.spec.outputs:
            raise ModelError(f"{self.spec.name}: outputs: a python model must name its outputs, with dtype and dims")
        found = load_class(self.folder, source)
        if not callable(getattr(found, "run", None)):
            raise ModelError(f"{self.spec.name}: engine.source: {source} has no method run(inputs)")
        try:
            self._model = found(**self.spec.engine.arguments)
        except TypeError as error:
            raise ModelError(f"{self.spec.name}: engine.arguments: {error}") from error
        load = getattr(self._model, "load", None)
        if callable(load):
            load()
        self._run = self._model.run
        self.any_thread = bool(getattr(found, "any_thread", False))

    def warm(self, shape: Shape) -> None:
        outputs = self.run(example(shape))
        missing = {tensor.name for tensor in self.spec.outputs} ^ outputs.keys()
        if missing:
            raise ModelError(f"{self.spec.name}: run() and model.yaml disagree about outputs {sorted(missing)}")

    def run(self, inputs: Mapping[str, np.ndarray]) -> Tensors:
        return self._run(inputs)

    def outputs(self) -> tuple[TensorSpec, ...]:
        return self.spec.outputs
