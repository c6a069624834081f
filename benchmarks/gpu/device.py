"""The GPU: what it is, and how busy it is, as NVIDIA's library tells (nothing where there is none)."""

from __future__ import annotations

import statistics
import threading
from types import ModuleType
from typing import Any

_EVERY = 0.1  # seconds; the driver's own samples are from 1/6 s to 1 s long


def _library() -> ModuleType | None:
    try:
        import pynvml  # pyright: ignore[reportMissingImports]

        pynvml.nvmlInit()
    except Exception:  # no library, or no driver: whatever it raises, there is no such GPU
        return None
    return pynvml


def facts() -> dict[str, str]:
    """Name, driver, memory, and how many there are."""
    library = _library()
    if library is None:
        return {"name": "no GPU", "driver": "-", "memory": "-", "count": "0"}
    device = library.nvmlDeviceGetHandleByIndex(0)
    return {
        "name": str(library.nvmlDeviceGetName(device)),
        "driver": str(library.nvmlSystemGetDriverVersion()),
        "memory": f"{library.nvmlDeviceGetMemoryInfo(device).total / 1e9:.0f} GB",
        "count": str(library.nvmlDeviceGetCount()),
    }


def memory_used(devices: int) -> int:
    """Bytes in use on the first GPUs together."""
    library = _library()
    if library is None:
        return 0
    handles = [library.nvmlDeviceGetHandleByIndex(number) for number in range(devices)]
    return sum(int(library.nvmlDeviceGetMemoryInfo(handle).used) for handle in handles)


class Busy:
    """The share of time in which a kernel runs on the first GPUs, in percent, without the first and last samples:
    ``each`` of its own, ``percent`` of all of them. ``seen`` are the samples, means of the GPUs."""

    percent = 0.0
    each: tuple[float, ...] = ()

    def __init__(self, devices: int = 1) -> None:
        self._devices = devices

    def __enter__(self) -> Busy:
        self._stop = threading.Event()
        self._samples: list[list[int]] = []
        self._thread = threading.Thread(target=self._look, args=(_library(),))
        self._thread.start()
        return self

    def _look(self, library: Any) -> None:
        while library is not None and not self._stop.wait(_EVERY):
            handles = map(library.nvmlDeviceGetHandleByIndex, range(self._devices))
            self._samples.append([library.nvmlDeviceGetUtilizationRates(handle).gpu for handle in handles])

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        working = [sample for sample in self._samples if any(sample)]  # clients need a moment to begin
        middle = working[5:-5] or working
        self.each = tuple(statistics.mean(column) for column in zip(*middle, strict=True))
        self.percent = statistics.mean(self.each) if self.each else 0.0
        self.seen = [statistics.mean(sample) for sample in self._samples]
