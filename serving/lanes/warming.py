"""What makes a model warm in a process: proven shapes are replayed until enough of the expected traffic is covered."""

from __future__ import annotations

import time
from dataclasses import dataclass

from handlers.engines.engine import Engine, example
from handlers.spec import ModelSpec
from serving.lanes.warmset import WarmSet
from warmup.plan import Plan
from warmup.proof import Proof, ShapeProof

_ROUNDING = 1e-9  # of the sum of all weights, which is 1


@dataclass(frozen=True)
class Replayed:
    """``seconds`` are what one execution takes; ``note`` is how the shape runs, where that is not as described."""

    seconds: float
    note: str


def replay(engine: Engine, proof: ShapeProof) -> Replayed:
    """Warms a shape on the engine's thread; what the proof does not know of its time is measured."""
    engine.warm(proof.shape)
    note, seconds = engine.note(proof.shape), proof.steady_seconds
    if seconds is None:
        inputs = example(proof.shape)
        started = time.perf_counter()
        engine.run(inputs)
        seconds = time.perf_counter() - started
    return Replayed(seconds, note)


def coverage(warm: WarmSet, plan: Plan) -> float:
    """The share of the expected traffic whose shapes are warm."""
    return sum(planned.weight for planned in plan if planned.shape in warm)


def shortfall(warm: WarmSet, plan: Plan, spec: ModelSpec, proof: Proof | None) -> str:
    """What is lacking before requests may be taken; empty where nothing is, as with a model that is served unproven."""
    covered, wanted = coverage(warm, plan), spec.ready_coverage if proof is not None else 0.0
    if covered >= wanted - _ROUNDING:
        return ""
    return f"{covered:.3f} of the traffic is warm, ready_coverage is {wanted:.3f}"
