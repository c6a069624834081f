"""One session of ONNX Runtime on one provider, or an error: never on another provider than was asked for."""

from __future__ import annotations

import contextlib
import io
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors  # type: ignore[attr-defined]

from handlers.engine_spec import EngineSpec
from handlers.engines.overheard import overheard
from handlers.engines.placement import Placement, placement
from handlers.engines.providers import PROVIDERS, SESSION, Unusable
from handlers.errors import ModelError

# ONNX Runtime's exceptions share no base class of their own, and the set differs between versions.
ERRORS: tuple[type[Exception], ...] = tuple(
    value
    for name, value in vars(ort_errors).items()
    if name[:1].isupper() and isinstance(value, type) and issubclass(value, Exception)
)
# What InferenceSession prints on standard output when it goes on with the CPU; some builds cannot be told not to.
_FELL_BACK = re.compile(r"EP Error:? (.*?)(?: when using |\nFalling back|$)", re.S)
# The end of an error's long way through the source files, which is what a reader needs.
_CORE = re.compile(
    r"(Failed to parse provider option .*|Unknown provider option.*|HIP failure \d+: [^;\n]*|Invalid dev.*)"
)
_VERBOSE, _ERRORS_ONLY = 0, 3
_stdout = threading.Lock()  # there is one standard output for all threads, and it is exchanged for a while
COMPILE = "Model Compile: Begin"  # migraphx_execution_provider.cc, a warning for every program that it compiles


@dataclass(frozen=True)
class Opened:
    """A session, where its nodes are, and how many programs MIGraphX compiled while it was made."""

    session: onnxruntime.InferenceSession
    placed: Placement
    compiled: int = 0


@dataclass(frozen=True)
class Blueprint:
    """How the sessions of one model are made: on which provider, with which of its options, on how many threads (0:
    ONNX Runtime's choice), and with which entries of the session's own configuration."""

    provider: str
    options: Mapping[str, str]
    threads: int = 0
    config: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, engine: EngineSpec, provider: str, options: Mapping[str, str]) -> Blueprint:
        return cls(provider, options, engine.threads, engine.options.get(SESSION, {}))

    def settings(self) -> onnxruntime.SessionOptions:
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = self.threads
        for key, value in self.config.items():
            settings.add_session_config_entry(key, value)
        return settings


def plain_settings() -> onnxruntime.SessionOptions:
    """For a session that only says what a graph takes, and how many nodes a provider gets to see."""
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    return settings


def quiet() -> onnxruntime.RunOptions:
    """For executions: a session that was made with its log turned on would go on talking."""
    options = onnxruntime.RunOptions()
    options.log_severity_level = _ERRORS_ONLY
    return options


def open_session(
    graph: Path | bytes,
    blueprint: Blueprint,
    settings: onnxruntime.SessionOptions,
    name: str | None = None,
    details: bool = False,
) -> Opened:
    """Makes a session of a file, or of a graph in memory; ``name`` is what errors call it. With ``details``, a session
    on the CPU says how many nodes it has, as others always do.

    Raises Unusable where the provider does not work here, ModelError where the graph is at fault.
    """
    provider = PROVIDERS[blueprint.provider]
    name = name or str(graph)
    source = graph if isinstance(graph, bytes) else str(graph)
    said = io.StringIO()

    def make() -> onnxruntime.InferenceSession:
        with _stdout, contextlib.redirect_stdout(said):
            return onnxruntime.InferenceSession(
                source, settings, providers=[provider], provider_options=[dict(blueprint.options)], enable_fallback=0
            )

    lines: list[str] = []
    try:
        if blueprint.provider == "cpu" and not details:
            settings.log_severity_level = _ERRORS_ONLY  # a graph saved for this very machine is meant, and no warning
            session = make()
        else:
            settings.log_severity_level = _VERBOSE
            with overheard() as lines:
                session = make()
    except (ValueError, RuntimeError) as error:  # a provider that cannot be set up, or an option that it does not know
        raise Unusable(core(str(error))) from error
    except ERRORS as error:
        raise ModelError(f"{name}: {str(error).strip()}") from error
    fell_back = _FELL_BACK.search(said.getvalue())
    if fell_back:
        raise Unusable(core(fell_back[1]))
    got = session.get_providers()
    if got[0] != provider:
        raise Unusable(f"the session was made with {', '.join(got)} instead of {provider}")
    session.disable_fallback()  # of executions that fail
    return Opened(session, placement(lines, provider), sum(COMPILE in line for line in lines))


def core(text: str) -> str:
    """What is wrong, in one line, of an error that names the functions that it went through."""
    found = _CORE.search(text)
    return (found[1] if found else text.strip().split("\n", 1)[0]).strip()
