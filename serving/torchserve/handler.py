"""The TorchServe handler of Preheat's archives: its worker is ready when every proven shape has been replayed.

    from serving.torchserve.handler import PreheatHandler

    class Handler(PreheatHandler):
        pass

is the whole ``handler`` file of an archive (``preheat archive`` makes it); TorchServe takes the one class that the file
defines. Written against TorchServe 0.12, ts/torch_handler/base_handler.py.
"""

from __future__ import annotations

import contextlib
import http
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ts.torch_handler.base_handler import BaseHandler

from handlers.errors import InvalidInput, ModelError
from handlers.handler import Tensors
from serving.declared import as_declared
from serving.http.answers import EXPECTED, Answer, failure, plain
from serving.lanes.job import ExecutionFailed
from serving.lanes.warmset import Outcome
from serving.prepare import BundleMismatch, DamagedStore, Prepared
from serving.scratch import scratch
from serving.torchserve import metrics
from serving.torchserve.metrics import Counts
from serving.torchserve.request import payload
from serving.torchserve.restore import SettingsTooLate, restore
from serving.torchserve.session import NotWarm, Ran, Session
from serving.torchserve.settings import read_settings
from warmup.bundle.files import BundleError

log = logging.getLogger("preheat.torchserve")

_REFUSALS = (ModelError, BundleError, BundleMismatch, DamagedStore, SettingsTooLate, NotWarm)


class Refused(RuntimeError):
    """The worker must not start. TorchServe tells a RuntimeError of a load from a crash of the worker."""


@dataclass(frozen=True)
class _Asked:
    """One request of a batch after preprocessing: its tensors, or the answer that it has already."""

    inputs: Tensors | None
    context: Any = None
    answer: Answer | None = None


