"""Sessions of ONNX Runtime to look into: unoptimised, profiled, or of a part of a graph.

What serves is ``handlers.engines.onnx``; this is for comparing, measuring and counting what it does.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from handlers.engines import session as sessions
from handlers.engines.onnxgraph import with_dims
from handlers.engines.overheard import overheard
from handlers.engines.providers import Unavailable, Unusable, check_available
from handlers.errors import ModelError
from handlers.handler import Tensors
from handlers.shapes import Shape
from handlers.spec import ModelSpec

# Where the initialisers are that a graph given as bytes keeps in files of their own
# (onnxruntime_session_options_config_keys.h).
_INITIALIZERS = "session.model_external_initializers_file_folder_path"


class CannotOpen(Exception):
    """A provider that cannot be had here, or a graph that it does not run; the message says why, in one line."""


@dataclass(frozen=True)
class Wanted:
    """On which provider a session is to be (``cpu``, ``rocm``, ...), with which of its options, on how many threads (0:
    ONNX Runtime's choice), and whether graphs are optimised."""

    provider: str = "cpu"
    options: Mapping[str, str] = field(default_factory=dict)
    threads: int = 0
    optimise: bool = True


def wanted_for(spec: ModelSpec, provider: str) -> Wanted:
    """How a model's engine runs its graph on a provider."""
    options = dict(spec.engine.options.get(provider, {}))
    if provider == "migraphx" and spec.engine.precision != "fp32":
        options.setdefault(f"migraphx_{spec.engine.precision}_enable", "1")
    return Wanted(provider, options, spec.engine.threads)


def open_session(
    graph: Path | bytes, wanted: Wanted, *, beside: Path | None = None, profile: Path | None = None
) -> onnxruntime.InferenceSession:
    """A session of a file, or of a graph in memory whose weights' files are in the folder ``beside``.

    With ``profile``, ONNX Runtime's profile goes to files that begin so. Raises CannotOpen: never another provider.
    """
    config = {_INITIALIZERS: str(beside)} if beside is not None else {}
    blueprint = sessions.Blueprint(wanted.provider, wanted.options, wanted.threads, config)
    settings = blueprint.settings()
    if not wanted.optimise:
        settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if profile is not None:
        settings.enable_profiling = True
        settings.profile_file_prefix = str(profile)
    try:
        check_available(wanted.provider)
        return sessions.open_session(graph, blueprint, settings, "the graph").session
    except (Unavailable, Unusable, ModelError) as error:
        raise CannotOpen(f"{wanted.provider}: {_first_line(error)}") from error


def open_for(path: Path, shape: Shape, wanted: Wanted, profile: Path) -> onnxruntime.InferenceSession:
    """A profiled session for one shape: MIGraphX gets a graph with these dims, for which it compiles once."""
    if wanted.provider == "migraphx":
        return open_session(with_dims(path, shape), wanted, beside=path.parent, profile=profile)
    return open_session(path, wanted, profile=profile)


def run(session: onnxruntime.InferenceSession, names: Sequence[str], inputs: Mapping[str, np.ndarray]) -> Tensors:
    """The named outputs. Raises CannotOpen where the graph does not take these inputs."""
    try:
        results = session.run(list(names), dict(inputs), sessions.quiet())
    except (*sessions.ERRORS, ValueError, RuntimeError) as error:
        raise CannotOpen(_first_line(error)) from error
    return dict(zip(names, results, strict=True))  # type: ignore[arg-type]


def profiled(session: onnxruntime.InferenceSession) -> Sequence[Mapping[str, Any]]:
    """Ends a session's profiling and gives its events, in the Chrome trace format: ``ts`` and ``dur`` in microseconds,
    ``cat`` is ``Session`` or ``Node``."""
    with overheard():  # a session whose nodes' places were listened for talks of this too
        path = Path(session.end_profiling())
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    finally:
        path.unlink()


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A directory for profiles."""
    return tempfile.TemporaryDirectory(prefix="preheat-session-")


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]
