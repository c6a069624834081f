"""Worker processes: what they answer, how their end is noticed, and that nothing of them survives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from handlers.loading import Model
from handlers.shapes import Shape
from warmup.stores.store import Phase
from warmup.sweep.messages import Job
from warmup.sweep.process import WorkerDied, WorkerFailed, WorkerProcess

ONE, FAILS, DIES, HANGS = (Shape.parse(f"x={size}:fp32") for size in (1, 13, 14, 15))
Start = Callable[..., WorkerProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    workers: list[WorkerProcess] = []

    def make(model: Model, phase: Phase = Phase.PROVE) -> WorkerProcess:
        job = Job(model.folder, phase, tmp_path / "stores")
        workers.append(WorkerProcess(job, {"FROM_SETTINGS": "yes"}, tmp_path / "logs" / "worker.log"))
        return workers[-1]

    yield make
    for worker in workers:
        worker.kill()


def test_shapes_are_run_and_timed(start: Start, python_model: Callable[..., Model]) -> None:
    worker = start(python_model([1]))
    loaded = worker.loaded()
    assert loaded is not None
    assert loaded.seconds > 0
    ran = worker.run(ONE)
    assert ran is not None
    assert ran.shape == ONE
    assert ran.steady_seconds is not None
    assert (ran.added, ran.error) == ({}, "")
    worker.close()
    assert not psutil.pid_exists(worker.pid)


def test_entries_are_told_with_the_first_shape(start: Start, onnx_model: Callable[..., Model]) -> None:
    worker = start(onnx_model([1, 2]), Phase.TUNE)
    worker.loaded()
    first, second = worker.run(Shape.parse("x=1x4:fp32")), worker.run(Shape.parse("x=2x4:fp32"))
    assert first is not None
    assert second is not None
    assert [key.endswith(".onnx") for key in first.added["onnxruntime"]] == [True]
    assert second.added == {}


def test_an_error_is_an_answer_and_the_next_shape_is_run(start: Start, python_model: Callable[..., Model]) -> None:
    worker = start(python_model([1]))
    worker.loaded()
    failed = worker.run(FAILS)
    assert failed is not None
    assert failed.error == "ValueError: thirteen is not served"
    ran = worker.run(ONE)
    assert ran is not None
    assert not ran.error


def test_a_crash_is_told_with_its_signal(start: Start, python_model: Callable[..., Model]) -> None:
    worker = start(python_model([1]))
    worker.loaded()
    with pytest.raises(WorkerDied, match=r"SIGSEGV.*worker\.log"):
        worker.run(DIES)
    with pytest.raises(WorkerDied):
        worker.run(ONE)


def test_a_line_that_is_no_shape_ends_the_worker_with_the_reason(
    start: Start, python_model: Callable[..., Model]
) -> None:
    worker = start(python_model([1]))
    worker.loaded()
    twice = Shape((*ONE, *ONE))
    with pytest.raises(WorkerFailed, match="names an input twice"):
        worker.run(twice, time.monotonic() + 60)
    assert not psutil.pid_exists(worker.pid)


def test_closing_after_the_death_does_nothing(start: Start, python_model: Callable[..., Model]) -> None:
    worker = start(python_model([1]))
    worker.loaded()
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(WorkerDied):
        worker.run(ONE)
    worker.close()
    worker.close()
    assert not psutil.pid_exists(worker.pid)


def test_closing_what_hangs_kills_it(
    start: Start, python_model: Callable[..., Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warmup.sweep.process._CLOSING_SECONDS", 0.1)
    worker = start(python_model([1]))
    worker.loaded()
    assert worker.run(HANGS, time.monotonic() + 0.1) is None
    worker.close()
    assert not psutil.pid_exists(worker.pid)


@pytest.mark.parametrize("error", ["RuntimeError('no device')", "MemoryError('no device')"])
def test_whatever_loading_raises_is_the_models_reason(
    start: Start, python_model: Callable[..., Model], error: str
) -> None:
    model = python_model([1])
    code = (
        f"class Net:\n    def __init__(self):\n        raise {error}\n    def run(self, inputs):\n        return {{}}\n"
    )
    (model.folder / "net.py").write_text(code)
    with pytest.raises(WorkerFailed, match="no device"):
        start(model).loaded()


def test_a_model_that_cannot_be_loaded_gives_its_reason(start: Start, python_model: Callable[..., Model]) -> None:
    model = python_model([1])
    (model.folder / "net.py").write_text("class Other: pass")
    with pytest.raises(WorkerFailed, match="no class 'Net'"):
        start(model).loaded()


def test_a_deadline_ends_the_wait_and_not_the_process(start: Start, python_model: Callable[..., Model]) -> None:
    worker = start(python_model([1]))
    worker.loaded()
    assert worker.run(HANGS, time.monotonic() + 0.1) is None
    assert psutil.pid_exists(worker.pid)
    worker.kill()
    assert not psutil.pid_exists(worker.pid)


PARENT = """
import sys
from pathlib import Path
from handlers.shapes import Shape
from warmup.stores.store import Phase
from warmup.sweep.messages import Job
from warmup.sweep.process import WorkerProcess

worker = WorkerProcess(Job(Path(sys.argv[1]), Phase.TUNE, Path(sys.argv[2])), {}, Path(sys.argv[2]) / "log")
worker.loaded()
print(worker.pid, flush=True)
worker.run(Shape.parse("x=15:fp32"))
"""
# A model that starts a compiler, so to speak, which would go on for ever.
COMPILES = """
import subprocess, sys
class Net:
    def run(self, inputs):
        subprocess.run([sys.executable, "-c", "import threading; threading.Event().wait()"])
"""


def test_when_the_parent_is_killed_the_worker_and_its_compilers_end(
    tmp_path: Path, python_model: Callable[..., Model]
) -> None:
    model = python_model([15])
    (model.folder / "net.py").write_text(COMPILES)
    arguments = [sys.executable, "-c", PARENT, str(model.folder), str(tmp_path)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        worker = psutil.Process(int(parent.stdout.readline()))
        deadline = time.monotonic() + 60
        while not (family := worker.children()) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert family
        os.kill(parent.pid, signal.SIGKILL)
    assert psutil.wait_procs([worker, *family], timeout=60)[1] == []
