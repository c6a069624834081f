"""One model's requests outside the warm set: what was asked for, and the lane on which it runs, made when it is first
needed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future

from handlers.engines.engine import Engine
from handlers.spec import ModelSpec
from serving.lanes.cold import ColdLane
from serving.lanes.coldshapes import ColdShape, ColdShapes
from serving.lanes.job import Deliver
from serving.lanes.warmset import Dims

log = logging.getLogger("preheat.lane")


class ColdTraffic:
    """All methods are called on the event loop; ``open_engine`` and ``deliver`` on the cold lane's thread."""

    def __init__(self, spec: ModelSpec, open_engine: Callable[[], Engine], deliver: Deliver) -> None:
        self._spec = spec
        self._open_engine = open_engine
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._shapes = ColdShapes()
        self.running_lane: ColdLane | None = None  # None until it is needed, and after it was lost

    @property
    def depth(self) -> int:
        """How many requests wait."""
        return self.running_lane.depth if self.running_lane is not None else 0

    @property
    def running(self) -> int:
        """How many requests are in execution."""
        return self.running_lane.running if self.running_lane is not None else 0

    def note(self, dims: Dims) -> bool:
        """Notes that a shape was asked for; whether that was for the first time."""
        self._shapes.add(dims)
        return self._shapes.count(dims) == 1

    def met(self) -> dict[str, ColdShape]:
        """The shapes that were asked for, run or refused, with how often and when."""
        return {
            ",".join(
                f"{tensor.name}={'x'.join(map(str, sizes))}:{tensor.dtype}"
                for tensor, sizes in zip(self._spec.inputs, dims, strict=True)
            ): seen
            for dims, seen in self._shapes
        }

    def lane(self) -> ColdLane:
        """The lane, which loads an engine of its own when it is first needed; jobs may be given to it at once."""
        if self.running_lane is None:
            lane = self.running_lane = ColdLane(self._spec, self._open_engine, self._deliver)
            lane.ended.add_done_callback(lambda ended: self._ended(lane, ended))
            lane.start().add_done_callback(lambda loaded: self._ended(lane, loaded))
        return self.running_lane

    def _ended(self, lane: ColdLane, future: Future[None]) -> None:
        """Called on the lane's thread: one that did not load, or died, must not stand in the way of another."""
        if future.exception() is not None:
            log.error("model %s: the cold lane is lost: %s", self._spec.name, future.exception())
            self._loop.call_soon_threadsafe(self._forget, lane)

    def _forget(self, lane: ColdLane) -> None:
        if self.running_lane is lane:
            self.running_lane = None
