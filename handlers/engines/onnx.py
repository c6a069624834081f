"""Runs ONNX models with ONNX Runtime, on the providers that the model's description lists and on no other.

The list is an order of preference for machines with different builds: the first provider that the installed ONNX
Runtime was built with runs the model, and the CPU does so only where it is listed. A provider that is there and does
not work, for want of a library or a device, stops the start, whatever is listed after it: ONNX Runtime's own habit of
going on with the CPU would make the model a hundred times slower in silence. So do nodes that end up on the CPU.

MIGraphX has a session for every shape (``handlers.engines.migraphx``), the others one session for all.

Options come from stores. ``onnxruntime.optimized_dir`` is a directory of graphs that ONNX Runtime has optimised: a
graph found there is loaded as it is, a missing one is optimised now and left there, in every phase: a file that appears
while serving is a first call that somebody paid for, and shows as a new entry of the store. ``migraphx.cache_dir`` and
``migraphx.target`` are where MIGraphX's programs are, and what they are for; ``migraphx.compile: apart`` has a program
that is not there made by another process, since no other Python thread runs meanwhile.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np
import onnxruntime

from handlers.engines import migraphx, tuning
from handlers.engines.binding import Bound, Times, device_of
from handlers.engines.engine import Engine, example
from handlers.engines.onnxgraph import ONE_NODE
from handlers.engines.placement import Placement, shortfall
from handlers.engines.providers import EXHAUSTIVE, PROVIDERS, Unavailable, Unusable, check_available, check_options
from handlers.engines.session import ERRORS, Blueprint, Opened, open_session, plain_settings, quiet
from handlers.errors import InvalidInput, ModelError
from handlers.handler import Tensors
from handlers.shapes import Shape
from handlers.sources import graph_digest, resolve
from handlers.spec import TensorSpec

log = logging.getLogger("preheat.onnx")

__all__ = ["PROVIDERS", "OnnxEngine"]
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
Dims = tuple[tuple[int, ...], ...]
Result = TypeVar("Result")
_REMEMBERED = 4096  # shapes known to run; more than a plan can hold need not be remembered


class OnnxEngine(Engine):
    """Runs one ONNX model. After ``load``, ``provider`` says which of the listed providers runs it; after an execution
    on a device, ``times`` says where its time went."""

    provider: str
    times: Times | None = None

    def load(self) -> None:
        engine = self.spec.engine
        self._session: onnxruntime.InferenceSession | None = None
        self._sessions: migraphx.Sessions | None = None
        self._bound: dict[Dims, Bound] = {}
        self._refusal = ""
        self._tuning: tuning.TuningFile | None = None
        self._known: set[Dims] = set()
        self._run_options = quiet()
        try:
            check_options(engine.options)
        except Unusable as error:
            raise ModelError(f"{self.spec.name}: {error}") from error
        self._path = resolve(engine.source, self.folder)
        reasons = []
        for provider in engine.providers:
            try:
                check_available(provider)
                self._open(provider)
            except Unavailable as error:
                reasons.append(f"{provider}: {error}")
            except Unusable as error:
                raise ModelError(f"{self.spec.name}: {provider}: {error}") from error
            else:
                self.provider = provider
                self.any_thread = provider == "cpu"  # ONNX Runtime's own sessions are thread-safe
                break
        else:
            raise ModelError(f"{self.spec.name}: no listed provider can be had: {'; '.join(reasons)}")
        if engine.options.get(self.provider, {}).get(EXHAUSTIVE) in ("1", "true", "True"):
            log.warning("model %s: %s: %s does nothing: a sweep tunes", self.spec.name, self.provider, EXHAUSTIVE)

    def warm(self, shape: Shape) -> None:
        inputs = example(shape)
        if self._sessions is not None:
            if self._refusal:
                raise ModelError(self._refusal)
            placed = self._running(inputs, lambda: self._per_shape().warm(self._dims(inputs), shape, inputs))
            if placed is not None:
                self._check_placement("migraphx", placed)
            return
        self.run(inputs)
        key = self._dims(inputs)
        if self._session is not None and self._device is not None and key not in self._bound:
            self._bound[key] = Bound(self._session, self._device, inputs, self._output_names)
            self.run(inputs)
        if self._tuning is not None:
            self._tuning.keep(self._single())

    def run(self, inputs: Mapping[str, np.ndarray]) -> Tensors:
        if self._sessions is not None:
            outputs, self.times = self._running(inputs, lambda: self._per_shape().run(self._dims(inputs), inputs))
            return outputs
        bound = self._bound.get(self._dims(inputs))
        if bound is not None:
            outputs, self.times = bound.run(inputs)
            return outputs
        results = self._running(inputs, lambda: self._single().run(self._output_names, inputs, self._run_options))
        return dict(zip(self._output_names, results, strict=True))  # type: ignore[arg-type]

    def outputs(self) -> tuple[TensorSpec, ...]:
        return self._outputs

    def close(self) -> None:
        self._bound.clear()
        self._session = None
        if self._sessions is not None:
            self._sessions.close()

    def _dims(self, inputs: Mapping[str, np.ndarray]) -> Dims:
        return tuple(inputs[tensor.name].shape for tensor in self.spec.inputs)

    def _single(self) -> onnxruntime.InferenceSession:
        assert self._session is not None
        return self._session

    def _per_shape(self) -> migraphx.Sessions:
        assert self._sessions is not None
        return self._sessions

    def _running(self, inputs: Mapping[str, np.ndarray], execute: Callable[[], Result]) -> Result:
        """What ``execute`` returns; a shape that fails and never ran before is the client's fault."""
        key = self._dims(inputs)
        try:
            result = execute()
        except Unusable as error:
            raise ModelError(f"{self.spec.name}: {self.provider}: {error}") from error
        except ERRORS as error:
            if key in self._known:
                raise
            shown = ",".join(f"{name}={'x'.join(map(str, array.shape))}" for name, array in inputs.items())
            raise InvalidInput(f"model {self.spec.name!r} cannot run inputs of shape {shown}") from error
        if key not in self._known and len(self._known) < _REMEMBERED:
            self._known.add(key)
        return result

    def _open(self, provider: str) -> None:
        options = self._provider_options(provider)
        blueprint = Blueprint.of(self.spec.engine, provider, options)
        if provider == "migraphx":
            self._open_per_shape(blueprint)
            return
        opened = self._open_single(blueprint)
        self._describe(opened.session)
        self._session = opened.session
        self._device = device_of(provider, options)
        directory = self.options.get(tuning.DIRECTORY)
        if tuning.wanted(options) and directory is not None:
            name = f"{self.spec.name}-{provider}-{graph_digest(self._path)[:16]}.json"
            self._tuning = tuning.TuningFile(Path(directory) / name)
            self._tuning.restore(opened.session)
        if provider != "cpu":
            self._check_placement(provider, opened.placed)

    def _provider_options(self, provider: str) -> dict[str, str]:
        precision = self.spec.engine.precision
        options = dict(self.spec.engine.options.get(provider, {}))
        if precision != "fp32" and provider == "migraphx":
            options.setdefault(f"migraphx_{precision}_enable", "1")
        elif precision != "fp32":
            raise Unavailable(f"runs the graph's own types, so precision {precision} needs a model converted to it")
        if tuning.wanted(options) and tuning.DIRECTORY in self.options:
            options = tuning.with_mode(options, self.options[tuning.MODE])
        return options

    def _open_per_shape(self, blueprint: Blueprint) -> None:
        """Finds out what the graph takes and whether the device works, without compiling anything."""
        opened = open_session(self._path, Blueprint("cpu", {}), plain_settings(), details=True)
        self._nodes = opened.placed.taken
        self._describe(opened.session)
        open_session(ONE_NODE, blueprint, blueprint.settings(), "a graph of one node")
        directory = self.options.get("migraphx.cache_dir")
        self._sessions = migraphx.Sessions(
            path=self._path,
            blueprint=blueprint,
            precision=self.spec.engine.precision,
            inputs=opened.session.get_inputs(),
            outputs=self._output_names,
            root=Path(directory) if directory else None,
            target=self.options.get("migraphx.target", ""),
            apart=self.options.get("migraphx.compile") == "apart",
        )

    def _open_single(self, blueprint: Blueprint) -> Opened:
        directory = self.options.get("onnxruntime.optimized_dir")
        settings = blueprint.settings()
        if directory is None:
            return open_session(self._path, blueprint, settings)
        digest = self._graph_digest(blueprint.provider, blueprint.options)
        ready = Path(directory) / f"{self.spec.name}-{digest}.onnx"
        if ready.is_file():
            settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            return open_session(ready, blueprint, settings)
        with _written_beside(ready) as unfinished:
            settings.optimized_model_filepath = str(unfinished)
            return open_session(self._path, blueprint, settings)

    def _check_placement(self, provider: str, placed: Placement) -> None:
        total = self._nodes if provider == "migraphx" else None
        short = shortfall(placed, provider, self.spec.engine.min_placement, total)
        if short:
            self._refusal = f"{self.spec.name}: {short}"
            raise ModelError(self._refusal)

    def _describe(self, session: onnxruntime.InferenceSession) -> None:
        self._check_inputs(session)
        self._outputs = self._describe_outputs(session)
        self._output_names = [tensor.name for tensor in self._outputs]

    def _graph_digest(self, provider: str, options: Mapping[str, str]) -> str:
        facts = (graph_digest(self._path), onnxruntime.__version__, provider, sorted(options.items()))
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]

    def _check_inputs(self, session: onnxruntime.InferenceSession) -> None:
        found = {node.name: node for node in session.get_inputs()}
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

    def _describe_outputs(self, session: onnxruntime.InferenceSession) -> tuple[TensorSpec, ...]:
        nodes = {node.name: node for node in session.get_outputs()}
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
