"""A worker process as the sweep sees it: started with a phase's environment, told shapes, heard, and ended."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

from handlers.shapes import Shape
from warmup.sweep.messages import CLOSE, Failed, Job, Loaded, Message, Ran, decode, encode

_TAIL = 400  # characters of the log that an error shows
_CLOSING_SECONDS = 60.0  # for a worker to end by itself, with all that its framework takes down


class WorkerDied(Exception):
    """A worker that ended without an answer: killed, crashed, or out of memory."""


class WorkerFailed(Exception):
    """A worker that could not load its model, or not read what it was told to run."""


class WorkerProcess:
    """One worker. It leads a process group, so that ending it ends the compilers that it started, too."""

    def __init__(self, job: Job, environment: Mapping[str, str], log: Path) -> None:
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        self._events, theirs = os.pipe()
        self._buffer = b""
        try:
            with log.open("ab") as output:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "warmup.sweep.worker", str(theirs)],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    env={**os.environ, **environment},
                    pass_fds=(theirs,),
                    start_new_session=True,
                )
        except BaseException:
            os.close(self._events)
            raise
        finally:
            os.close(theirs)
        # Helpers that the worker has forked hold the pipe open after its death; this descriptor tells of the death.
        self._death = os.pidfd_open(self._process.pid)
        self._tell(encode(job))

    @property
    def pid(self) -> int:
        return self._process.pid

    def loaded(self, deadline: float | None = None) -> Loaded | None:
        """Waits until the model is loaded, or until ``deadline`` (of time.monotonic), when it returns None.

        Raises WorkerFailed with the model's own reason, WorkerDied where the process ended.
        """
        message = self._hear(deadline)
        if isinstance(message, Failed):
            self.kill()
            raise WorkerFailed(message.reason)
        assert message is None or isinstance(message, Loaded)
        return message

    def run(self, shape: Shape, deadline: float | None = None) -> Ran | None:
        """Runs one shape, and returns None where it is not done by ``deadline``. Raises WorkerDied, WorkerFailed."""
        self._tell(f"{shape}\n".encode())
        message = self._hear(deadline)
        if isinstance(message, Failed):
            self.kill()
            raise WorkerFailed(message.reason)
        assert message is None or isinstance(message, Ran)
        return message

    def close(self) -> None:
        """Lets the process end by itself; one that does not is killed. Does nothing where it has ended before."""
        try:
            self._tell(f"{CLOSE}\n".encode())
            self._process.wait(_CLOSING_SECONDS)
        except WorkerDied:
            return  # noticing it has released everything
        except subprocess.TimeoutExpired:
            self.kill()
        else:
            self._release()

    def kill(self) -> None:
        """Ends the process and all that it started, now. Does nothing the second time."""
        if self._events < 0:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._release()

    def _release(self) -> None:
        assert self._process.stdin
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        os.close(self._events)
        os.close(self._death)
        self._events = -1

    def _tell(self, data: bytes) -> None:
        assert self._process.stdin
        try:
            self._process.stdin.write(data)
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            raise self._died() from None

    def _hear(self, deadline: float | None) -> Message | None:
        while b"\n" not in self._buffer:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = select.select([self._events, self._death], [], [], left)[0]
            if not ready:
                return None
            block = os.read(self._events, 1 << 16) if self._events in ready else b""
            if not block:
                raise self._died()
            self._buffer += block
        line, _, self._buffer = self._buffer.partition(b"\n")
        return decode(line)

    def _died(self) -> WorkerDied:
        self.kill()
        code = self._process.returncode
        how = f"exit status {code}" if code >= 0 else _signal_name(-code)
        tail = " ".join(self._log.read_text(encoding="utf-8", errors="replace").split())[-_TAIL:]
        return WorkerDied(f"the process ended ({how}); {self._log}: {tail or 'empty'}")

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *_: object) -> Literal[False]:
        self.kill()
        return False


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