class PreheatHandler(BaseHandler):
    """Serves the model that the archive holds, from the bundle that ``model-config.yaml`` names."""

    def initialize(self, context: Any) -> None:
        """Restores and checks the bundle, sets the serving phase's environment, and replays every proven shape.

        Raises Refused, with every field that differs in the log, where the model must not be served from here.
        """
        self.context = context
        self.manifest = context.manifest
        self.model_yaml_config = context.model_yaml_config
        described = context.manifest["model"]
        name, version = described["modelName"], str(described.get("modelVersion", ""))
        self._counts = Counts(context.metrics, name, version)
        self._kept = contextlib.ExitStack()
        try:
            self._session = self._start(context)
        except _REFUSALS as error:
            self._kept.close()
            if isinstance(error, BundleMismatch):
                for field in error.differences:
                    self._counts.add(metrics.DIFFERENCE, 1, field.field, field.expected, field.found)
            log.error("model %s is not served: %s", name, error)
            raise Refused(str(error)) from None
        self.model = self._session
        self._report()
        self.initialized = True

    def _start(self, context: Any) -> Session:
        properties = context.system_properties
        settings = read_settings(context.model_yaml_config)
        place = self._kept.enter_context(scratch())
        prepared = restore(Path(properties["model_dir"]), settings, place)
        session = Session(prepared, _device(prepared, properties.get("gpu_id")))
        self._kept.callback(session.close)
        session.start()
        return session

    def preprocess(self, data: Sequence[Mapping[str, Any]]) -> list[_Asked]:
        """Each request's tensors; one that cannot be taken has its answer now, and the others go on."""
        started = time.perf_counter()
        asked = [self._ask(index, entries) for index, entries in enumerate(data)]
        self._stage("preprocess", time.perf_counter() - started)
        return asked

    def _ask(self, index: int, entries: Mapping[str, Any]) -> _Asked:
        session = self._session
        try:
            body = payload(entries, self.context.get_all_request_header(index), session.spec.limits.request_bytes)
            prepared = session.handler.preprocess(body)
            return _Asked(as_declared(session.spec, prepared.inputs), prepared.context)
        except Exception as error:
            return _Asked(None, answer=self._failure(error))

    def inference(self, data: Sequence[_Asked], *args: Any, **kwargs: Any) -> list[tuple[_Asked, Ran | None]]:
        """Runs what has tensors, in batches of planned sizes."""
        ran = iter(self._session.run([asked.inputs for asked in data if asked.inputs is not None]))
        return [(asked, next(ran) if asked.inputs is not None else None) for asked in data]

    def postprocess(self, data: Sequence[tuple[_Asked, Ran | None]]) -> list[bytes]:
        """The bodies of the answers; status codes and content types are left in the context."""
        started = time.perf_counter()
        answers = [self._answer(asked, ran) for asked, ran in data]
        self._stage("postprocess", time.perf_counter() - started)
        self._count([answer.status for answer in answers], [ran for _, ran in data if ran is not None])
        return self._send(answers)

    def _answer(self, asked: _Asked, ran: Ran | None) -> Answer:
        if asked.answer is not None:
            return asked.answer
        assert ran is not None
        if isinstance(ran.result, Exception):
            return self._failure(ran.result)
        try:
            return plain(self._session.handler.postprocess(ran.result, asked.context))
        except Exception as error:
            return self._failure(error)

    def _failure(self, error: Exception) -> Answer:
        """In the words of Preheat's own server; a fault of the handler is told to the log alone."""
        if isinstance(error, EXPECTED):
            return failure(error, "torchserve")
        name = self._session.spec.name
        log.error("model %s: request failed", name, exc_info=error)
        return failure(ExecutionFailed(f"model {name!r} failed"), "torchserve")

    def _send(self, answers: Sequence[Answer]) -> list[bytes]:
        for index, answer in enumerate(answers):
            self.context.set_response_status(answer.status, http.HTTPStatus(answer.status).phrase, index)
            for name, value in answer.headers:
                self.context.set_response_header(index, name, value)
        return [answer.body for answer in answers]

    def explain_handle(self, data_preprocess: Sequence[_Asked], raw_data: Sequence[Any]) -> list[bytes]:
        """``/explanations`` asks for what no handler of Preheat's has."""
        answers = [self._failure(InvalidInput("explanations are not served"))] * len(raw_data)
        self._count([answer.status for answer in answers], [])
        return self._send(answers)

    def describe_handle(self) -> dict[str, Any]:
        """What ``GET /models/{model}/{version}?customized=true`` shows.

        That is the bundle, what is warm of the plan, and how many entries the stores have got since.
        """
        session = self._session
        proven = {proof.shape for proof in session.proof.proven()} if session.proof else set()
        return {
            "bundle": session.bundle.digest if session.bundle else "",
            "trusted": session.bundle.trusted if session.bundle else "",
            "cold": session.spec.cold,
            "coverage": session.coverage,
            "warmup_seconds": session.warmup_seconds,
            "new_entries": session.new_entries(),
            "shapes": [
                {
                    "shape": planned.shape.text,
                    "weight": planned.weight,
                    "proven": planned.shape in proven,
                    "warm": planned.shape in session.warm,
                    "note": session.notes.get(planned.shape, ""),
                }
                for planned in session.plan
            ],
        }

    def _report(self) -> None:
        """What is known from the start on. Outcomes start at 0: a rate over a series that is not there is no data."""
        session, counts = self._session, self._counts
        for outcome in Outcome:
            counts.add(metrics.LOOKUPS, 0, outcome.value)
        states = {
            "planned": len(session.plan),
            "proven": len(session.proof.proven()) if session.proof else 0,
            "warm": len(session.warm),
            "fallback": len(session.notes),
        }
        for state, count in states.items():
            counts.add(metrics.SHAPES, count, state)
        counts.add(metrics.WARMUP_SECONDS, session.warmup_seconds, "replay")
        if session.bundle is not None:
            counts.add(metrics.BUNDLE_INFO, 1, session.bundle.digest.removeprefix("sha256:"))
        log.info("warm: %d of %d shapes in %.1f s", len(session.warm), len(session.plan), session.warmup_seconds)

    def _count(self, codes: Sequence[int], ran: Sequence[Ran]) -> None:
        counts = self._counts
        counts.requests(codes)
        counts.lookups(one.outcome.value for one in ran)
        for one in ran:
            if one.first_call:
                counts.add(metrics.COLD_SECONDS, one.first_call, "first_call")
        for execution in self._session.executions if ran else ():
            counts.add(metrics.BATCH_SIZE, execution.rows)
            self._stage("copy", execution.copy)
            self._stage("execute", execution.execute)

    def _stage(self, stage: str, seconds: float) -> None:
        self._counts.add(metrics.STAGE_SECONDS, round(seconds, 7), stage)


def _device(prepared: Prepared, gpu: int | None) -> dict[str, str]:
    """The engine's options for the accelerator that TorchServe gave this worker, or for none.

    Raises ModelError where the worker sees others too: what was proven is one process that sees one accelerator.
    """
    import torch

    seen = torch.cuda.device_count()
    if gpu is not None and seen > 1:
        raise ModelError(
            f"this worker sees {seen} accelerators; model-config.yaml: parallelType: custom and parallelLevel: 1 have "
            "TorchServe show each worker its own alone"
        )
    proven_on = prepared.bundle.identity.get("gpu_arch") if prepared.bundle else None
    if gpu is None and proven_on:
        raise ModelError(f"the bundle was proven on {proven_on}, and TorchServe gave this worker no accelerator")
    return {"torch.device": "cpu"} if gpu is None else {}
