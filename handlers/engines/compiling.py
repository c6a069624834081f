"""torch.compile: a callable for each shape, or one for all of them."""

from __future__ import annotations

import types
from collections.abc import Callable
from itertools import count

import torch

Forward = Callable[..., tuple[torch.Tensor, ...]]

_VARIANTS = 4096  # of one callable's code: more than shapes can differ in


class Compiler:
    """Gives each shape a callable of its own, so that neither a guard nor dynamo's limit on recompiles can make a
    request pay; or, where ``dynamic``, all shapes the same one."""

    def __init__(self, dynamic: bool) -> None:
        self._dynamic = dynamic
        self._names = count()
        self._made: dict[Forward, Forward] = {}  # of functions that all shapes share
        if dynamic:
            _allow_variants()

    def __call__(self, function: Forward) -> Forward:
        """A callable that compiles the function when it is called."""
        if self._dynamic and function in self._made:
            return self._made[function]
        # The name only tells profiles and logs apart; Inductor's cache does not depend on it.
        own = with_own_code(function, "forward" if self._dynamic else f"forward_{next(self._names)}")
        compiled = torch.compile(own, dynamic=self._dynamic, fullgraph=True)
        if self._dynamic:
            self._made[function] = compiled
        return compiled


def with_own_code(function: Forward, name: str) -> Forward:
    """The same function with a code object of its own: dynamo keeps compiled entries, and counts them, per code."""
    assert isinstance(function, types.FunctionType)
    code = function.__code__.replace(co_name=name)
    return types.FunctionType(code, function.__globals__, name, function.__defaults__, function.__closure__)


def _allow_variants() -> None:
    """Lifts dynamo's limit for this process: code for all shapes has variants for what they differ in (a batch of one,
    say), and beyond the limit it would fail."""
    from torch._dynamo import config  # slow to import, and whatever compiles needs it

    config.recompile_limit = config.accumulated_recompile_limit = _VARIANTS
