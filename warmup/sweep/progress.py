"""What a sweep tells whoever watches it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from handlers.shapes import Shape
from warmup.stores.store import Phase


@dataclass(frozen=True)
class Started:
    """A process for one model in one phase begins; ``shapes`` are to come."""

    phase: Phase
    model: str
    shapes: int


@dataclass(frozen=True)
class Advanced:
    """A shape is done, in ``seconds``; ``trouble`` says what went wrong, if anything."""

    phase: Phase
    model: str
    shape: Shape
    seconds: float
    trouble: str = ""


@dataclass(frozen=True)
class Note:
    """Something that the user should know, in one line."""

    text: str


Progress = Started | Advanced | Note
Report = Callable[[Progress], None]
