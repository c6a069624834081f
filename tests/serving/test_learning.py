from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from serving.learning import Gate, Learner, Stopped

SLEEPER = "import sys; sys.stdin.read()"


class Process:
    """A process that leads its group, as a worker does."""

    def __init__(self) -> None:
        self.popen = subprocess.Popen([sys.executable, "-c", SLEEPER], stdin=subprocess.PIPE, start_new_session=True)

    @property
    def pid(self) -> int:
        return self.popen.pid

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()

    def changed(self, options: int) -> int:
        """The status of the next change of the process's state."""
        return os.waitpid(self.pid, options)[1]


@dataclass
class Model:
    """What is looked at to see whether requests are in the server."""

    depth: int = 0
    running: int = 0
    asked: int = 0


@dataclass
class Models:
    served: list[Model]

    def models(self) -> tuple[Model, ...]:
        return tuple(self.served)


@pytest.fixture
def process() -> Iterator[Process]:
    process = Process()
    yield process
    process.kill()
    assert process.popen.stdin
    process.popen.stdin.close()


def test_processes_are_stopped_while_the_gate_is_shut(process: Process) -> None:
    gate = Gate()
    gate.enter(process)  # type: ignore[arg-type]
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == 10
    gate.move(shut=True)
    assert os.WIFSTOPPED(process.changed(os.WUNTRACED)) and gate.shut
    gate.move(shut=False)
    assert os.WIFCONTINUED(process.changed(os.WCONTINUED)) and not gate.shut


def test_a_process_that_begins_while_the_gate_is_shut_is_stopped_at_once(process: Process) -> None:
    gate = Gate()
    gate.move(shut=True)
    gate.enter(process)  # type: ignore[arg-type]
    assert os.WSTOPSIG(process.changed(os.WUNTRACED)) == signal.SIGSTOP


def test_work_gives_way_to_requests_and_goes_on_after_them(process: Process, tmp_path: Path) -> None:
    model = Model()

    async def admit(learnt: Path) -> None:
        raise AssertionError("nothing was learnt")

    async def work() -> None:
        learner = Learner(Models([model]), {}, (), tmp_path, tmp_path / "place", admit)  # type: ignore[arg-type]
        gate = Gate()
        gate.enter(process)  # type: ignore[arg-type]
        giving_way = asyncio.create_task(learner._give_way(gate))
        model.running = 1
        assert os.WIFSTOPPED(await asyncio.to_thread(process.changed, os.WUNTRACED))
        model.running = 0
        assert os.WIFCONTINUED(await asyncio.to_thread(process.changed, os.WCONTINUED))
        model.asked += 1  # a request that came and went between two looks
        assert os.WIFSTOPPED(await asyncio.to_thread(process.changed, os.WUNTRACED))
        giving_way.cancel()

    asyncio.run(work())


def test_nothing_begins_after_the_end(process: Process) -> None:
    gate = Gate()
    gate.close()
    with pytest.raises(Stopped):
        gate.enter(process)  # type: ignore[arg-type]
    assert process.popen.returncode == -signal.SIGKILL
