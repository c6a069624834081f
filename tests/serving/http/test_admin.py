"""Warming one more shape by hand, as far as it needs no server."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from handlers.shapes import Shape
from handlers.spec import ModelSpec
from serving.http.admin import AdminApplication

ENGINE = {"kind": "torch", "source": "n.py:N", "weights": "random:0", "execution": "compile"}


class Model:
    def __init__(self, dynamic: bool) -> None:
        tensor = {"dtype": "fp32", "dims": ["batch", 3]}
        self.name = "m"
        self.spec = ModelSpec.model_validate(
            {
                "name": "m",
                "engine": {**ENGINE, "dynamic_shapes": dynamic},
                "inputs": [{**tensor, "name": "x"}],
                "outputs": [{**tensor, "name": "y"}],
                "shapes": {"grid": {"batch": [1, 2]}},
            }
        )
        self.warm: list[Shape] = []

    async def warm_now(self, shape: Shape) -> None:
        self.warm.append(shape)


def asked(model: Model, shape: str) -> tuple[int, dict[str, Any]]:
    async def main() -> tuple[int, dict[str, Any]]:
        repository: Any = SimpleNamespace(get=lambda name: model)
        admin = AdminApplication(repository, lambda name: repository.get(name), "token")
        request: Any = SimpleNamespace(path_params={"model": "m"}, body=body)
        answer = await admin._warm(request)
        return answer.status_code, orjson.loads(answer.body)

    async def body() -> bytes:
        return orjson.dumps({"shape": shape})

    return asyncio.run(main())


@pytest.mark.parametrize(("dynamic", "status"), [(False, 200), (True, 409)])
def test_a_plan_that_is_proven_as_a_whole_gets_no_further_shape(dynamic: bool, status: int) -> None:
    model = Model(dynamic)
    found, answer = asked(model, "x=5x3:fp32")
    assert found == status and len(model.warm) == (0 if dynamic else 1)
    assert answer.get("warm", False) is not dynamic


def test_a_shape_that_does_not_fit_the_inputs_is_refused() -> None:
    model = Model(dynamic=False)
    assert asked(model, "x=5x4:fp32")[0] == asked(model, "x5")[0] == 400
    assert model.warm == []
