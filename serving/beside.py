"""Work in a process beside the server, for what takes Python long: a thread would hold the interpreter's lock, and
requests would wait for it.

Such a process is a module with a main program that calls ``serve``. It answers each line of its input with one line of
JSON, and ends with its input: so it goes when the server does, however that went.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

_NICE = 10
_LINE_BYTES = 256 << 20  # of an answer
_END_SECONDS = 5.0  # for a process whose input has ended


class ProcessEnded(Exception):
    """A process beside the server is gone."""


class Beside:
    """Asks a process, which begins with the first question. Used on one event loop; questions wait for each other."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._command = (sys.executable, "-m", module, *arguments)
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        """Begins the process, so that the first question need not wait for that. Raises ProcessEnded."""
        async with self._turn:
            with self._told():
                await self._begun()

    async def ask(self, line: str, seconds: float) -> Any:
        """The answer; raises ProcessEnded where there is none within so many seconds, of which questions that came
        before take their share. A process that was at it then ends, and the next question begins a new one."""
        with self._told():
            return await asyncio.wait_for(self._in_turn(line), seconds)

    async def close(self) -> None:
        """Ends the process, if there is one."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), _END_SECONDS)
        except asyncio.TimeoutError:
            process.kill()
            await process.wait()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except asyncio.TimeoutError as error:
            raise ProcessEnded(f"{self._command[2]}: no answer in time") from error
        except (OSError, ValueError, RuntimeError) as error:  # it was killed, say (RuntimeError: uvloop's word)
            raise ProcessEnded(f"{self._command[2]}: {error}") from error

    async def _begun(self) -> asyncio.subprocess.Process:
        if self._process is None:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=_LINE_BYTES,
                start_new_session=True,  # what a terminal sends to the server is for the server
            )
        return self._process

    async def _in_turn(self, line: str) -> Any:
        async with self._turn:
            try:
                return await self._ask(line)
            except BaseException:  # what it still says would be taken for the answer to the next question
                if self._process is not None:
                    with suppress(ProcessLookupError):
                        self._process.kill()
                await self.close()
                raise

    async def _ask(self, line: str) -> Any:
        process = await self._begun()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(f"{line}\n".encode())
        await process.stdin.drain()
        answer = await process.stdout.readline()
        if not answer.endswith(b"\n"):
            raise OSError(f"process {process.pid} has ended")
        return json.loads(answer)


def serve(answer: Callable[[str], object]) -> None:
    """The main program of such a process: answers each line, at low priority, until there are no more."""
    os.nice(_NICE)
    for line in sys.stdin:
        print(json.dumps(answer(line.rstrip("\n"))), flush=True)
