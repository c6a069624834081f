"""Memory and use of NVIDIA's accelerators, as NVIDIA's library tells (package nvidia-ml-py, where it is installed)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from warmup.nvml import opened


class Nvidia:
    """The accelerators that this process may use, by name; none where the library or a device is missing."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        found = opened(environment)
        self.devices: Mapping[str, Any] = found.devices if found else {}
        if found:
            self._library = found.library
            self.fault: type[Exception] = found.library.NVMLError

    def described(self, name: str) -> tuple[str, str]:
        """The product's name and the driver's version."""
        return self._library.nvmlDeviceGetName(self.devices[name]), self._library.nvmlSystemGetDriverVersion()

    def state(self, name: str) -> tuple[int, int, float | None]:
        """Bytes of memory in use and in all, and the share of time in which kernels ran."""
        memory = self._library.nvmlDeviceGetMemoryInfo(self.devices[name])
        busy = self._library.nvmlDeviceGetUtilizationRates(self.devices[name]).gpu
        return memory.used, memory.total, busy / 100
