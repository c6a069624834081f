"""A fresh process that loads one model with the settings of one phase and runs the shapes that it is told.

    python -m warmup.sweep.worker FD

Messages come on standard input and go to the file descriptor FD; standard output and error are free for whatever the
frameworks print. The environment was set by the parent, before this process began. When the parent dies, standard
input ends, and this process kills its whole group, compilers included: nothing writes to the stores any more.
"""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import BinaryIO

import psutil

from handlers.engines.engine import Engine, example, open_engine
from handlers.errors import ModelError
from handlers.shapes import Shape
from handlers.spec import load_spec
from warmup.plan import expand
from warmup.stores.registry import settings_for, stores_for
from warmup.stores.store import Phase, Store, added_entries
from warmup.sweep import framework
from warmup.sweep.messages import CLOSE, Entries, Failed, Job, Loaded, Message, Ran, decode, encode
from warmup.verify.proving import OutputsCheck

# Further calls after the first: enough for a median, without making the proof as long as the sweep.
STEADY_CALLS = {Phase.TUNE: 1, Phase.SEAL: 0, Phase.PROVE: 7}
STEADY_SECONDS = 1.0
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    send = _sender(int(sys.argv[1]))
    job = decode(sys.stdin.buffer.readline())
    assert isinstance(job, Job)
    if job.tethered:
        _die_with_parent()
    shapes = _shapes(sys.stdin.buffer)
    try:
        worker = Worker(job)
        send(worker.load())
    except (ModelError, framework.UnknownSwitch) as error:
        send(Failed(str(error)))
        return
    except Exception as error:  # of a model's code or a framework: it would be the same for every shape
        send(Failed(_told(error)))
        return
    while order := shapes.get():
        if isinstance(order, Exception):
            send(Failed(_told(order)))
            break
        send(worker.run(order))
    worker.close()


class Worker:
    """One loaded model, and what its stores held before and after each of its shapes."""

    _engine: Engine

    def __init__(self, job: Job) -> None:
        self._job = job
        self._spec = load_spec(job.folder)
        self._stores = stores_for([self._spec])
        self._entries = self._look()
        self._outputs = OutputsCheck(self._spec, job.folder) if job.phase is Phase.PROVE and job.verify else None

    def load(self) -> Loaded:
        settings = settings_for(self._stores, self._job.phase, self._job.stores)
        self._engine = open_engine(self._spec, self._job.folder, settings.engine)
        framework.apply(settings.framework)
        self._engine.load()
        self._engine.expect({planned.shape: planned.weight for planned in expand(self._spec, self._job.folder)})
        return Loaded(time.time() - psutil.Process().create_time())

    def run(self, shape: Shape) -> Ran:
        before = _misses(self._stores)
        started = time.perf_counter()
        try:
            self._engine.warm(shape)
            first = time.perf_counter() - started
            steady = self._steady(shape)
        except Exception as error:  # whatever a model, an engine or a compiler raises is the outcome of this shape
            return Ran(shape, time.perf_counter() - started, added=self._added(), error=_told(error))
        after = _misses(self._stores)
        missed = {name: after[name] - before[name] for name in after if after[name] > before[name]}
        added = self._added()
        try:
            right = self._outputs.check(self._engine, shape) if self._outputs else None
        except Exception as error:  # also what the reference may raise: unchecked outputs prove nothing
            return Ran(shape, first, steady, added, missed, error=_told(error))
        note = self._engine.note(shape) or self._engine.choice(shape)
        return Ran(shape, first, steady, added, missed, note=note, outputs=right)

    def close(self) -> None:
        if self._outputs:
            self._outputs.close()
        self._engine.close()

    def _steady(self, shape: Shape) -> float | None:
        inputs = example(shape)
        times: list[float] = []
        while len(times) < STEADY_CALLS[self._job.phase] and sum(times) < STEADY_SECONDS:
            started = time.perf_counter()
            self._engine.run(inputs)
            times.append(time.perf_counter() - started)
        return statistics.median(times) if times else None

    def _added(self) -> Entries:
        before, self._entries = self._entries, self._look()
        added = {
            name: {key: found[key] for key in added_entries(before[name], found)}
            for name, found in self._entries.items()
        }
        return {name: entries for name, entries in added.items() if entries}

    def _look(self) -> dict[str, dict[str, str]]:
        return {store.name: store.entries(self._job.stores / store.name) for store in self._stores}


def _told(error: Exception) -> str:
    """An error in one line of at most 2000 characters."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:2000]


def _misses(stores: tuple[Store, ...]) -> dict[str, int]:
    return {f"{store.name}.{name}": count for store in stores for name, count in store.misses().items()}


def _die_with_parent() -> None:
    """A stopped process does not notice that its standard input has ended; the kernel's own signal reaches it
    (Linux, prctl(2))."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _sender(descriptor: int) -> Callable[[Message], None]:
    os.set_inheritable(descriptor, False)

    def send(message: Message) -> None:
        data = encode(message)
        while data:
            data = data[os.write(descriptor, data) :]

    return send


def _shapes(stream: BinaryIO) -> queue.Queue[Shape | Exception | None]:
    """The shapes as they come, None at the end, and what a line that is no shape raises.

    A stream that ends without saying so means that the parent is dead.
    """
    coming: queue.Queue[Shape | Exception | None] = queue.Queue()

    def read() -> None:
        for line in stream:
            text = line.decode().strip()
            if text == CLOSE:
                coming.put(None)
                return
            try:
                coming.put(Shape.parse(text))
            except Exception as error:  # whatever it is, the sweep would wait for an answer for ever
                coming.put(error)
        with suppress(ProcessLookupError):
            os.killpg(0, signal.SIGKILL)

    threading.Thread(target=read, name="orders", daemon=True).start()
    return coming


if __name__ == "__main__":
    main()
