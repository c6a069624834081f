"""The plainest engine for a model: on the CPU, nothing fused, nothing compiled. What another engine is checked against.

It uses no store and no accelerator, so that it can run beside the engine that is proven without leaving a trace.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from handlers.engines.engine import Engine, open_engine
from handlers.errors import ModelError
from handlers.handler import Tensors
from handlers.shapes import Shape
from handlers.sources import resolve
from handlers.spec import ModelSpec, TensorSpec
from warmup.sessions import CannotOpen, Wanted, open_session, run


class PlainOnnx(Engine):
    """ONNX Runtime's CPU provider with the graph as it is in the file."""

    def load(self) -> None:
        path = resolve(self.spec.engine.source, self.folder)
        try:
            self._session = open_session(path, Wanted(threads=self.spec.engine.threads, optimise=False))
        except CannotOpen as error:
            raise ModelError(f"{path}: {error}") from error
        self._names = [node.name for node in self._session.get_outputs()]

    def warm(self, shape: Shape) -> None:
        """Nothing here gets faster."""

    def run(self, inputs: Mapping[str, np.ndarray]) -> Tensors:
        try:
            return run(self._session, self._names, inputs)
        except CannotOpen as error:
            raise ModelError(f"{self.spec.name}: the reference cannot run: {error}") from error

    def outputs(self) -> tuple[TensorSpec, ...]:
        """Those that the description names; it gives all that the file has."""
        return self.spec.outputs

    def close(self) -> None:
        del self._session


def reference(spec: ModelSpec, folder: Path) -> tuple[Engine, str] | None:
    """The reference of a model, not yet loaded, and what it is in words; None for code that only it can run."""
    if spec.engine.kind == "onnx":
        return PlainOnnx(spec, folder, {}), "ONNX Runtime on the CPU, unoptimised"
    if spec.engine.kind == "torch":
        plain = spec.engine.model_copy(
            update={"execution": "eager", "precision": "fp32"}
            | dict.fromkeys(("channels_last", "dynamic_shapes", "search", "tf32"), False)
            | dict.fromkeys(("fold_batchnorm", "fuse_activations", "pointwise_as_matmul"), False)
        )
        if plain == spec.engine and not _has_accelerator():
            return None  # the model's own engine, once more
        engine = open_engine(spec.model_copy(update={"engine": plain}), folder, {"torch.device": "cpu"})
        return engine, "PyTorch eager in fp32 on the CPU"
    return None


def _has_accelerator() -> bool:
    import torch

    return torch.cuda.is_available()
