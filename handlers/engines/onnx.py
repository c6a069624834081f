"""Runs ONNX models with ONNX Runtime, on the providers that the model's description lists and on no other.

The list is an order of preference: the first provider that can be had runs the model, and the CPU does so only where
it is listed. Where none can be had, the start fails with the reason of each: ONNX Runtime's own habit of going on
with the CPU is switched off.

One option comes from a store: ``onnxruntime.optimized_dir`` is a directory of graphs that ONNX Runtime has optimised.
A graph found there is loaded as it is, a missing one is optimised now and left there, in every phase: a file that
appears while serving is a first call that somebody paid for, and shows as a new entry of the store.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors  # type: ignore[attr-defined]

from handlers.engines.engine import Engine, example
from handlers.errors import InvalidInput, ModelError
from handlers.handler import Tensors
from handlers.shapes import Shape
from handlers.sources import file_digest, resolve
from handlers.spec import TensorSpec

PROVIDERS = {
    "migraphx": "MIGraphXExecutionProvider",
    "rocm": "ROCMExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "cpu": "CPUExecutionProvider",
}
# Providers that compile whole subgraphs leave nodes which ONNX Runtime cannot write to a file.
_SERIALIZABLE = {"rocm", "cuda", "cpu"}
# Options of ``engine.options`` beside those of a provider: SessionOptions.add_session_config_entry.
_SESSION = "session"
# ONNX Runtime names tensor types as in its C API, ``tensor(float)``.
_TYPES = {
    "tensor(bool)": "bool",
    "tensor(uint8)": "uint8",
    "tensor(uint16)": "uint16",
    "tensor(uint32)": "uint32",
    "tensor(uint64)": "uint64",
    "tensor(int8)": "int8",
    "tensor(int16)": "int16",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(float16)": "fp16",
    "tensor(float)": "fp32",
    "tensor(double)": "fp64",
}
# ONNX Runtime's exceptions share no base class of their own, and the set differs between versions.
_ERRORS: tuple[type[Exception], ...] = tuple(
    value
    for name, value in vars(ort_errors).items()
    if name[:1].isupper() and isinstance(value, type) and issubclass(value, Exception)
)
_REMEMBERED = 4096  # shapes known to run; more than a plan can hold need not be remembered


class OnnxEngine(Engine):
    """Runs one ONNX model; ``provider`` says, after ``load``, which of the listed providers runs it."""

    provider: str

    def load(self) -> None:
        engine = self.spec.engine
        unknown = engine.options.keys() - {*PROVIDERS, _SESSION}
        if unknown:
            allowed = ", ".join([*PROVIDERS, _SESSION])
            raise ModelError(f"{self.spec.name}: engine.options: unknown {sorted(unknown)}; allowed: {allowed}")
        self._path = resolve(engine.source, self.folder)
        reasons = []
        for provider in engine.providers:
            try:
                self._session = self._open(provider)
            except _Unavailable as error:
                reasons.append(f"{provider}: {error}")
            else:
                self.provider = provider
                break
        else:
            raise ModelError(f"{self.spec.name}: no listed provider can be had: {'; '.join(reasons)}")
        self._check_inputs()
        self._outputs = self._describe_outputs()
        self._output_names = [tensor.name for tensor in self._outputs]
        self._known: set[tuple[tuple[int, ...], ...]] = set()

    def warm(self, shape: Shape) -> None:
        self.run(example(shape))

    def run(self, inputs: Mapping[str, np.ndarray]) -> Tensors:
        key = tuple(array.shape for array in inputs.values())
        try:
            results = self._session.run(self._output_names, inputs)
        except _ERRORS as error:
            if key in self._known:
                raise
            shown = ",".join(f"{name}={'x'.join(map(str, array.shape))}" for name, array in inputs.items())
            raise InvalidInput(f"model {self.spec.name!r} cannot run inputs of shape {shown}") from error
        if key not in self._known and len(self._known) < _REMEMBERED:
            self._known.add(key)
        return dict(zip(self._output_names, results, strict=True))  # type: ignore[arg-type]

    def outputs(self) -> tuple[TensorSpec, ...]:
        return self._outputs

    def close(self) -> None:
        del self._session

    def _open(self, provider: str) -> onnxruntime.InferenceSession:
        name = PROVIDERS[provider]
        available = onnxruntime.get_available_providers()
        if name not in available:
            raise _Unavailable(
                f"onnxruntime {onnxruntime.__version__} was built without {name} (has {', '.join(available)})"
            )
        precision = self.spec.engine.precision
        options = dict(self.spec.engine.options.get(provider, {}))
        if precision == "fp16" and provider == "migraphx":
            options.setdefault("migraphx_fp16_enable", "1")
        elif precision != "fp32":
            raise _Unavailable(f"runs the graph's own types, so precision {precision} needs a model converted to it")
        directory = self.options.get("onnxruntime.optimized_dir")
        if directory is None or provider not in _SERIALIZABLE:
            return self._create(self._path, provider, options, self._session_options())
        ready = Path(directory) / f"{self.spec.name}-{self._graph_digest(provider, options)}.onnx"
        settings = self._session_options()
        if ready.is_file():
            settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            return self._create(ready, provider, options, settings)
        with _written_beside(ready) as unfinished:
            settings.optimized_model_filepath = str(unfinished)
            return self._create(self._path, provider, options, settings)

    def _create(
        self, path: Path, provider: str, options: dict[str, str], settings: onnxruntime.SessionOptions
    ) -> onnxruntime.InferenceSession:
        name = PROVIDERS[provider]
        try:
            session = onnxruntime.InferenceSession(
                str(path), settings, providers=[name], provider_options=[options], enable_fallback=0
            )
        except (ValueError, RuntimeError) as error:  # a provider that cannot be set up, an option that it does not know
            raise _Unavailable(str(error).strip().split("\n", 1)[0]) from error
        except _ERRORS as error:
            raise ModelError(f"{path}: {str(error).strip()}") from error
        got = session.get_providers()
        if got[0] != name:
            raise _Unavailable(f"the session was made with {', '.join(got)} instead of {name}")
        return session

    def _session_options(self) -> onnxruntime.SessionOptions:
        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 3  # errors; a graph saved for this very machine is meant, and is no warning
        settings.intra_op_num_threads = self.spec.engine.threads  # 0: ONNX Runtime's own choice
        for key, value in self.spec.engine.options.get(_SESSION, {}).items():
            settings.add_session_config_entry(key, value)
        return settings

    def _graph_digest(self, provider: str, options: dict[str, str]) -> str:
        facts = (file_digest(self._path), onnxruntime.__version__, provider, sorted(options.items()))
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]

    def _check_inputs(self) -> None:
        found = {node.name: node for node in self._session.get_inputs()}
        declared = {tensor.name for tensor in self.spec.inputs}
        if declared != found.keys():
            raise ModelError(f"{self.spec.name}: inputs are {sorted(declared)}, {self._path} takes {sorted(found)}")
        for tensor in self.spec.inputs:
            node = found[tensor.name]
            if _TYPES.get(node.type) != tensor.dtype:
                raise ModelError(
                    f"{self.spec.name}: input {tensor.name!r} is {tensor.dtype}, {self._path} takes {node.type}"
                )
            if len(node.shape) != len(tensor.dims):
                raise ModelError(
                    f"{self.spec.name}: input {tensor.name!r} has {len(tensor.dims)} dims, "
                    f"{self._path} takes {node.shape}"
                )

    def _describe_outputs(self) -> tuple[TensorSpec, ...]:
        nodes = {node.name: node for node in self._session.get_outputs()}
        missing = [tensor.name for tensor in self.spec.outputs if tensor.name not in nodes]
        if missing:
            raise ModelError(f"{self.spec.name}: outputs {missing} are not in {self._path}, which has {sorted(nodes)}")
        if self.spec.outputs:
            return self.spec.outputs
        unknown = [f"{node.name}: {node.type}" for node in nodes.values() if node.type not in _TYPES]
        if unknown:
            raise ModelError(f"{self.spec.name}: {self._path} has outputs that are no tensors: {', '.join(unknown)}")
        return tuple(
            TensorSpec(
                name=node.name, dtype=_TYPES[node.type], dims=tuple(map(_axis, node.shape, range(len(node.shape))))
            )
            for node in nodes.values()
        )


class _Unavailable(Exception):
    """Why a provider cannot run this model here."""


def _axis(size: int | str | None, position: int) -> int | str:
    if isinstance(size, int) and size > 0:
        return size
    name = re.sub(r"\W", "_", size) if isinstance(size, str) else ""
    return name if re.match(r"[A-Za-z_]", name) else f"dim_{position}"


@contextlib.contextmanager
def _written_beside(path: Path) -> Iterator[Path]:
    """A path to write to, that becomes ``path`` at once when all went well and is gone when not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield unfinished
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
