"""What the endpoint of a model takes as a body, and where it lies."""

from __future__ import annotations

from concurrent.futures import Executor
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from handlers.engines.hostmemory import HostMemory
from handlers.spec import LimitsSpec, TensorSpec
from serving.http.inference import Endpoint
from serving.http.request import Request
from serving.model import ServedModel


class Memory(HostMemory):
    def __init__(self) -> None:
        self.whole = np.zeros(1 << 16, np.uint8)
        super().__init__(self.whole.ctypes.data, self.whole.nbytes, self.whole)


def endpoint(memory: HostMemory | None) -> Endpoint:
    spec = SimpleNamespace(
        limits=LimitsSpec(request_bytes=1000, timeout_s=2.0), inputs=(TensorSpec(name="x", dtype="fp32", dims=("n",)),)
    )
    model: Any = SimpleNamespace(spec=spec, outputs=(), _memory=memory)
    model.room = lambda size: ServedModel.room(model, size)
    return Endpoint(model, cast(Executor, None))


def request(headers: dict[str, str]) -> Request:
    return Request(cast(Any, None), "POST", "/v2/models/m/infer", headers=headers)


def test_a_binary_body_lies_in_the_engines_memory() -> None:
    memory = Memory()
    limits = endpoint(memory).limits(request({"inference-header-content-length": "24"}))
    assert (limits.most, limits.seconds, limits.aligned) == (1000, 2.0, 24)
    assert limits.room is not None
    body = limits.room(500)
    assert body is not None and memory.holds(np.frombuffer(body, np.uint8).ctypes.data)


@pytest.mark.parametrize("length", [None, "none"])
def test_another_body_lies_anywhere(length: str | None) -> None:
    headers = {"inference-header-content-length": length} if length else {}
    limits = endpoint(Memory()).limits(request(headers))
    assert (limits.most, limits.seconds, limits.aligned) == (1000, 2.0, 0)
    assert limits.room is None


def test_an_engine_without_such_memory_takes_bodies_too() -> None:
    limits = endpoint(None).limits(request({"inference-header-content-length": "24"}))
    assert limits.room is not None and limits.room(500) is None
