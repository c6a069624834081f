from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest

from serving.lanes.job import ClientGone, Job, RequestTimedOut
from serving.lanes.outstanding import Outstanding
from serving.lanes.warmset import Outcome


def job() -> Job:
    one = Job({"x": np.zeros((1, 4))}, ((1, 4),), ((4,),), 1, Outcome.WARM)
    one.submitted = time.perf_counter()
    return one


class Ends:
    """Which jobs were ended, and a future of the first one's error."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.error: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __call__(self, job: Job, error: Exception) -> None:
        self.jobs.append(job)
        if not self.error.done():
            self.error.set_exception(error)


def test_an_overdue_request_ends_and_leaves_the_queue() -> None:
    async def main() -> None:
        ends = Ends()
        outstanding = Outstanding(asyncio.get_running_loop(), 0.05, ends)
        late = job()
        outstanding.add(late, None)
        with pytest.raises(RequestTimedOut, match="0.05 s"):
            await asyncio.wait_for(ends.error, 5)
        assert ends.jobs == [late]
        assert late.abandoned
        outstanding.close()

    asyncio.run(main())


def test_a_client_that_hangs_up_frees_its_place() -> None:
    async def main() -> None:
        ends = Ends()
        outstanding = Outstanding(asyncio.get_running_loop(), 30, ends)
        hung_up = asyncio.Event()
        leaves, stays = job(), job()

        async def never() -> None:
            await asyncio.Event().wait()

        async def gone() -> None:
            await hung_up.wait()

        outstanding.add(leaves, gone)
        outstanding.add(stays, never)
        hung_up.set()
        with pytest.raises(ClientGone):
            await asyncio.wait_for(ends.error, 5)
        assert ends.jobs == [leaves]
        assert leaves.abandoned
        assert not stays.abandoned
        outstanding.remove(stays)
        outstanding.close()

    asyncio.run(main())


def test_an_answered_request_is_minded_no_more() -> None:
    async def main() -> None:
        ends = Ends()
        outstanding = Outstanding(asyncio.get_running_loop(), 0.05, ends)
        watched = asyncio.Event()

        async def gone() -> None:
            watched.set()
            await asyncio.Event().wait()

        quick, slow = job(), job()
        outstanding.add(quick, gone)
        outstanding.add(slow, None)
        outstanding.remove(quick)
        with pytest.raises(RequestTimedOut):
            await asyncio.wait_for(ends.error, 5)
        assert ends.jobs == [slow]
        assert not watched.is_set()
        assert not quick.abandoned
        outstanding.close()

    asyncio.run(main())


def test_clients_are_watched_also_behind_a_slow_request() -> None:
    async def main() -> None:
        ends = Ends()
        outstanding = Outstanding(asyncio.get_running_loop(), 30, ends)
        slow, later = job(), job()
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
        with pytest.raises(ClientGone):
            await asyncio.wait_for(ends.error, 5)
        assert ends.jobs == [later]
        outstanding.remove(slow)
        outstanding.close()

    asyncio.run(main())
