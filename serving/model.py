"""A model as it is served: its handler, its lanes, its warm set, and the state it is in."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from handlers.engines.engine import Engine, open_engine
from handlers.engines.hostmemory import HostMemory
from handlers.errors import ModelError
from handlers.handler import Handler, Tensors
from handlers.shapes import Shape
from handlers.spec import ModelSpec, TensorSpec
from serving.lanes.cold import ColdLane
from serving.lanes.coldtraffic import ColdTraffic
from serving.lanes.job import ClientGone, Job, LaneClosed, QueueFull, Settle
from serving.lanes.lane import Lane
from serving.lanes.outstanding import Gone, Outstanding
from serving.lanes.warming import Replayed, coverage, replay, shortfall
from serving.lanes.warmset import Dims, Outcome, WarmSet
from serving.metrics.metrics import Metrics
from serving.metrics.recorder import Recorder
from warmup.plan import Plan
from warmup.proof import Proof, ShapeProof
from warmup.sweep import framework

log = logging.getLogger("preheat.model")


Switches = Mapping[str, "bool | int | str"]  # framework attributes of the serving phase, see warmup.stores.store


class State(str, Enum):
    """Where a model is in its life."""

    LOADING = "loading"
    WARMING = "warming"
    READY = "ready"
    FAILED = "failed"
    STOPPING = "stopping"


class NotReady(Exception):
    """The model is not ready for requests yet, or no more (HTTP 503 with Retry-After)."""


@dataclass(frozen=True)
class Served:
    """What a model is served from. ``proof`` is None where the model is served unproven: every shape is then cold."""

    spec: ModelSpec
    folder: Path
    plan: Plan
    proof: Proof | None
    engine_options: Mapping[str, str]
    digest: str = ""  # "sha256:..." of the files that were proven, empty where nothing was


class ServedModel:
    """One model in this process. All methods are called on the event loop."""

    def __init__(self, served: Served, handler: Handler, metrics: Metrics, switches: Switches) -> None:
        self.spec = served.spec
        self.plan = served.plan
        self.proof = served.proof
        self.handler = handler
        self.state = State.LOADING
        self.error = ""
        self.outputs: tuple[TensorSpec, ...] = served.spec.outputs
        self.warm = WarmSet(served.spec)
        self.learnt: dict[Shape, ShapeProof] = {}  # shapes outside the plan that were proven while serving
        self.asked = 0  # requests so far
        self.notes: dict[Shape, str] = {}  # warm shapes that run otherwise than the description asks, and why
        self.recorder = Recorder(metrics, served.spec.name, served.spec.version)
        self._metrics = metrics
        self._folder = served.folder
        self._options = served.engine_options
        self._switches = switches
        self._loop = asyncio.get_running_loop()
        self._outstanding = Outstanding(self._loop, served.spec.limits.timeout_s, self._settle_one)
        self._lane = Lane(
            self.spec,
            handler,
            self.warm,
            self._open,
            self._deliver,
            lambda shape, rows, seconds: self.recorder.batch(rows),
            self._loop.call_soon,
        )
        self.cold = ColdTraffic(self.spec, self._open, self._deliver)
        self._memory: HostMemory | None = None
        self._reads_mapped: set[Shape] = set()
        self._engine: Engine | None = None
        self._begun = asyncio.Event()

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def version(self) -> str:
        return self.spec.version

    @property
    def ready(self) -> bool:
        return self.state is State.READY

    @property
    def coverage(self) -> float:
        """The share of the expected traffic whose shapes are warm in this process."""
        return coverage(self.warm, self.plan)

    @property
    def depth(self) -> int:
        """How many requests wait."""
        return self._lane.depth + self.cold.depth

    @property
    def running(self) -> int:
        """How many requests are in execution."""
        return self._lane.running + self.cold.running

    def room(self, size: int) -> memoryview | None:
        """Memory in which inputs of ``size`` bytes are best received; None where any will do."""
        return self._memory.take(size) if self._memory is not None else None

    @property
    def loaded(self) -> bool:
        """Whether there is an engine."""
        return self._engine is not None

    async def wait_loaded(self) -> bool:
        """Waits until there is an engine, or none to come; whether there is."""
        await self._begun.wait()
        return self.loaded

    async def map_memory(self, descriptor: int, offset: int, size: int) -> memoryview | None:
        """See ``Engine.map_memory``; None without an engine. Not on the lane's thread: pinning takes milliseconds."""
        engine = self._engine
        return await asyncio.to_thread(engine.map_memory, descriptor, offset, size) if engine is not None else None

    def reads_mapped(self, dims: Dims) -> bool:
        """Whether inputs of these dims may lie in memory that ``map_memory`` gave: then nobody here looks at them. A
        handler that checks them would, and so does what pads a request, and all that share its batch."""
        route = self.warm.find(dims)
        if route.tails is None or self.spec.cold == "pad" or type(self.handler).check is not Handler.check:
            return False
        batches = [rows for rows in self.warm.group(route.tails).batches if rows >= route.rows]
        return all(self.warm.shape(route.tails, rows) in self._reads_mapped for rows in batches)

    async def start(self) -> None:
        """Loads the engine and replays the proven shapes; the outcome is in ``state`` and ``error``."""
        try:
            await asyncio.to_thread(self.handler.initialize, self.spec, self._folder)
            loaded = self._lane.start()
            self._lane.ended.add_done_callback(self._lane_ended)
            await asyncio.wrap_future(loaded)
            opened = self._lane.call(lambda engine: (engine, engine.outputs()))
            engine, self.outputs = await asyncio.wrap_future(opened)
            self._check_outputs()
            self._engine = engine
            self.state = State.WARMING
            self._begun.set()
            await asyncio.to_thread(_settle_objects)
            await self._replay()
        except Exception as error:  # whatever a framework raises, the server lives on and says why
            if self.state is not State.STOPPING:
                self._fail(str(error) or type(error).__name__)
                log.exception("model %s failed to start", self.name)
        finally:
            self._begun.set()

    def _lane_ended(self, ended: Future[None]) -> None:
        """Called on the lane's thread: a lane that dies takes its model with it, and everybody is to know."""
        error = ended.exception()
        if error is not None:
            self._loop.call_soon_threadsafe(self._fail, f"the lane has died: {error}")

    def _fail(self, why: str) -> None:
        if self.state is not State.STOPPING:
            self.state, self.error = State.FAILED, why

    def _check_outputs(self) -> None:
        """Raises ModelError where requests would be joined whose outputs could not be told apart again."""
        largest = max((planned.shape.dims[0][0] for planned in self.plan), default=1) if self.spec.batched else 1
        for output in self.outputs:
            if largest > 1 and (not output.dims or isinstance(output.dims[0], int)):
                raise ModelError(
                    f"output {output.name!r} has dims {list(output.dims)}: the plan joins requests along the first "
                    "axis, so every output needs it too; plan batch 1 only, or give the output that axis"
                )

    async def _replay(self) -> None:
        proven = await self._in_order(self.proof.proven()) if self.proof else []
        expected = sum(shape.first_seconds or 0.0 for shape in proven)
        seconds = self._metrics.warmup_seconds.labels(self.name, "replay")
        remaining = self._metrics.warmup_remaining.labels(self.name, "replay")
        self._count_shapes()
        started = time.perf_counter()
        for shape in proven:
            remaining.set(expected)
            try:
                await self._admit(shape)
            except LaneClosed:
                raise
            except Exception as error:  # one shape less; whether that is enough is for the coverage to say
                self.notes[shape.shape] = f"could not be replayed: {error}"
                log.exception("model %s: %s could not be replayed", self.name, shape.shape)
            expected -= shape.first_seconds or 0.0
            seconds.set(time.perf_counter() - started)
            self._count_shapes()
            self._ready_if_covered()
        remaining.set(0)
        self._ready_if_covered()
        if self.state is State.WARMING:
            self._fail(shortfall(self.warm, self.plan, self.spec, self.proof))
            log.error("model %s: %s", self.name, self.error)

    async def _in_order(self, proven: tuple[ShapeProof, ...]) -> list[ShapeProof]:
        """The order in which the engine wants its shapes: heaviest first, or largest first for captured graphs."""
        by_shape = {proof.shape: proof for proof in proven}
        weights = {shape: proof.weight for shape, proof in by_shape.items()}

        def expect(engine: Engine) -> tuple[Sequence[Shape], HostMemory | None]:
            return engine.expect(weights), engine.host_memory()

        order, self._memory = await asyncio.wrap_future(self._lane.call(expect))
        return [by_shape[shape] for shape in order]

    async def _admit(self, proof: ShapeProof) -> None:
        def warm(engine: Engine) -> tuple[Replayed, int, bool]:
            return replay(engine, proof), engine.graph_bytes, engine.reads_mapped(proof.shape)

        replayed, graphs, reads_mapped = await asyncio.wrap_future(self._lane.call(warm))
        if replayed.note:
            self.notes[proof.shape] = replayed.note
            log.warning("model %s: %s %s", self.name, proof.shape, replayed.note)
        self._metrics.graph_bytes.labels(self.name).set(graphs)
        if reads_mapped:
            self._reads_mapped.add(proof.shape)
        self.warm.admit(proof.shape, replayed.seconds)
        self.recorder.expect(proof.shape.text)

    def _ready_if_covered(self) -> None:
        if self.state is State.WARMING and not shortfall(self.warm, self.plan, self.spec, self.proof):
            self.state = State.READY
            log.info("model %s: ready with %d warm shapes", self.name, len(self.warm))

    def _count_shapes(self) -> None:
        states = {
            "planned": len(self.plan),
            "proven": len(self.proof.proven()) if self.proof else 0,
            "warm": len(self.warm),
            "fallback": len(self.notes),
            "learnt": len(self.learnt),
        }
        for state, count in states.items():
            self._metrics.shapes.labels(self.name, state).set(count)

    def submit(self, inputs: Tensors, gone: Gone | None, settle: Settle) -> Job:
        """Has one request run; ``settle`` is called with its job, and its outputs or RequestTimedOut, ClientGone,
        ExecutionFailed or LaneClosed.

        ``gone`` returns when the client has hung up: the request then leaves the queue. Raises UnplannedShape,
        QueueFull, LaneClosed or NotReady; ``settle`` is then never called.
        """
        dims = tuple([array.shape for array in inputs.values()])
        route = self.warm.find(dims)
        if self.state is not State.READY:
            raise NotReady(f"model {self.name!r} is {self.state.value}" + (f": {self.error}" if self.error else ""))
        self.recorder.lookup(route.outcome)
        self.asked += 1
        job = Job(inputs, dims, route.tails or dims, route.rows, route.outcome)
        outcome = self._lane.run_at_once(job) if route.tails is not None else None
        if outcome is not None:
            settle(job, outcome)
            return job
        job.settle = settle
        lane = self._lane
        if route.tails is None:
            job.first = self.cold.note(dims)
            lane = self._lane_for_cold(inputs)
        try:
            lane.submit(job)
        except QueueFull:
            self.recorder.rejected("queue_full")
            raise
        self._outstanding.add(job, gone)
        return job

    def _lane_for_cold(self, inputs: Tensors) -> ColdLane:
        """Where a request outside the warm set runs; raises UnplannedShape where it does not."""
        if self.proof is not None and self.spec.cold != "run":
            self.recorder.rejected("shape")
            raise self.warm.unplanned(inputs)
        return self.cold.lane()

    async def infer(self, inputs: Tensors, gone: Gone | None = None) -> tuple[Tensors, Job]:
        """As ``submit``, but returns the outputs and the job, or raises what it failed with."""
        answer: asyncio.Future[Tensors] = self._loop.create_future()

        def settle(job: Job, outcome: Tensors | Exception) -> None:
            if answer.done():
                return
            if isinstance(outcome, Exception):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)

        job = self.submit(inputs, gone, settle)
        try:
            return await answer, job
        except asyncio.CancelledError:
            job.abandoned = True
            self._settle_one(job, ClientGone("nobody waits for it any more"))
            raise

    def label(self, job: Job) -> str:
        """The planned shape that a request counts as, or ``cold``."""
        if job.outcome is Outcome.COLD:
            return "cold"
        return self.warm.label(job.tails, job.rows)

    async def warm_now(self, shape: Shape) -> None:
        """Warms a shape while traffic goes on: first on the cold lane, which pays, then on the warm one."""
        await asyncio.wrap_future(self.cold.lane().call(lambda engine: engine.warm(shape)))
        await self._admit(ShapeProof(shape, self.plan.weight(shape), proven=False))
        self._count_shapes()

    async def learn(self, proof: ShapeProof) -> None:
        """Takes in a shape that was proven beside the traffic, upon stores that this process now has."""
        await self._admit(proof)
        self.learnt[proof.shape] = proof
        self._count_shapes()

    def _open(self) -> Engine:
        framework.apply(self._switches)
        return open_engine(self.spec, self._folder, self._options)

    def _deliver(self, answers: list[tuple[Job, Tensors | Exception]]) -> None:
        self._loop.call_soon_threadsafe(self._settle, answers)

    def _settle(self, answers: list[tuple[Job, Tensors | Exception]]) -> None:
        for job, answer in answers:
            self._settle_one(job, answer)

    def _settle_one(self, job: Job, answer: Tensors | Exception) -> None:
        settle, job.settle = job.settle, None
        if settle is None:  # it has timed out, or its client has gone
            return
        self._outstanding.remove(job)
        if job.lane is not None:
            job.lane.release()
        if job.first and not isinstance(answer, Exception):
            self.recorder.cold("first_call", job.executed - job.started)
        settle(job, answer)

    def flush_metrics(self) -> Iterator[None]:
        """Counts what has been recorded since the last call, and the queue's depth, in steps (``Recorder.steps``)."""
        yield from self.recorder.steps()
        if self.state is State.STOPPING:  # since this began: what it had is forgotten, or will be
            return
        self._metrics.queue_depth.labels(self.name).set(self.depth)

    async def stop(self, patience: float | None = None) -> None:
        """Answers what waits, then ends the lanes' threads; gives up on one that runs after ``patience`` seconds."""
        self.state = State.STOPPING
        self._engine = None
        gc.unfreeze()
        for lane in (self._lane, self.cold.running_lane):
            if lane is not None:
                lane.close()
                if not await asyncio.to_thread(lane.join, patience):
                    log.error(
                        "model %s: a lane is still in execution after %s s and is left behind", self.name, patience
                    )
        self._outstanding.close()
        self.recorder.flush()
        self._metrics.forget(self.name)


def _settle_objects() -> None:
    """Takes what frameworks and models made out of the garbage collector's view: a look at all of it takes longer than
    a request."""
    gc.collect()
    gc.freeze()
