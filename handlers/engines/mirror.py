"""The device's copy of host memory, made while a body is still being received.

An accelerator that fetches the input of a request cannot begin before its last byte is there, and the request waits.
Here it fetches each piece as it comes, so that next to nothing is left to fetch when the request is run.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass

log = logging.getLogger("preheat")

_PIECE = 2 << 20  # bytes: few enough copies that asking for them does not hold up the thread that receives


@dataclass
class _Body:
    """How much of a body has been asked for, and, once that is all of it, what is done when the copy is."""

    asked: int = 0
    mark: object = None


class Mirror(ABC):
    """Which bodies of a host memory at ``address`` are on the device too.

    Any thread may say what has arrived, one for each body; the other methods are called by the owner of the memory and
    by the engine's thread. A body is known from its first byte's address until its memory is given out again.
    """

    def __init__(self, address: int) -> None:
        self._address = address
        self._bodies: dict[int, _Body] = {}
        self._broken = False

    @abstractmethod
    def copy(self, start: int, end: int) -> None:
        """Begins to copy these bytes of the memory, after all that was begun before."""

    @abstractmethod
    def mark(self) -> object:
        """Something that is done when all copies are that were begun until now."""

    def arrived(self, address: int, size: int, whole: bool) -> None:
        """The first ``size`` bytes of the body at ``address`` are there; ``whole`` if that is all of it."""
        if self._broken:
            return
        start = address - self._address
        body = self._bodies.setdefault(start, _Body())
        if size - body.asked < _PIECE and not whole:
            return
        try:
            self.copy(start + body.asked, start + size)
            body.asked = size
            if whole:
                body.mark = self.mark()
        except Exception:  # of the framework: inputs are still where they were received, and fetched from there
            log.exception("bodies are no longer copied to the device while they are received")
            self._broken = True

    def ended(self, start: int, size: int) -> None:
        """These bytes of the memory will be given out again: what is known of them holds no more."""
        for found in [body for body in list(self._bodies) if start <= body < start + size]:
            del self._bodies[found]

    def find(self, address: int, size: int) -> tuple[int, object] | None:
        """Where in the memory a tensor begins of which the device has, or will have, a copy, and the mark to wait for;
        None where it has none."""
        start = address - self._address
        for first, body in list(self._bodies.items()):
            if body.mark is not None and first <= start and start + size <= first + body.asked:
                return start, body.mark
        return None
