"""One warm model in a TorchServe worker: its engine, its warm set, and batches as TorchServe hands them over.

A worker is one thread that has one batch at a time. That thread loads the engine, replays the proven shapes and runs
every request, so that MIOpen's handle and PyTorch's caches, which belong to a thread, are the same throughout.
"""

from __future__ import annotations

import gc
import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from handlers.engines.engine import open_engine
from handlers.handler import Tensors
from handlers.loading import load_handler
from handlers.shapes import Shape
from serving.lanes.batching import batch_size, frozen_times
from serving.lanes.coldshapes import ColdShapes
from serving.lanes.job import Job, failed
from serving.lanes.stacking import stack, unstack
from serving.lanes.warming import coverage, replay, shortfall
from serving.lanes.warmset import Dims, Outcome, WarmSet
from serving.prepare import Prepared
from warmup.proof import ShapeProof
from warmup.stores.watch import StoreWatch
from warmup.sweep import framework

log = logging.getLogger("preheat.torchserve")


class NotWarm(Exception):
    """Less of the expected traffic is warm than the model's ``ready_coverage`` asks for."""


@dataclass(frozen=True)
class Ran:
    """How one request of a batch went: its outputs, or what it ended with.

    ``first_call`` are the seconds that it paid as the first of a cold shape, else 0.
    """

    outcome: Outcome
    result: Tensors | Exception
    first_call: float = 0.0


@dataclass(frozen=True)
class Execution:
    """One run of the engine: rows in use, and the seconds of putting the inputs together and of the engine."""

    rows: int
    copy: float
    execute: float


