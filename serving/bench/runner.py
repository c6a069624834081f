"""One run of load from beginning to end: what to ask for, the load itself, and the server's counters around it."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import uvloop

from handlers.shapes import Shape
from serving.bench.client import Answer, ClientError, Target
from serving.bench.exposition import ExpositionError, Lookups, lookups
from serving.bench.load import Sample, Tick, closed_loop, open_loop, poisson
from serving.bench.machine import command_line, this_machine
from serving.bench.result import BenchResult
from serving.bench.sharedmemory import SharedExamples, shared_examples
from serving.bench.traffic import (
    Ask,
    Encoding,
    TrafficError,
    WeightedShapes,
    examples,
    file_asks,
    of_batch,
    sequence,
    tensor_asks,
)


class BenchError(Exception):
    """A run that could not be made: no server, no such model, nothing to send."""


def run(
    url: str,
    model: str,
    *,
    requests: int = 600,
    concurrency: int = 8,
    rate: float | None = None,
    first: int = 300,
    shapes: WeightedShapes | None = None,
    batch: int | None = None,
    images: Sequence[Path] = (),
    encoding: Encoding = "binary",
    seed: int = 0,
    timeout: float = 120.0,
    label: str = "",
    tick: Tick = lambda: None,
) -> BenchResult:
    """Sends ``requests`` requests for ``model`` to the server at ``url`` and returns what came of them.

    ``concurrency`` clients wait for their answers; where ``rate`` is given, requests are instead due at random moments
    (Poisson), ``rate`` a second on average, and their times run from when they were due. Shapes are drawn by weight
    with ``seed`` from ``shapes``, else from the plan that the server shows, and only those of ``batch`` where it is
    given; with ``images``, the bodies are these files instead, for handlers that take files. ``first`` is how many
    requests count as the first ones, ``timeout`` how many seconds an answer may take; ``tick`` is called after each
    request. Raises BenchError where the run cannot be made; requests that fail are part of the result.
    """
    for name, number in (("requests", requests), ("concurrency", concurrency), ("first", first), ("rate", rate or 1)):
        if number <= 0:
            raise BenchError(f"{name} must be above 0, not {number}")
    if images and encoding == "shared-memory":
        raise BenchError("files are sent as they are, not in shared memory")
    try:
        with ExitStack() as shared:
            target = Target.parse(url)
            asks = file_asks(model, images) if images else None
            if asks is None:
                wanted = (
                    shapes if shapes is not None else planned(uvloop.run(_get(target, f"/v2/models/{model}/shapes")))
                )
                wanted = wanted if batch is None else of_batch(wanted, batch)
                memory = shared.enter_context(_registered(target, wanted)) if encoding == "shared-memory" else None
                asks = tensor_asks(model, wanted, encoding, memory)
            order = sequence([ask.weight for ask in asks], requests, seed)
            encoded = [target.encode(ask) for ask in asks]
            if rate:
                load = open_loop(target, encoded, order, poisson(rate, requests, seed), timeout, tick)
            else:
                load = closed_loop(target, encoded, order, concurrency, timeout, tick)
            machine = this_machine()
            measured = uvloop.run(_measure(target, model, load))
    except (ClientError, TrafficError, ExpositionError) as error:
        raise BenchError(str(error)) from error
    return BenchResult(
        label=label,
        url=url,
        model=model,
        started=measured.started,
        command=command_line(),
        machine=machine,
        seed=seed,
        concurrency=None if rate else concurrency,
        rate=rate,
        first=first,
        seconds=measured.seconds,
        client_cpu=measured.cpu_seconds / measured.seconds,
        asks=tuple(ask.name for ask in asks),
        samples=tuple(measured.samples),
        lookups=measured.lookups,
    )


def planned(answer: Answer) -> list[tuple[Shape, float]]:
    """The weighted shapes in the server's answer at ``/v2/models/{model}/shapes``; raises BenchError on another one."""
    if answer.status != 200:
        raise BenchError(f"the server does not show the model's plan (status {answer.status}); give the shapes")
    try:
        shapes = json.loads(answer.body)["shapes"]
        return [(Shape.parse(entry["shape"]), float(entry["weight"])) for entry in shapes]
    except (KeyError, TypeError, ValueError) as error:
        raise BenchError(f"the server's list of shapes cannot be read: {error!r}") from error


@contextmanager
def _registered(target: Target, shapes: WeightedShapes) -> Iterator[SharedExamples]:
    """Examples in shared memory that the server knows of; raises BenchError where it takes none."""
    with shared_examples(examples(shapes)) as shared:
        region = f"/v2/systemsharedmemory/region/{shared.region}"
        try:
            answer = uvloop.run(_post(target, f"{region}/register", {"key": shared.key, "byte_size": shared.size}))
            if answer.status != 200:
                raise BenchError(f"the server takes no shared memory (status {answer.status}): {answer.body.decode()}")
            yield shared
        finally:  # also where this was ended before the server's answer was read
            uvloop.run(_post(target, f"{region}/unregister", {}))


@dataclass(frozen=True)
class _Measured:
    started: str
    seconds: float
    cpu_seconds: float
    samples: list[Sample]
    lookups: Lookups | None


async def _measure(target: Target, model: str, load: Coroutine[None, None, list[Sample]]) -> _Measured:
    try:
        before = await _lookups(target, model)
    except BaseException:
        load.close()
        raise
    started, wall, cpu = datetime.now(timezone.utc), time.perf_counter(), time.process_time()
    gc.disable()  # a pause of this client would be read as one of the server
    try:
        samples = await load
    finally:
        gc.enable()
    seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
    after = await _lookups(target, model)
    gained = after.since(before or Lookups()) if after else None
    return _Measured(started.isoformat(timespec="seconds"), seconds, cpu_seconds, samples, gained)


async def _lookups(target: Target, model: str) -> Lookups | None:
    answer = await _get(target, "/metrics")
    return lookups(answer.body.decode("utf-8", "replace"), model) if answer.status == 200 else None


async def _get(target: Target, path: str) -> Answer:
    return await _once(target, f"GET {path}", target.get(path))


async def _post(target: Target, path: str, document: Mapping[str, object]) -> Answer:
    ask = Ask(path, 1.0, path, {"Content-Type": "application/json"}, (json.dumps(document).encode(),))
    return await _once(target, f"POST {path}", target.encode(ask))


async def _once(target: Target, what: str, request: Sequence[bytes | memoryview]) -> Answer:
    connection = await target.connect()
    try:
        return await connection.send(request, timeout=30.0)
    except ClientError as error:
        raise ClientError(f"{what}: {error}") from error
    finally:
        connection.close()
