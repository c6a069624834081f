"""The requests that run a model: the Open Inference Protocol's ``infer`` and TorchServe's ``predictions``."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Any

from serving.declared import as_declared
from serving.http import multipart, oip
from serving.http.answers import EXPECTED, Answer, failure, plain
from serving.http.request import BodyLimits, Request
from serving.lanes.job import ExecutionFailed, Job, QueueFull
from serving.metrics.recorder import Sample
from serving.model import ServedModel

log = logging.getLogger("preheat.http")


class Endpoint:
    """Answers the inference requests of one model, and records how each went."""

    def __init__(self, model: ServedModel, executor: Executor) -> None:
        self.model = model
        self._executor = executor
        self._dtypes: dict[str, str] = {}
        self._outputs: tuple[Any, ...] = ()
        self._preparing = 0

    def limits(self, request: Request) -> BodyLimits:
        """What this model takes as a body. The tensors of a binary request begin behind its JSON."""
        limits = self.model.spec.limits
        text = request.headers.get(oip.HEADER_LENGTH, "")
        aligned = int(text) if text.isdecimal() and len(text) < 10 else 0
        return BodyLimits(limits.request_bytes, limits.timeout_s, aligned, self.model.room if text else None)

    async def infer(self, request: Request) -> None:
        """``POST /v2/models/{model}[/versions/{version}]/infer``."""
        await self._answer(request, "oip", self._infer)

    async def predict(self, request: Request) -> None:
        """``POST`` or ``PUT /predictions/{model}[/{version}]``."""
        await self._answer(request, "torchserve", self._predict)

    async def _answer(self, request: Request, name: str, run: Callable[..., Awaitable[Any]]) -> None:
        started = time.perf_counter()
        job: Job | None = None
        stages: tuple[float, ...] | None = None
        try:
            answer, job, stages = await run(request, started)
        except EXPECTED as error:
            answer = failure(error, name)
        except Exception:  # a fault of ours or of a handler: the client learns that, the log learns why
            log.exception("model %s: request failed", self.model.name)
            answer = failure(ExecutionFailed(f"model {self.model.name!r} failed"), name)
        self._record(name, answer.status, time.perf_counter() - started, job, stages)
        request.respond(answer.status, answer.headers, answer.body)

    async def _infer(self, asked: Request, started: float) -> tuple[Answer, Job, Any]:
        model = self.model
        if self._outputs is not model.outputs:  # known once the engine is loaded
            self._outputs = model.outputs
            self._dtypes = {output.name: output.dtype for output in model.outputs if output.dtype == "bf16"}
        body = asked.read()
        length = oip.parse_header_length(asked.headers.get(oip.HEADER_LENGTH))
        request = oip.decode(body, length, model.spec.inputs, model.outputs)
        model.handler.check(request.inputs)
        decoded = time.perf_counter()
        outputs, job = await model.infer(request.inputs, asked.gone)
        settled = time.perf_counter()
        text, headers = oip.encode(model.name, model.version, request, outputs, self._dtypes)
        encoded = time.perf_counter() - settled
        return Answer(200, text, headers), job, _stages(job, decoded - started, 0.0, 0.0, encoded)

    async def _predict(self, asked: Request, started: float) -> tuple[Answer, Job, Any]:
        body = bytes(asked.read())
        loop = asyncio.get_running_loop()
        handler = self.model.handler
        if self._preparing >= self.model.spec.batching.queue:
            self.model.recorder.rejected("queue_full")
            raise QueueFull(f"{self._preparing} requests for {self.model.name!r} wait for their preprocessing")
        request = multipart.payload(body, asked.headers.get("content-type") or "application/octet-stream")
        decoded = time.perf_counter()
        self._preparing += 1
        try:
            prepared = await loop.run_in_executor(self._executor, handler.preprocess, request)
        finally:
            self._preparing -= 1
        ready = time.perf_counter()
        outputs, job = await self.model.infer(as_declared(self.model.spec, prepared.inputs), asked.gone)
        settled = time.perf_counter()
        result = await loop.run_in_executor(self._executor, handler.postprocess, outputs, prepared.context)
        processed = time.perf_counter()
        answer = plain(result)
        encoded = time.perf_counter() - processed
        stages = _stages(job, decoded - started, ready - decoded, processed - settled, encoded)
        return answer, job, stages

    def _record(
        self, protocol: str, code: int, seconds: float, job: Job | None, stages: tuple[float, ...] | None
    ) -> None:
        if job is None:
            sample = Sample(protocol, code, seconds, None, "", None, 0, 0)
        else:
            useful = sum(array.size for array in job.inputs.values())
            sample = Sample(protocol, code, seconds, job.outcome, self.model.label(job), stages, useful, job.padding)
        self.model.recorder.add(sample)


def _stages(job: Job, decode: float, preprocess: float, postprocess: float, encode: float) -> tuple[float, ...]:
    queue, copy, execute = job.started - job.submitted, job.copied - job.started, job.executed - job.copied
    return decode, preprocess, queue, copy, execute, postprocess, encode
