"""The requests that run a model: the Open Inference Protocol's ``infer`` and TorchServe's ``predictions``."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Any

import orjson

from handlers.handler import Tensors
from handlers.shapes import Shape
from handlers.spec import ModelSpec
from serving.http import body as request_body
from serving.http import multipart, oip
from serving.http.answers import CLIENT_GONE, EXPECTED, JSON, Answer, failure
from serving.lanes.job import ExecutionFailed, Job, QueueFull
from serving.metrics.recorder import Sample
from serving.model import ServedModel
from warmup.plan import mismatch

log = logging.getLogger("preheat.http")

Watch = Callable[[], Awaitable[None]]


class Endpoint:
    """Answers the inference requests of one model, and records how each went."""

    def __init__(self, model: ServedModel, executor: Executor) -> None:
        self.model = model
        self._executor = executor
        self._dtypes: dict[str, str] = {}
        self._outputs: tuple[Any, ...] = ()
        self._preparing = 0

    async def infer(self, scope: Any, protocol: Any) -> None:
        """``POST /v2/models/{model}[/versions/{version}]/infer``."""
        await self._answer(scope, protocol, "oip", self._infer)

    async def predict(self, scope: Any, protocol: Any) -> None:
        """``POST`` or ``PUT /predictions/{model}[/{version}]``."""
        await self._answer(scope, protocol, "torchserve", self._predict)

    async def _answer(self, scope: Any, protocol: Any, name: str, run: Callable[..., Awaitable[Any]]) -> None:
        started = time.perf_counter()
        limits = self.model.spec.limits
        job: Job | None = None
        stages: tuple[float, ...] | None = None
        try:
            pieces = name == "oip" and scope.headers.get(oip.HEADER_LENGTH) is not None
            payload = await request_body.read_within(limits.timeout_s, scope, protocol, limits.request_bytes, pieces)
            started = time.perf_counter()
            answer, job, stages = await run(scope, payload, protocol.client_disconnect, started)
        except EXPECTED as error:
            answer = failure(error, name)
        except asyncio.CancelledError:
            self._record(name, CLIENT_GONE, time.perf_counter() - started, None, None)
            raise
        except Exception:  # a fault of ours or of a handler: the client learns that, the log learns why
            log.exception("model %s: request failed", self.model.name)
            answer = failure(ExecutionFailed(f"model {self.model.name!r} failed"), name)
        self._record(name, answer.status, time.perf_counter() - started, job, stages)
        if answer.status != CLIENT_GONE:
            protocol.response_bytes(answer.status, answer.headers, answer.body)

    async def _infer(
        self, scope: Any, payload: bytes | memoryview, gone: Watch, started: float
    ) -> tuple[Answer, Job, Any]:
        model = self.model
        if self._outputs is not model.outputs:  # known once the engine is loaded
            self._outputs = model.outputs
            self._dtypes = {output.name: output.dtype for output in model.outputs if output.dtype == "bf16"}
        length = oip.parse_header_length(scope.headers.get(oip.HEADER_LENGTH))
        request = oip.decode(payload, length, model.spec.inputs, model.outputs)
        model.handler.check(request.inputs)
        decoded = time.perf_counter()
        outputs, job = await model.infer(request.inputs, gone)
        settled = time.perf_counter()
        text, headers = oip.encode(model.name, model.version, request, outputs, self._dtypes)
        encoded = time.perf_counter() - settled
        return Answer(200, text, list(headers)), job, _stages(job, decoded - started, 0.0, 0.0, encoded)

    async def _predict(self, scope: Any, payload: bytes, gone: Watch, started: float) -> tuple[Answer, Job, Any]:
        loop = asyncio.get_running_loop()
        handler = self.model.handler
        if self._preparing >= self.model.spec.batching.queue:
            self.model.recorder.rejected("queue_full")
            raise QueueFull(f"{self._preparing} requests for {self.model.name!r} wait for their preprocessing")
        request = multipart.payload(payload, scope.headers.get("content-type") or "application/octet-stream")
        decoded = time.perf_counter()
        self._preparing += 1
        try:
            prepared = await loop.run_in_executor(self._executor, handler.preprocess, request)
        finally:
            self._preparing -= 1
        ready = time.perf_counter()
        outputs, job = await self.model.infer(_as_declared(self.model.spec, prepared.inputs), gone)
        settled = time.perf_counter()
        result = await loop.run_in_executor(self._executor, handler.postprocess, outputs, prepared.context)
        processed = time.perf_counter()
        answer = _plain(result)
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


class HandlerFault(Exception):
    """A handler made tensors that its model does not take; the client is not to blame (HTTP 500)."""


def _as_declared(spec: ModelSpec, inputs: Tensors) -> Tensors:
    """A handler's tensors in the model's order; raises HandlerFault on what the model does not take."""
    missing = {tensor.name for tensor in spec.inputs} ^ inputs.keys()
    if missing:
        raise HandlerFault(f"the handler of {spec.name!r} and its model disagree on {', '.join(sorted(missing))}")
    ordered = {tensor.name: inputs[tensor.name] for tensor in spec.inputs}
    dtypes = {tensor.name: tensor.dtype for tensor in spec.inputs if tensor.dtype == "bf16"}
    problem = mismatch(spec, Shape.of(ordered, dtypes))
    if problem:
        raise HandlerFault(f"the handler of {spec.name!r}: {problem}")
    return ordered


def _stages(job: Job, decode: float, preprocess: float, postprocess: float, encode: float) -> tuple[float, ...]:
    queue, copy, execute = job.started - job.submitted, job.copied - job.started, job.executed - job.copied
    return decode, preprocess, queue, copy, execute, postprocess, encode


def _plain(result: Any) -> Answer:
    """A handler's result as a body: bytes and text as they are, anything else as JSON."""
    if isinstance(result, (bytes, bytearray, memoryview)):
        return Answer(200, bytes(result), [("content-type", "application/octet-stream")])
    if isinstance(result, str):
        return Answer(200, result.encode(), [("content-type", "text/plain; charset=utf-8")])
    return Answer(200, orjson.dumps(result, option=orjson.OPT_SERIALIZE_NUMPY), JSON)
