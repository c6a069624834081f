"""Gauges of the accelerators that a server process may use, from the library of their maker."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from serving.metrics.amd import AmdSmi
from serving.metrics.metrics import Metrics
from serving.metrics.nvidia import Nvidia

log = logging.getLogger("preheat.metrics")


class DeviceGauges:
    """None where there is no library or no device. AMD's device metrics exporter tells more, beside this server."""

    def __init__(self, metrics: Metrics, environment: Mapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        self._metrics = metrics
        self._makers = [maker for maker in (Nvidia(environment), AmdSmi(environment)) if maker.devices]
        for maker in self._makers:
            for name in maker.devices:
                metrics.device_info.labels(name, *maker.described(name)).set(1)

    @property
    def present(self) -> bool:
        return bool(self._makers)

    def look(self) -> None:
        """Sets the gauges to what is so now."""
        for maker in self._makers:
            for name in maker.devices:
                try:
                    used, total, busy = maker.state(name)
                except maker.fault as error:
                    log.warning("accelerator %s does not tell its state: %s", name, error)
                    continue
                self._metrics.device_memory.labels(name, "used").set(used)
                self._metrics.device_memory.labels(name, "total").set(total)
                if busy is not None:
                    self._metrics.device_busy.labels(name).set(busy)
