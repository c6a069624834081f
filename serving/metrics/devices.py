"""Memory and use of NVIDIA's accelerators, as NVIDIA's library tells (package nvidia-ml-py, where it is installed).

For AMD's, AMD's own device metrics exporter does this.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

from serving.metrics.metrics import Metrics

log = logging.getLogger("preheat.metrics")


class DeviceGauges:
    """The gauges of the accelerators that this process may use; none where the library or a device is missing."""

    def __init__(self, metrics: Metrics, environment: Mapping[str, str] | None = None) -> None:
        self._metrics = metrics
        self._library: Any = None
        self._devices: dict[str, Any] = {}
        try:
            import pynvml  # pyright: ignore[reportMissingImports]
        except ImportError:
            return
        try:
            pynvml.nvmlInit()
            for name in _visible(pynvml.nvmlDeviceGetCount(), os.environ if environment is None else environment):
                by_number = name.isdecimal()
                find = pynvml.nvmlDeviceGetHandleByIndex if by_number else pynvml.nvmlDeviceGetHandleByUUID
                device = find(int(name) if by_number else name)
                metrics.device_info.labels(
                    name, pynvml.nvmlDeviceGetName(device), pynvml.nvmlSystemGetDriverVersion()
                ).set(1)
                self._devices[name] = device
            self._library = pynvml
        except pynvml.NVMLError as error:
            log.info("no gauges of accelerators: %s", error)

    @property
    def present(self) -> bool:
        return bool(self._devices)

    def look(self) -> None:
        """Sets the gauges to what is so now."""
        for name, device in self._devices.items():
            try:
                memory = self._library.nvmlDeviceGetMemoryInfo(device)
                busy = self._library.nvmlDeviceGetUtilizationRates(device).gpu
            except self._library.NVMLError as error:
                log.warning("accelerator %s does not tell its state: %s", name, error)
                continue
            self._metrics.device_memory.labels(name, "used").set(memory.used)
            self._metrics.device_memory.labels(name, "total").set(memory.total)
            self._metrics.device_busy.labels(name).set(busy / 100)


def _visible(count: int, environment: Mapping[str, str]) -> list[str]:
    """The library knows all devices of the machine, whatever this process may use."""
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    return [item.strip() for item in chosen.split(",")] if chosen else [str(number) for number in range(count)]
