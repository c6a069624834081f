"""MIGraphX through ONNX Runtime: one session for every shape, with static dims and a cache directory of its own.

Why, as watched on the real provider (ONNX Runtime 1.27, docs/onnxruntime.md): it compiles for tens of seconds at the
first call of a shape, and again whenever the shape of a session changes. Its cache names a file by the structure of
the graph, the name of the device and a digest of the inputs' ranks alone. So other weights, precision, options, number
of compute units, height or width are hits of the wrong program, and outputs have the wrong values or even dims.
Here every such fact is part of the directory's name, so that no two programs can meet in one.

While it compiles no other Python thread runs, so a server has that done by a process of its own and only loads what it
left.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from handlers.engines.binding import Bound, Times, device_of
from handlers.engines.onnxgraph import with_dims
from handlers.engines.placement import Placement
from handlers.engines.providers import Unusable
from handlers.engines.session import Blueprint, Opened, open_session, plain_settings, quiet
from handlers.errors import InvalidInput, ModelError
from handlers.handler import Tensors
from handlers.shapes import Shape
from handlers.sources import graph_digest

PROGRAM = ".mxr"
_CACHE_OPTION = "migraphx_model_cache_dir"
_PASSING = 4  # sessions of shapes that are not planned; each holds the weights on the device once more
# Where the weights are that a graph given as bytes keeps in files (onnxruntime_session_options_config_keys.h).
_UNUSABLE = 3  # exit status of a compiling process on which the provider does not work
_INITIALIZERS = "session.model_external_initializers_file_folder_path"
# MIGraphX's own switches change the programs that it makes; these two only what it prints.
_SWITCHES, _PRINTS = "MIGRAPHX_", ("MIGRAPHX_TRACE_", "MIGRAPHX_TIME_")


Dims = tuple[tuple[int, ...], ...]


class _Counter:
    """Programs that MIGraphX compiled in this process: each is a first call that was not prepared."""

    compiled = 0


COUNTER = _Counter()


@dataclass
class Sessions:
    """The sessions of one model by shape. ``root`` is the store, None where nothing is kept; ``target`` says what
    the programs are for: device, compute units, versions. ``inputs`` are those of the graph. ``apart`` has programs
    compiled by another process."""

    path: Path
    blueprint: Blueprint
    precision: str
    inputs: Sequence[onnxruntime.NodeArg]
    outputs: Sequence[str]
    root: Path | None
    target: str
    apart: bool = False
    planned: dict[Dims, _Warm] = field(default_factory=dict)
    passing: OrderedDict[Dims, _Warm] = field(default_factory=OrderedDict)

    def warm(self, dims: Dims, shape: Shape, inputs: Mapping[str, np.ndarray]) -> Placement | None:
        """Makes the session of a planned shape and runs it; where its nodes are, None where it was there already.

        ``dims`` are those of the inputs, in any order that is always the same.
        """
        if dims in self.planned:
            self.planned[dims].run(inputs)
            return None
        opened = self.open(shape)
        warm = self._ready(opened, inputs)
        warm.run(inputs)
        self.planned[dims] = warm
        self.passing.pop(dims, None)
        return opened.placed

    def run(self, dims: Dims, inputs: Mapping[str, np.ndarray]) -> tuple[Tensors, Times | None]:
        """Runs a shape; one that was never warmed is compiled now, and its session kept for a while."""
        warm = self.planned.get(dims) or self.passing.get(dims)
        if warm is None:
            warm = self._ready(self._passing(Shape.of(inputs)), inputs)
            self.passing[dims] = warm
            if len(self.passing) > _PASSING:
                self.passing.popitem(last=False)
        elif dims in self.passing:
            self.passing.move_to_end(dims)
        return warm.run(inputs)

    def close(self) -> None:
        self.planned.clear()
        self.passing.clear()

    def _passing(self, shape: Shape) -> Opened:
        """A session of a shape that a client chose. Raises InvalidInput where the graph cannot have it."""
        for node in self.inputs:
            dims = shape[node.name].dims
            if len(dims) != len(node.shape) or any(
                isinstance(fixed, int) and fixed != size for fixed, size in zip(node.shape, dims, strict=True)
            ):
                raise InvalidInput(
                    f"input {node.name!r} has dims {shape[node.name].dims}, the model takes {node.shape}"
                )
        try:
            return self.open(shape)
        except ModelError as error:  # which has happened to no planned shape
            raise InvalidInput(f"the model cannot run {shape}") from error

    def open(self, shape: Shape) -> Opened:
        """A session of a shape; compiles its program where the store has none."""
        settings = self.blueprint.settings()
        # What comes after is for nodes on the CPU, of which there should be none: a third of a session's time.
        settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        settings.intra_op_num_threads = self.blueprint.threads or 1
        graph = self._static(shape, settings)
        if self.root is None:
            return self._counted(open_session(graph, self.blueprint, settings, str(self.path)))
        place = self.root / self.key(shape)
        if any(place.glob(f"*{PROGRAM}")):
            return self._counted(open_session(graph, self._cached(place), settings, str(self.path)))
        # The provider compiles, and then fails, where the directory is not there. It gets its name when it is whole.
        self.root.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=self.root))
        try:
            if self.apart:
                COUNTER.compiled += _compile_apart(self, shape, unfinished)
                opened = None
            else:
                opened = self._counted(open_session(graph, self._cached(unfinished), settings, str(self.path)))
            shutil.rmtree(place, ignore_errors=True)
            unfinished.rename(place)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        return opened or self._counted(open_session(graph, self._cached(place), settings, str(self.path)))

    def key(self, shape: Shape) -> str:
        """The name of a shape's directory: a digest of everything that decides which program is right."""
        switches = {
            name: value
            for name, value in os.environ.items()
            if name.startswith(_SWITCHES) and not name.startswith(_PRINTS)
        }
        facts = {
            "model": self._digest,
            "precision": self.precision,
            "options": dict(self.blueprint.options),
            "session": dict(self.blueprint.config),
            "onnxruntime": onnxruntime.__version__,
            "target": self.target,
            "switches": switches,
            "shape": shape.text,
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]

    @cached_property
    def _digest(self) -> str:
        return graph_digest(self.path)

    @cached_property
    def _device(self) -> tuple[str, int] | None:
        return device_of(self.blueprint.provider, self.blueprint.options)

    def _cached(self, directory: Path) -> Blueprint:
        options = {**self.blueprint.options, _CACHE_OPTION: str(directory)}
        return Blueprint(self.blueprint.provider, options, self.blueprint.threads, self.blueprint.config)

    def _counted(self, opened: Opened) -> Opened:
        COUNTER.compiled += opened.compiled
        return opened

    def _ready(self, opened: Opened, inputs: Mapping[str, np.ndarray]) -> _Warm:
        return _Warm(opened.session, self._device, inputs, self.outputs)

    def _static(self, shape: Shape, settings: onnxruntime.SessionOptions) -> Path | bytes:
        """The graph with the dims of ``shape``: overridden by name where each has one, else rewritten."""
        sizes: dict[str, set[int]] = {}
        nameless = False
        for node in self.inputs:
            for dim, size in zip(node.shape, shape[node.name].dims, strict=True):
                if isinstance(dim, str):
                    sizes.setdefault(dim, set()).add(size)
                else:
                    nameless = nameless or not isinstance(dim, int)
        if nameless or any(len(found) > 1 for found in sizes.values()):
            settings.add_session_config_entry(_INITIALIZERS, str(self.path.parent))
            return with_dims(self.path, shape)
        for name, (size,) in sizes.items():
            settings.add_free_dimension_override_by_name(name, size)
        return self.path


