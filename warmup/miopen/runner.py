"""Runs problems one by one in a worker process, and starts another one where MIOpen takes the process down with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import IO

from warmup.miopen.worker import Job, Outcome


class RunnerError(Exception):
    """Why no problem can be run at all: no library, no device, or a process that does not start."""


def outcomes(
    keys: Iterable[str], job: Job, environment: Mapping[str, str], deadline: float | None = None
) -> Iterator[Outcome]:
    """The outcomes of the keys, in order, in one fresh process with ``environment`` on top of this process's.

    A key at which the process dies has its death as its error. No key is begun after ``deadline`` (monotonic seconds).
    Raises RunnerError where MIOpen cannot run.
    """
    waiting = deque(keys)
    while waiting:
        with _process(job, environment) as worker:
            while waiting:
                if deadline is not None and time.monotonic() > deadline:
                    return
                answer = worker.ask(waiting[0])
                key = waiting.popleft()
                if answer is None:
                    yield Outcome(key, error=f"the process ended {worker.reason()}")
                    break
                yield Outcome.from_json(answer)


class _Worker:
    def __init__(self, process: subprocess.Popen[str], log: IO[str]) -> None:
        self._process = process
        self._log = log

    def ask(self, line: str) -> str | None:
        """The one line of answer, or None where the process has died."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return None
        return self._process.stdout.readline() or None

    def reason(self) -> str:
        """How the process ended, with the last line of its log."""
        status = self._process.wait()
        self._log.seek(0)
        last = (self._log.read().strip().splitlines() or ["(its log is empty)"])[-1]
        how = f"with status {status}" if status >= 0 else f"by {signal.Signals(-status).name}"
        return f"{how}: {last}"


@contextmanager
def _process(job: Job, environment: Mapping[str, str]) -> Iterator[_Worker]:
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "warmup.miopen.worker"],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        with process:
            worker = _Worker(process, log)
            try:
                if worker.ask(json.dumps(asdict(job))) is None:
                    raise RunnerError(f"MIOpen cannot run: the process ended {worker.reason()}")
                yield worker
                if process.stdin is not None:
                    process.stdin.close()  # the end of its input ends the worker, which then frees its handle
                process.wait()
            finally:
                process.kill()
