"""Long work on the event loop, in short steps between which requests are answered.

It is not enough that the loop looks at its connections between two steps: the threads that run the models wait for the
interpreter's lock, and a loop that takes it again at once after each look keeps them out for as long as the work lasts.
So there are pauses, in which the loop waits for its connections, and whoever wants the lock gets it. In a thread of its
own the same work would hold the lock for 5 ms at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")

_PAUSE = 0.001  # seconds; uvloop's shortest


async def in_steps(steps: Iterable[T]) -> list[T]:
    """What the steps give, each of which should take a fraction of a millisecond."""
    given = []
    for one in steps:
        given.append(one)
        await asyncio.sleep(_PAUSE)
    return given
