"""Messages between the sweep and its workers survive the line that they travel in."""

from __future__ import annotations

from pathlib import Path

import pytest

from handlers.shapes import Shape
from warmup.stores.store import Phase
from warmup.sweep.messages import Failed, Job, Loaded, Message, Ran, decode, encode

SHAPE = Shape.parse("images=8x3x224x224:fp16,threshold=:fp32")


@pytest.mark.parametrize(
    "message",
    [
        Job(Path("/models/a b"), Phase.PROVE, Path("/stores")),
        Loaded(1.5),
        Ran(SHAPE, 2.0, 0.5, {"inductor": {"a/b.so": "12"}}, {"inductor.fxgraph_cache_miss": 1}),
        Ran(SHAPE, 2.0, error="RuntimeError: out of\nmemory ü"),
        Failed("no provider"),
    ],
)
def test_a_message_is_one_line_and_comes_back_equal(message: Message) -> None:
    line = encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode(line) == message


def test_other_lines_are_refused() -> None:
    with pytest.raises(ValueError, match="kind 'shutdown'"):
        decode(b'{"kind": "shutdown"}')
