from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest

from serving.lanes.job import ClientGone, Job, RequestTimedOut
from serving.lanes.outstanding import Outstanding
from serving.lanes.warmset import Outcome


def job(loop: asyncio.AbstractEventLoop) -> Job:
    one = Job({"x": np.zeros((1, 4))}, ((1, 4),), ((4,),), 1, Outcome.WARM)
    one.answer = loop.create_future()
    one.submitted = time.perf_counter()
    return one


def test_an_overdue_request_ends_and_leaves_the_queue() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        outstanding = Outstanding(loop, timeout=0.05)
        late = job(loop)
        outstanding.add(late, None)
        assert late.answer is not None
        with pytest.raises(RequestTimedOut, match="0.05 s"):
            await asyncio.wait_for(late.answer, 5)
        assert late.abandoned
        outstanding.close()

    asyncio.run(main())


def test_a_client_that_hangs_up_frees_its_place() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        outstanding = Outstanding(loop, timeout=30)
        hung_up = asyncio.Event()
        leaves, stays = job(loop), job(loop)

        async def never() -> None:
            await asyncio.Event().wait()

        async def gone() -> None:
            await hung_up.wait()

        outstanding.add(leaves, gone)
        outstanding.add(stays, never)
        hung_up.set()
        assert leaves.answer is not None
        with pytest.raises(ClientGone):
            await asyncio.wait_for(leaves.answer, 5)
        assert leaves.abandoned
        assert not stays.abandoned
        outstanding.remove(stays)
        outstanding.close()

    asyncio.run(main())


def test_an_answered_request_is_minded_no_more() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        outstanding = Outstanding(loop, timeout=0.05)
        watched = asyncio.Event()

        async def gone() -> None:
            watched.set()
            await asyncio.Event().wait()

        quick, slow = job(loop), job(loop)
        outstanding.add(quick, gone)
        outstanding.add(slow, None)
        outstanding.remove(quick)
        assert slow.answer is not None
        with pytest.raises(RequestTimedOut):
            await asyncio.wait_for(slow.answer, 5)
        assert not watched.is_set()
        assert not quick.abandoned
        outstanding.close()

    asyncio.run(main())


def test_clients_are_watched_also_behind_a_slow_request() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        outstanding = Outstanding(loop, timeout=30)
        slow, later = job(loop), job(loop)
        watched, hung_up = asyncio.Event(), asyncio.Event()

        async def watch_slow() -> None:
            watched.set()
            await asyncio.Event().wait()

        async def gone() -> None:
            await hung_up.wait()

        outstanding.add(slow, watch_slow)
        await asyncio.wait_for(watched.wait(), 5)  # the timer is now set to the slow request's time limit
        later.submitted = time.perf_counter()
        outstanding.add(later, gone)
        hung_up.set()
        assert later.answer is not None
        with pytest.raises(ClientGone):
            await asyncio.wait_for(later.answer, 5)
        outstanding.remove(slow)
        outstanding.close()

    asyncio.run(main())
