"""Starts a server as a process of its own, waits until it answers, says what it costs, and stops it."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TORCH_NUM_THREADS": "1"}


class ServerError(Exception):
    """A server that did not start, or ended by itself; the message ends with the last lines of its output."""


@dataclass(frozen=True)
class Running:
    """A server that answers. ``ready_seconds`` passed from its start until its first good answer."""

    process: psutil.Process
    ready_seconds: float

    def cpu_seconds(self) -> float:
        """Processor time that the server and the processes under it have used so far."""
        return sum(times.user + times.system for times in (process.cpu_times() for process in self._all()))

    def resident_bytes(self) -> int:
        """Resident memory of the server and the processes under it; pages that they share count more than once."""
        return sum(process.memory_info().rss for process in self._all())

    def _all(self) -> list[psutil.Process]:
        return [self.process, *self.process.children(recursive=True)]


@contextmanager
def serving(
    command: Sequence[str],
    answers: Callable[[], bool],
    *,
    core: int | None = None,
    env: Mapping[str, str] = ONE_THREAD,
    folder: Path | None = None,
    patience: float = 180.0,
    every: float = 0.05,
) -> Iterator[Running]:
    """Runs ``command``, on one core where given, until the block ends; ``answers`` says whether it is ready, asked
    ``every`` so many seconds. Raises ServerError after ``patience`` seconds or where the server ends by itself."""
    pinned = ["taskset", "--cpu-list", str(core), *command] if core is not None else list(command)
    with tempfile.TemporaryFile() as output:
        start = time.perf_counter()
        process = subprocess.Popen(
            pinned,
            cwd=folder,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while not answers():
                if process.poll() is not None:
                    raise ServerError(f"{command[0]} ended with {process.returncode}:\n{_tail(output)}")
                if time.perf_counter() - start > patience:
                    raise ServerError(f"{command[0]} was not ready after {patience:.0f} s:\n{_tail(output)}")
                time.sleep(every)  # another server's readiness is no event to wait for
            yield Running(psutil.Process(process.pid), time.perf_counter() - start)
        finally:
            _stop(process)


def good(url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> bool:
    """Whether one request (a POST where there is a body) is answered with 200."""
    request = urllib.request.Request(url, data=body, headers=dict(headers or {}))
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ends the server's whole process group: politely, then not."""
    for number, patience in ((signal.SIGTERM, 15.0), (signal.SIGKILL, 15.0)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def _tail(output) -> str:
    output.seek(0)
    return output.read().decode("utf-8", "replace")[-4000:]
