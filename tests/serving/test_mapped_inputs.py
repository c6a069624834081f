"""Which requests may leave their inputs in memory that nobody on the host may look at."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from handlers.handler import Handler, Tensors
from handlers.shapes import Shape
from handlers.spec import ModelSpec
from serving.lanes.warmset import WarmSet
from serving.model import ServedModel


class Checking(Handler):
    def check(self, inputs: Tensors) -> None: ...


def model(handler: Handler | None = None, readable: tuple[int, ...] = (1, 2, 4), **changes: Any) -> Any:
    spec = ModelSpec.model_validate(
        {
            "name": "m",
            "engine": {"kind": "python", "source": "net.py:Net"},
            "inputs": [{"name": "x", "dtype": "fp32", "dims": ["batch", "width"]}],
            "outputs": [{"name": "y", "dtype": "fp32", "dims": ["batch"]}],
            "shapes": {"grid": {"batch": [1, 2, 4], "width": [8]}, "pad": ["width"]},
            **changes,
        }
    )
    warm = WarmSet(spec)
    for rows in (1, 2, 4):
        warm.admit(Shape.parse(f"x={rows}x8:fp32"), 0.1)
    shapes = {Shape.parse(f"x={rows}x8:fp32") for rows in readable}
    made: Any = SimpleNamespace(spec=spec, warm=warm, handler=handler or Handler(), _reads_mapped=shapes)
    return made


@pytest.mark.parametrize(
    ("served", "dims", "may"),
    [
        (model(), (1, 8), True),
        (model(), (3, 8), True),  # rows that are missing are filled on the device
        (model(), (5, 8), False),  # cold: another engine runs it
        (model(), (1, 7), False),
        (model(handler=Checking()), (1, 8), False),  # looks at values
        (model(cold="pad"), (1, 8), False),  # its batch may have others that are padded by the processor
        (model(readable=(1, 2)), (1, 8), False),  # a batch of 4 is joined by the processor
        (model(readable=(4,)), (3, 8), True),
        (model(readable=(4,)), (2, 8), False),
    ],
)
def test_only_where_nobody_looks_at_them(served: Any, dims: tuple[int, int], may: bool) -> None:
    assert ServedModel.reads_mapped(served, (dims,)) is may
