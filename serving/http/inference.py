"""The requests that run a model: the Open Inference Protocol's ``infer`` and TorchServe's ``predictions``."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from typing import TypeVar

import msgspec

from handlers.errors import InvalidInput
from handlers.handler import Tensors
from handlers.spec import TensorSpec
from serving.declared import as_declared
from serving.http import multipart, oip
from serving.http.answers import EXPECTED, Answer, failure, plain
from serving.http.bodies import APART_BYTES
from serving.http.oip_answers import encode
from serving.http.request import BodyLimits, Headers, Request
from serving.http.sharedmemory import Copy, Regions, allowed
from serving.lanes.job import ExecutionFailed, Job, QueueFull
from serving.metrics.recorder import Sample
from serving.model import ServedModel

log = logging.getLogger("preheat.http")

T = TypeVar("T")


class Endpoint:
    """Answers the inference requests of one model, and records how each went."""

    def __init__(self, model: ServedModel, executor: Executor, regions: Regions | None = None) -> None:
        """``regions``: memory that clients share; None where they may not."""
        self.model = model
        self._executor = executor
        self._regions = regions
        self._dtypes: dict[str, str] = {}
        self._outputs: tuple[TensorSpec, ...] | None = None
        self._decode = oip.Decoder(model.spec.inputs).decode
        self._preparing = 0

    def limits(self, request: Request) -> BodyLimits:
        """What this model takes as a body. The tensors of a binary request begin behind its JSON."""
        limits = self.model.spec.limits
        try:
            length = oip.parse_header_length(request.headers.get(oip.HEADER_LENGTH))
        except InvalidInput:  # the request will learn that once it is read
            length = None
        if length is None:
            return BodyLimits(limits.request_bytes, limits.timeout_s)
        return BodyLimits(limits.request_bytes, limits.timeout_s, length, self.model.room)

    def infer(self, request: Request) -> None:
        """``POST /v2/models/{model}[/versions/{version}]/infer``: answered when the lane is through with it.

        Callbacks instead of a coroutine: a task and a future for each request would cost as much as its JSON.
        """
        started = time.perf_counter()
        try:
            asked = self._read(request)
            if asked.places:
                self._share(request, asked, started)
            else:
                self._submit(request, asked, started)
        except Exception as error:
            self._fail(request, "oip", error, started)

    def _submit(self, request: Request, asked: oip.InferRequest, started: float) -> None:
        self.model.handler.check(asked.inputs)
        decoded = time.perf_counter()
        self.model.submit(asked.inputs, request.gone, partial(self._settle, request, asked, started, decoded))

    def _read(self, request: Request) -> oip.InferRequest:
        model = self.model
        if self._outputs is not model.outputs:  # known once the engine is loaded
            self._outputs = model.outputs
            self._dtypes = {output.name: output.dtype for output in model.outputs if output.dtype == "bf16"}
            self._decode = oip.Decoder(model.spec.inputs, model.outputs).decode
        body = request.read()
        return self._decode(body, oip.parse_header_length(request.headers.get(oip.HEADER_LENGTH)))

    def _share(self, request: Request, asked: oip.InferRequest, started: float) -> None:
        """Has a request run some of whose tensors are in shared memory. What takes long to copy is copied on another
        thread. Raises InvalidInput where there is no such memory for this client."""
        regions = allowed(self._regions, request.local)
        write = regions.writer(asked)
        inputs, copies = regions.inputs(self.model, asked)
        asked = msgspec.structs.replace(asked, inputs=inputs, write=write)
        submit = partial(self._submit, request, asked, started)
        if sum(copy.size for copy in copies) < APART_BYTES:
            _make(copies)
            submit()
        else:
            self._apart(request, started, partial(_make, copies), lambda made: submit())

    def _apart(self, request: Request, started: float, work: Callable[[], T], then: Callable[[T], None]) -> None:
        """Does ``work`` on another thread, and ``then`` the rest with what it gave. What either raises is answered."""
        loop = asyncio.get_running_loop()

        def done(future: Future[T]) -> None:
            try:
                then(future.result())
            except Exception as error:
                self._fail(request, "oip", error, started)

        self._executor.submit(work).add_done_callback(partial(loop.call_soon_threadsafe, done))

    def _settle(
        self,
        request: Request,
        asked: oip.InferRequest,
        started: float,
        decoded: float,
        job: Job,
        outcome: Tensors | Exception,
    ) -> None:
        try:
            if isinstance(outcome, Exception):
                raise outcome
            settled = time.perf_counter()
            making = partial(encode, self.model.name, self.model.version, asked, outcome, self._dtypes)
            respond = partial(self._respond, request, job, started, decoded, settled)
            if asked.write is not None and sum(array.nbytes for array in outcome.values()) >= APART_BYTES:
                self._apart(request, started, making, respond)
            else:
                respond(making())
        except Exception as error:
            self._fail(request, "oip", error, started)

    def _respond(
        self, request: Request, job: Job, started: float, decoded: float, settled: float, answer: tuple[bytes, Headers]
    ) -> None:
        ended = time.perf_counter()
        self._record("oip", 200, ended - started, job, _stages(job, decoded - started, 0.0, 0.0, ended - settled))
        text, headers = answer
        request.respond(200, headers, text)

    async def predict(self, request: Request) -> None:
        """``POST`` or ``PUT /predictions/{model}[/{version}]``."""
        started = time.perf_counter()
        try:
            answer, job, stages = await self._predict(request, started)
        except Exception as error:
            self._fail(request, "torchserve", error, started)
            return
        self._record("torchserve", answer.status, time.perf_counter() - started, job, stages)
        request.respond(answer.status, answer.headers, answer.body)

    def _fail(self, request: Request, protocol: str, error: Exception, started: float) -> None:
        if not isinstance(error, EXPECTED):  # of ours or of a handler: the client learns that, the log learns why
            log.error("model %s: request failed", self.model.name, exc_info=error)
            error = ExecutionFailed(f"model {self.model.name!r} failed")
        answer = failure(error, protocol)
        self._record(protocol, answer.status, time.perf_counter() - started, None, None)
        request.respond(answer.status, answer.headers, answer.body)

    async def _predict(self, asked: Request, started: float) -> tuple[Answer, Job, tuple[float, ...]]:
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
            useful = sum([array.size for array in job.inputs.values()])
            sample = Sample(protocol, code, seconds, job.outcome, self.model.label(job), stages, useful, job.padding)
        self.model.recorder.add(sample)


def _make(copies: Sequence[Copy]) -> None:
    for copy in copies:
        copy.make()


def _stages(job: Job, decode: float, preprocess: float, postprocess: float, encode: float) -> tuple[float, ...]:
    queue, copy, execute = job.started - job.submitted, job.copied - job.started, job.executed - job.copied
    return decode, preprocess, queue, copy, execute, postprocess, encode