class Session:
    """The model of one worker. All methods are called on the worker's thread."""

    def __init__(self, prepared: Prepared, options: Mapping[str, str]) -> None:
        """``options`` are of the engine, beside those of the serving phase."""
        (served,) = prepared.served
        self.spec = served.spec
        self.plan = served.plan
        self.proof = served.proof
        self.bundle = prepared.bundle
        self.handler = load_handler(served.spec, served.folder)
        self.warm = WarmSet(served.spec)
        self.notes: dict[Shape, str] = {}  # shapes that run otherwise than the description asks, and why
        self.executions: list[Execution] = []  # of the batch that runs, or of the last one
        self.warmup_seconds = 0.0
        self._cold = ColdShapes()
        self._loaded = False
        self._stores = (prepared.stores, prepared.root)
        self._new_entries = dict.fromkeys((store.name for store in prepared.stores), 0)
        self.handler.initialize(served.spec, served.folder)
        framework.apply(prepared.settings.framework)
        self._engine = open_engine(served.spec, served.folder, {**served.engine_options, **options})

    def start(self) -> None:
        """Loads the model and replays every proven shape.

        Raises NotWarm where too little is warm then, ModelError where the engine cannot run as it is described.
        """
        self._engine.load()
        self._loaded = True
        started = time.perf_counter()
        proofs = {proof.shape: proof for proof in self.proof.proven()} if self.proof else {}
        for shape in self._engine.expect({shape: proof.weight for shape, proof in proofs.items()}):
            try:
                self._admit(proofs[shape])
            except Exception as error:  # one shape less; whether that is enough is for the coverage to say
                self.notes[shape] = f"could not be replayed: {error}"
                log.exception("%s could not be replayed", shape)
        self.warmup_seconds = time.perf_counter() - started
        lacking = shortfall(self.warm, self.plan, self.spec, self.proof)
        if lacking:
            raise NotWarm(lacking)
        self._watch = StoreWatch(*self._stores)
        gc.collect()
        gc.freeze()  # a look at all that frameworks and models made takes longer than a request

    @property
    def coverage(self) -> float:
        """The share of the expected traffic whose shapes are warm in this worker."""
        return coverage(self.warm, self.plan)

    def new_entries(self) -> dict[str, int]:
        """How many entries each store has got since the start: each is a miss that a request paid for. Looks at all."""
        for store, look in self._watch.look().items():
            self._new_entries[store] += len(look.new)
            for key in look.new:
                log.warning("a miss after ready: %s has a new entry %s", store, key)
        return dict(self._new_entries)

    def _admit(self, proof: ShapeProof) -> None:
        replayed = replay(self._engine, proof)
        if replayed.note:
            self.notes[proof.shape] = replayed.note
            log.warning("%s %s", proof.shape, replayed.note)
        self.warm.admit(proof.shape, replayed.seconds)

    def run(self, batch: Sequence[Tensors]) -> list[Ran]:
        """Runs the requests of one batch, those of a group together in planned sizes; an error is its request's own."""
        self.executions = []
        done: dict[int, Ran] = {}
        groups: dict[Dims, deque[tuple[int, Job]]] = {}
        for index, inputs in enumerate(batch):
            dims = tuple(array.shape for array in inputs.values())
            route = self.warm.find(dims)
            job = Job(inputs, dims, route.tails or dims, route.rows, route.outcome)
            if route.tails is None:
                done[index] = self._run_cold(job)
            else:
                groups.setdefault(route.tails, deque()).append((index, job))
        for tails, waiting in groups.items():
            while waiting:
                size, taken = self._take(tails, waiting)
                for (index, job), result in zip(taken, self._run(tails, size, [job for _, job in taken]), strict=True):
                    done[index] = Ran(job.outcome, result)
        return [done[index] for index in range(len(batch))]

    def _take(self, tails: Dims, waiting: deque[tuple[int, Job]]) -> tuple[int, list[tuple[int, Job]]]:
        """The planned size that is best run next, and the requests, in their order, that it holds."""
        times = frozen_times(self.warm.seconds(tails))
        size = batch_size(sum(job.rows for _, job in waiting), waiting[0][1].rows, times)
        taken: list[tuple[int, Job]] = []
        filled = 0
        while waiting and filled + waiting[0][1].rows <= size:
            filled += waiting[0][1].rows
            taken.append(waiting.popleft())
        return (batch_size(filled, filled, times) if filled < size else size), taken

    def _run(self, tails: Dims, size: int, jobs: list[Job]) -> list[Tensors | Exception]:
        """The outputs of requests that run together; where that fails each runs alone, to find whose fault it is."""
        shape = self.warm.shape(tails, size)
        started = time.perf_counter()
        try:
            inputs = stack(self.spec, self.handler, shape, jobs)
            copied = time.perf_counter()
            outputs = self._engine.run(inputs)
            executed = time.perf_counter()
            parts = [part for _, part in unstack(self.spec, self.handler, outputs, shape, jobs)]
        except Exception as error:
            log.exception("failed on %s", shape)
            if len(jobs) == 1:
                return [failed(self.spec.name, error)]
            times = frozen_times(self.warm.seconds(tails))
            return [self._run(tails, batch_size(job.rows, job.rows, times), [job])[0] for job in jobs]
        self.executions.append(Execution(sum(job.rows for job in jobs), copied - started, executed - copied))
        return [*parts]

    def _run_cold(self, job: Job) -> Ran:
        """By the model's policy. A worker has no second lane: what runs cold here holds up the batches after it."""
        self._cold.add(job.dims)
        job.first = self._cold.count(job.dims) == 1
        if self.proof is not None and self.spec.cold != "run":
            return Ran(job.outcome, self.warm.unplanned(job.inputs))
        started = time.perf_counter()
        try:
            outputs = self._engine.run(job.inputs)
        except Exception as error:
            log.exception("failed on dims %s", job.dims)
            return Ran(job.outcome, failed(self.spec.name, error))
        seconds = time.perf_counter() - started
        self.executions.append(Execution(job.rows, 0.0, seconds))
        return Ran(job.outcome, outputs, seconds if job.first else 0.0)

    def close(self) -> None:
        """Gives back what the engine holds, where it got as far as that."""
        if self._loaded:
            self._engine.close()
