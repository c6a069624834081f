"""NVIDIA's management library (package nvidia-ml-py), where it is installed: the accelerators this process may use.

Asking it makes no context on a device and imports no framework.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

log = logging.getLogger("preheat.nvml")


@dataclass(frozen=True)
class Nvml:
    """The library, and its handles of the devices by the names that ``CUDA_VISIBLE_DEVICES`` or their order gives."""

    library: Any
    devices: Mapping[str, Any]

    def facts(self) -> dict[str, str]:
        """What of the devices decides which kernels fit: memory in GiB, multiprocessors or cores, how they are divided.

        What a device does not tell is left out.
        """
        found = {
            "gpu_memory_gib": self._all(lambda device: str(self.library.nvmlDeviceGetMemoryInfo(device).total >> 30)),
            "gpu_cores": self._all(self._cores),
            "gpu_partition": self._all(self._partition),
        }
        return {field: value for field, value in found.items() if value}

    def _all(self, fact: Callable[[Any], str]) -> str:
        values = []
        for device in self.devices.values():
            try:
                values.append(fact(device))
            except self.library.NVMLError:  # not for this kind of device
                continue
        return ", ".join(dict.fromkeys(values))

    def _cores(self, device: Any) -> str:
        try:
            return str(self.library.nvmlDeviceGetNumGpuCores(device))
        except self.library.NVMLError:  # a part of a device tells its multiprocessors instead
            return f"{self.library.nvmlDeviceGetAttributes_v2(device).multiprocessorCount} SM"

    def _partition(self, device: Any) -> str:
        try:
            current = self.library.nvmlDeviceGetMigMode(device)[0]
        except self.library.NVMLError:  # cannot be divided
            return "whole"
        return "MIG" if current else "whole"


def opened(environment: Mapping[str, str]) -> Nvml | None:
    """The library and the devices that ``environment`` lets a process see; None where either is missing."""
    try:
        import pynvml  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        chosen = environment.get("CUDA_VISIBLE_DEVICES")
        count = pynvml.nvmlDeviceGetCount()  # of the machine, whatever this process may use
        names = [item.strip() for item in chosen.split(",")] if chosen else [str(number) for number in range(count)]
        devices = {}
        for name in names:
            by_number = name.isdecimal()
            find = pynvml.nvmlDeviceGetHandleByIndex if by_number else pynvml.nvmlDeviceGetHandleByUUID
            devices[name] = find(int(name) if by_number else name)
    except pynvml.NVMLError as error:
        log.info("NVIDIA's library does not tell of accelerators: %s", error)
        return None
    return Nvml(pynvml, devices)
