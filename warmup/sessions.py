"""Sessions of ONNX Runtime to look into: on one provider and no other, unoptimised or profiled.

What serves is ``handlers.engines.onnx``; this is for comparing, measuring and counting what it does.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors  # type: ignore[attr-defined]

from handlers.engines.onnx import PROVIDERS

# ONNX Runtime's exceptions share no base class of their own.
ERRORS: tuple[type[Exception], ...] = (
    RuntimeError,
    ValueError,
    *(
        value
        for name, value in vars(ort_errors).items()
        if name[:1].isupper() and isinstance(value, type) and issubclass(value, Exception)
    ),
)
# Where the initialisers are that a graph given as bytes keeps in files of their own
# (onnxruntime_session_options_config_keys.h).
_INITIALIZERS = "session.model_external_initializers_file_folder_path"


class CannotOpen(Exception):
    """A provider that cannot be had here, or a graph that it does not take; the message says why, in one line."""


@dataclass(frozen=True)
class Wanted:
    """On which provider a session is to be (``cpu``, ``rocm``, ...), with which of its options, on how many threads (0:
    ONNX Runtime's choice), and whether graphs are optimised."""

    provider: str = "cpu"
    options: Mapping[str, str] | None = None
    threads: int = 0
    optimise: bool = True


def open_session(
    graph: Path | bytes, wanted: Wanted, *, beside: Path | None = None, profile: Path | None = None
) -> onnxruntime.InferenceSession:
    """A session of a file, or of a graph in memory whose weights' files are in the folder ``beside``.

    With ``profile``, ONNX Runtime's profile goes to files that begin so. Raises CannotOpen: never another provider.
    """
    name = PROVIDERS[wanted.provider]
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    settings.intra_op_num_threads = wanted.threads
    if not wanted.optimise:
        settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if beside is not None:
        settings.add_session_config_entry(_INITIALIZERS, str(beside))
    if profile is not None:
        settings.enable_profiling = True
        settings.profile_file_prefix = str(profile)
    if name not in onnxruntime.get_available_providers():
        raise CannotOpen(f"{wanted.provider}: onnxruntime {onnxruntime.__version__} was built without {name}")
    try:
        session = onnxruntime.InferenceSession(
            graph if isinstance(graph, bytes) else str(graph),
            settings,
            providers=[name],
            provider_options=[dict(wanted.options or {})],
            enable_fallback=0,
        )
    except ERRORS as error:
        raise CannotOpen(f"{wanted.provider}: {first_line(error)}") from error
    if session.get_providers()[0] != name:
        raise CannotOpen(f"{wanted.provider}: the session was made with {', '.join(session.get_providers())} instead")
    return session


def profiled(session: onnxruntime.InferenceSession) -> Sequence[Mapping[str, Any]]:
    """Ends a session's profiling and gives its events, in the Chrome trace format: ``ts`` and ``dur`` in microseconds,
    ``cat`` is ``Session`` or ``Node``."""
    path = Path(session.end_profiling())
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    finally:
        path.unlink()


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A directory for profiles."""
    return tempfile.TemporaryDirectory(prefix="preheat-session-")


def first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]
