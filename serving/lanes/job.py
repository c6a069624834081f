"""One request on its way through a lane, and how it may end other than with outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from handlers.errors import InvalidInput, OutOfDeviceMemory
from handlers.handler import Tensors
from serving.lanes.warmset import Dims, Outcome

if TYPE_CHECKING:
    from serving.lanes.thread import EngineThread


class QueueFull(Exception):
    """The lane's queue holds as many requests as it may (HTTP 503 with Retry-After)."""


class LaneClosed(Exception):
    """The lane is stopping and takes nothing more (HTTP 503)."""


class ExecutionFailed(Exception):
    """The engine raised; the cause is in the log and not for the client (HTTP 500)."""


def failed(model: str, error: BaseException) -> Exception:
    """What the requests of an execution end with that raised ``error``."""
    return error if isinstance(error, (InvalidInput, OutOfDeviceMemory)) else ExecutionFailed(f"model {model!r} failed")


class RequestTimedOut(Exception):
    """The request was not answered within the model's ``limits.timeout_s`` (HTTP 504)."""


class ClientGone(Exception):
    """The client hung up before its answer was ready; nobody is left to tell."""


class Job:
    """A request in a lane. Times are ``time.perf_counter`` seconds.

    Written by the event loop until it is submitted, by the lane's thread until it is answered. ``abandoned`` may be set
    by the event loop at any time: the lane then drops the job unless it is already running.

    ``settle`` is called once, on the event loop, with the job and its outputs or what it failed with.
    """

    __slots__ = (
        "abandoned",
        "copied",
        "dims",
        "executed",
        "first",
        "inputs",
        "lane",
        "outcome",
        "padding",
        "rows",
        "settle",
        "started",
        "submitted",
        "tails",
    )

    def __init__(self, inputs: Tensors, dims: Dims, tails: Dims, rows: int, outcome: Outcome) -> None:
        self.inputs = inputs
        self.dims = dims
        self.tails = tails
        self.rows = rows
        self.outcome = outcome
        self.settle: Settle | None = None
        self.lane: EngineThread | None = None  # in whose queue it has a place, until that is released
        self.abandoned = False
        self.first = False  # nobody has asked for a cold shape before
        self.submitted = 0.0
        self.started = 0.0  # left the queue
        self.copied = 0.0  # inputs are in the form that the engine runs
        self.executed = 0.0  # outputs are there
        self.padding = 0  # input elements that were added for this request


Settle = Callable[[Job, "Tensors | Exception"], None]
Deliver = Callable[[list[tuple[Job, "Tensors | Exception"]]], None]
