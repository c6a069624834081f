"""Facts of NVIDIA's accelerators, with a stand-in for its library."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from warmup.nvml import opened


class Fault(Exception):
    """What the library raises."""


def refuse(*_: object) -> None:
    raise Fault("not supported")


def library(**changes: object) -> SimpleNamespace:
    known: dict[str, object] = {
        "NVMLError": Fault,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetHandleByUUID": lambda name: name,
        "nvmlDeviceGetMemoryInfo": lambda device: SimpleNamespace(total=150_754_820_096),
        "nvmlDeviceGetNumGpuCores": lambda device: 16896,
        "nvmlDeviceGetMigMode": lambda device: [0, 0],
    }
    return SimpleNamespace(**{**known, **changes})


def facts(monkeypatch: pytest.MonkeyPatch, found: SimpleNamespace, visible: str = "") -> dict[str, str]:
    monkeypatch.setitem(sys.modules, "pynvml", found)
    nvml = opened({"CUDA_VISIBLE_DEVICES": visible})
    assert nvml is not None
    return nvml.facts()


def test_memory_cores_and_whether_it_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    assert facts(monkeypatch, library()) == {"gpu_memory_gib": "140", "gpu_cores": "16896", "gpu_partition": "whole"}


def test_a_part_of_a_device_tells_its_multiprocessors(monkeypatch: pytest.MonkeyPatch) -> None:
    part = library(
        nvmlDeviceGetNumGpuCores=refuse,
        nvmlDeviceGetAttributes_v2=lambda device: SimpleNamespace(multiprocessorCount=16),
        nvmlDeviceGetMemoryInfo=lambda device: SimpleNamespace(total=17 << 30),
        nvmlDeviceGetMigMode=lambda device: [1, 1],
    )
    found = facts(monkeypatch, part, visible="MIG-1f")
    assert found == {"gpu_memory_gib": "17", "gpu_cores": "16 SM", "gpu_partition": "MIG"}


def test_what_a_device_does_not_tell_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    old = library(nvmlDeviceGetNumGpuCores=refuse, nvmlDeviceGetAttributes_v2=refuse, nvmlDeviceGetMigMode=refuse)
    assert facts(monkeypatch, old) == {"gpu_memory_gib": "140", "gpu_partition": "whole"}


@pytest.mark.parametrize("found", [None, library(nvmlInit=refuse)])
def test_without_library_or_driver_nothing_is_told(monkeypatch: pytest.MonkeyPatch, found: object) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", found)
    assert opened({}) is None
