"""Which shape comes next, and whether it still fits: the most valuable first, by weight times the time it saves.

What a shape saves is its first call less a later one. It is measured where the shape was tuned before, else taken from
the model's other shapes, else guessed from what the model's engine has to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from handlers.shapes import Shape
from handlers.spec import ModelSpec

# Seconds that a first call costs on a machine like a laptop, by what it has to do; only until one was measured.
GUESSES = {"compile": 10.0, "compile+graph": 12.0, "graph": 2.0, "eager": 0.1, "onnx": 0.3, "python": 0.05}
# Sealing and proving run a tuned shape again: this share of its first call, and a few ordinary calls.
_AGAIN = 0.1
_CALLS = 9


@dataclass(frozen=True)
class Candidate:
    """A planned shape that is not tuned yet."""

    model: str
    shape: Shape
    weight: float


@dataclass
class Costs:
    """What was measured so far, in seconds: first calls, later calls, and how long a process takes to load a model."""

    guesses: Mapping[str, float]
    load: dict[str, float] = field(default_factory=dict)
    _calls: dict[str, dict[Shape, tuple[float, float]]] = field(default_factory=dict)
    _expected: dict[str, dict[Shape, tuple[float, float]]] = field(default_factory=dict)

    @classmethod
    def of(cls, specs: Iterable[ModelSpec]) -> Costs:
        return cls({spec.name: _guess(spec) for spec in specs})

    def measured(self, model: str, shape: Shape, first: float, steady: float | None) -> None:
        """A shape's first call, and a later one where there was one."""
        self._calls.setdefault(model, {})[shape] = (first, first if steady is None else min(first, steady))

    def expect(self, model: str, shape: Shape, first: float, steady: float | None) -> None:
        """What an earlier sweep measured: good to choose by, but not yet spent in this one."""
        self._expected.setdefault(model, {})[shape] = (first, first if steady is None else min(first, steady))

    def known(self, model: str) -> bool:
        """Whether any shape of the model was measured."""
        return bool(self._known(model))

    def first(self, model: str) -> dict[Shape | None, float]:
        """The first calls of a model's shapes; under None what to expect of any other."""
        calls = self._known(model)
        expected = sum(first for first, _ in calls.values()) / len(calls) if calls else self.guesses[model]
        return {None: expected} | {shape: first for shape, (first, _) in calls.items()}

    def savings(self, model: str) -> dict[Shape | None, float]:
        """What a request saves that does not make the first call; under None what to expect of any other shape."""
        calls = self._known(model)
        saved: dict[Shape | None, float] = {shape: first - steady for shape, (first, steady) in calls.items()}
        return {None: sum(saved.values()) / len(saved) if saved else self.guesses[model]} | saved

    def afterwards(self) -> float:
        """What sealing and proving all measured shapes will take."""
        calls = [call for shapes in self._calls.values() for call in shapes.values()]
        loads = sum(2 * self.load.get(model, 0.0) for model in self._calls)
        return loads + sum(2 * _AGAIN * first + _CALLS * steady for first, steady in calls)

    def _known(self, model: str) -> dict[Shape, tuple[float, float]]:
        return {**self._expected.get(model, {}), **self._calls.get(model, {})}


def ordered(candidates: Iterable[Candidate], costs: Costs) -> list[Candidate]:
    """Most valuable first; equals stay together by model, heaviest first."""
    candidates = list(candidates)
    savings = {model: costs.savings(model) for model in {candidate.model for candidate in candidates}}

    def value(candidate: Candidate) -> float:
        saved = savings[candidate.model]
        return candidate.weight * saved.get(candidate.shape, saved[None])

    return sorted(candidates, key=lambda c: (-value(c), c.model, -c.weight, c.shape.text))


def fits(candidate: Candidate, costs: Costs, left: float) -> bool:
    """Whether ``left`` seconds are enough to tune a shape and then to seal and prove all that is tuned.

    A model of which nothing was measured is tried as long as any time is left.
    """
    first = costs.first(candidate.model)
    expected = first.get(candidate.shape, first[None]) * (1 + 2 * _AGAIN) if costs.known(candidate.model) else 0.0
    return left > costs.afterwards() + expected


def _guess(spec: ModelSpec) -> float:
    return GUESSES[spec.engine.execution if spec.engine.kind == "torch" else spec.engine.kind]
