"""Executions whose inputs and outputs lie on the device: what is copied, and when, is this module's and not a guess.

A session that is given arrays copies them inside of an execution. Here the inputs of a warm shape have a place on the
device that is filled before, and outputs are left there and fetched after, so that copies can be timed by themselves.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnxruntime

from handlers.engines.session import quiet

# How builds call memory of the provider's device: AMD's of ROCm says CUDA for it, newer ones say what it is.
_NAMES = {"migraphx": ("gpu", "cuda"), "rocm": ("cuda",), "cuda": ("cuda",)}


@dataclass(frozen=True)
class Times:
    """Seconds of one execution: inputs to the device, the graph itself, outputs to the host."""

    copy_in: float
    execute: float
    copy_out: float


class Bound:
    """The places of one shape in one session."""

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        device: tuple[str, int],
        inputs: Mapping[str, np.ndarray],
        outputs: Sequence[str],
    ) -> None:
        self._session = session
        self._outputs = outputs
        self._options = quiet()
        self._binding = session.io_binding()
        self._places = {name: _place(array, device) for name, array in inputs.items()}
        for name, place in self._places.items():
            self._binding.bind_ortvalue_input(name, place)
        for name in outputs:  # without dims: an output's may depend on values
            self._binding.bind_output(name, *device)

    def run(self, inputs: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], Times]:
        """Executes the shape that this was made for."""
        started = time.perf_counter()
        for name, place in self._places.items():
            place.update_inplace(np.ascontiguousarray(inputs[name]))
        copied = time.perf_counter()
        self._session.run_with_iobinding(self._binding, self._options)
        executed = time.perf_counter()
        results = self._binding.copy_outputs_to_cpu()
        fetched = time.perf_counter()
        times = Times(copied - started, executed - copied, fetched - executed)
        return dict(zip(self._outputs, results, strict=True)), times


def device_of(provider: str, options: Mapping[str, str]) -> tuple[str, int] | None:
    """The name and number under which this build reaches the provider's device; None where it has no name for it."""
    number = int(options.get("device_id", "0"))
    for name in _NAMES.get(provider, ()):
        try:
            _place(np.zeros(1, np.float32), (name, number)).update_inplace(np.ones(1, np.float32))
        except Exception:  # a name that the build does not know is an Exception, a device that it lacks a RuntimeError
            continue
        return name, number
    return None


def _place(array: np.ndarray, device: tuple[str, int]) -> onnxruntime.OrtValue:
    return onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), *device)