class _Warm:
    """A session of one shape, ready to run."""

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        device: tuple[str, int] | None,
        inputs: Mapping[str, np.ndarray],
        outputs: Sequence[str],
    ) -> None:
        self._session = session
        self._outputs = list(outputs)
        self._bound = Bound(session, device, inputs, self._outputs) if device else None

    def run(self, inputs: Mapping[str, np.ndarray]) -> tuple[Tensors, Times | None]:
        if self._bound is not None:
            return self._bound.run(inputs)
        results = self._session.run(self._outputs, dict(inputs), quiet())
        return dict(zip(self._outputs, results, strict=True)), None  # type: ignore[arg-type]


def _compile_apart(sessions: Sessions, shape: Shape, directory: Path) -> int:
    """Has a process compile a shape into ``directory``, and says how many programs it made. Raises ModelError."""
    job = {
        "path": str(sessions.path),
        "options": dict(sessions.blueprint.options),
        "threads": sessions.blueprint.threads,
        "config": dict(sessions.blueprint.config),
        "shape": shape.text,
        "directory": str(directory),
    }
    done = subprocess.run(
        [sys.executable, "-m", "handlers.engines.migraphx"], input=json.dumps(job), stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        reason = done.stdout.strip().splitlines()[-1:] or [f"the process ended with status {done.returncode}"]
        if done.returncode in (_UNUSABLE, -signal.SIGKILL):  # the device's or the node's fault, not the shape's
            raise Unusable(f"{shape}: {reason[0]}")
        raise ModelError(f"{sessions.path}: {shape}: {reason[0]}")
    return int(done.stdout.split()[-1])


def _compile(job: Mapping[str, Any]) -> int:
    """What that process does."""
    blueprint = Blueprint(
        "migraphx", {**job["options"], _CACHE_OPTION: job["directory"]}, job["threads"], job["config"]
    )
    described = open_session(Path(job["path"]), Blueprint("cpu", {}), plain_settings()).session
    sessions = Sessions(Path(job["path"]), blueprint, "", described.get_inputs(), (), None, "")
    return sessions.open(Shape.parse(job["shape"])).compiled


def _end_with_parent() -> None:
    """A server that is killed takes with it what it has compiled: prctl(2), PR_SET_PDEATHSIG."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


if __name__ == "__main__":
    _end_with_parent()
    try:
        print(_compile(json.load(sys.stdin)))
    except (ModelError, Unusable) as error:
        print(error)
        sys.exit(_UNUSABLE if isinstance(error, Unusable) else 1)
