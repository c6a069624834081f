from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from handlers.handler import Tensors
from handlers.shapes import Shape
from handlers.spec import ModelSpec
from serving.lanes.warming import coverage, replay, shortfall
from serving.lanes.warmset import WarmSet
from warmup.plan import Plan, PlannedShape
from warmup.proof import Proof, ShapeProof

SMALL, LARGE = Shape.parse("x=1x4:fp32"), Shape.parse("x=1x8:fp32")


class Engine:
    def __init__(self) -> None:
        self.did: list[object] = []

    def warm(self, shape: Shape) -> None:
        self.did.append(shape.text)

    def note(self, shape: Shape) -> str:
        return "runs eagerly"

    def run(self, inputs: Mapping[str, np.ndarray]) -> Tensors:
        self.did.append(inputs["x"].shape)
        return {"y": inputs["x"]}


@pytest.mark.parametrize("known", [0.25, None])
def test_a_time_that_the_proof_does_not_know_is_measured(known: float | None) -> None:
    engine = Engine()
    replayed = replay(engine, ShapeProof(SMALL, 1.0, True, 2.0, 0.5, known))  # type: ignore[arg-type]
    assert replayed.note == "runs eagerly"
    if known is None:
        assert engine.did == ["x=1x4:fp32", (1, 4)] and replayed.seconds > 0
    else:
        assert engine.did == ["x=1x4:fp32"] and replayed.seconds == known


def test_what_is_lacking_is_named_until_enough_is_warm(spec: ModelSpec) -> None:
    plan = Plan("m", (PlannedShape(SMALL, 0.7), PlannedShape(LARGE, 0.3)))
    proof = Proof("m", tuple(ShapeProof(shape, 0.5, True, 2.0, 0.5, 0.25) for shape in (SMALL, LARGE)))
    warm = WarmSet(spec)
    warm.admit(SMALL, 0.25)
    assert coverage(warm, plan) == 0.7
    assert shortfall(warm, plan, spec, proof) == "0.700 of the traffic is warm, ready_coverage is 1.000"
    assert shortfall(warm, plan, spec.model_copy(update={"ready_coverage": 0.7}), proof) == ""
    assert shortfall(warm, plan, spec, None) == ""
    warm.admit(LARGE, 0.25)
    assert shortfall(warm, plan, spec, proof) == ""
