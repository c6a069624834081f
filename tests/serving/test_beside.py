"""Processes beside a server: what is asked of them, and how they end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvloop

from serving.beside import Beside, ProcessEnded

ROOT = Path(__file__).resolve().parents[2]
Run = Callable[[Callable[[Beside], Awaitable[None]]], None]
LONG = 60.0  # seconds that nothing here takes


@pytest.fixture(autouse=True)
def at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # where the module is found


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a test with a process, on either event loop: they tell otherwise of one that has died."""
    return partial(_run, request.param)


def _run(start: Callable[[Coroutine[Any, Any, None]], None], test: Callable[[Beside], Awaitable[None]]) -> None:
    async def main() -> None:
        process, before = Beside("tests.serving.slowly"), psutil.Process().children()
        try:
            await test(process)
        finally:
            await process.close()
        assert psutil.Process().children() == before

    start(main())


def _child(process: Beside) -> psutil.Process:
    assert process._process is not None
    return psutil.Process(process._process.pid)


def test_questions_are_answered_in_turn(run: Run) -> None:
    async def test(process: Beside) -> None:
        await process.start()
        answers = await asyncio.gather(*(process.ask(line, LONG) for line in ("0.1", "0", "0.05")))
        assert answers == [{"seconds": "0.1"}, {"seconds": "0"}, {"seconds": "0.05"}]

    run(test)


def test_one_that_does_not_answer_in_time_is_replaced(run: Run) -> None:
    async def test(process: Beside) -> None:
        with pytest.raises(ProcessEnded, match="no answer in time"):
            await process.ask("1000", 0.5)
        assert await process.ask("0", LONG) == {"seconds": "0"}

    run(test)


def test_one_that_is_stopped_is_replaced(run: Run) -> None:
    async def test(process: Beside) -> None:
        await process.ask("0", LONG)
        child = _child(process)
        child.send_signal(signal.SIGSTOP)
        with pytest.raises(ProcessEnded, match="no answer in time"):
            await process.ask("0", 0.2)
        assert not child.is_running()
        assert await process.ask("0", LONG) == {"seconds": "0"}

    run(test)


def test_who_asks_next_does_not_get_the_answer_to_a_question_that_was_given_up(run: Run) -> None:
    async def test(process: Beside) -> None:
        await process.ask("0", LONG)
        given_up = asyncio.create_task(process.ask("0.2", LONG))
        await asyncio.sleep(0)  # it is asked
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        assert await process.ask("0", LONG) == {"seconds": "0"}

    run(test)


def test_one_that_was_killed_is_replaced(run: Run) -> None:
    async def test(process: Beside) -> None:
        await process.ask("0", LONG)
        child = _child(process)
        child.kill()
        assert process._process is not None
        await process._process.wait()
        with pytest.raises(ProcessEnded):
            await process.ask("0", LONG)
        assert await process.ask("0", LONG) == {"seconds": "0"}

    run(test)


def test_questions_that_wait_for_one_that_hangs_end_in_time_too(run: Run) -> None:
    async def test(process: Beside) -> None:
        asked = [process.ask(line, 0.5) for line in ("1000", "1000", "1000")]
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(error) for error in found] == [ProcessEnded] * 3

    run(test)


def test_one_that_fails_is_told_of(run: Run) -> None:
    async def test(process: Beside) -> None:
        with pytest.raises(ProcessEnded, match="has ended"):
            await process.ask("no number", LONG)

    run(test)
