"""Memory and use of AMD's accelerators, as AMD's library tells (package amdsmi of ROCm, where it is installed)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

log = logging.getLogger("preheat.metrics")

_MIB = 1 << 20  # amdsmi_get_gpu_vram_usage tells megabytes of this size (AMD SMI, py-interface/README.md)


class AmdSmi:
    """The accelerators that this process may use, by name; none where the library or a device is missing."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.devices: dict[str, Any] = {}
        try:
            import amdsmi  # pyright: ignore[reportMissingImports]
        except (ImportError, KeyError, OSError):  # its C library is missing
            return
        self._library: Any = amdsmi
        self.fault: type[Exception] = amdsmi.AmdSmiException
        try:
            amdsmi.amdsmi_init()
            handles = amdsmi.amdsmi_get_processor_handles()
        except amdsmi.AmdSmiException as error:
            log.info("no gauges of AMD's accelerators: %s", error)
            return
        chosen = environment.get("HIP_VISIBLE_DEVICES") or environment.get("CUDA_VISIBLE_DEVICES") or ""
        names = (
            [item.strip() for item in chosen.split(",")] if chosen else [str(number) for number in range(len(handles))]
        )
        numbers = {name: int(name) for name in names if name.isdecimal() and int(name) < len(handles)}
        self.devices = {name: handles[number] for name, number in numbers.items()}

    def described(self, name: str) -> tuple[str, str]:
        """The product's name and the driver's version; empty where the library does not know."""
        device = self.devices[name]
        try:
            product = self._library.amdsmi_get_gpu_asic_info(device).get("market_name", "")
            driver = self._library.amdsmi_get_gpu_driver_info(device).get("driver_version", "")
        except self.fault:
            return "", ""
        return str(product), str(driver)

    def state(self, name: str) -> tuple[int, int, float | None]:
        """Bytes of memory in use and in all, and the share of time in which kernels ran, None where it is not told."""
        device = self.devices[name]
        memory = self._library.amdsmi_get_gpu_vram_usage(device)
        busy = self._library.amdsmi_get_gpu_activity(device).get("gfx_activity")
        share = busy / 100 if isinstance(busy, (int, float)) else None  # "N/A" on parts of a device
        return int(memory["vram_used"]) * _MIB, int(memory["vram_total"]) * _MIB, share
