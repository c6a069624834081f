"""What the probes ask of packages that are not here, answered by stand-ins with the packages' own function names."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from warmup.doctor.probe import amdsmi_facts, torch_facts


@pytest.fixture
def amdsmi(monkeypatch) -> ModuleType:
    module = ModuleType("amdsmi")
    calls: list[str] = []

    class AmdSmiLibraryException(Exception):
        pass

    def partition(handle: int) -> str:
        if handle == 1:
            raise AmdSmiLibraryException("not supported")
        return "CPX"

    asic = {"market_name": "AMD Instinct MI300X", "target_graphics_version": "gfx942", "num_compute_units": 38}
    module.__dict__.update(
        AmdSmiLibraryException=AmdSmiLibraryException,
        amdsmi_init=lambda: calls.append("init"),
        amdsmi_shut_down=lambda: calls.append("shut down"),
        amdsmi_get_processor_handles=lambda: [0, 1],
        amdsmi_get_gpu_asic_info=lambda handle: asic,
        amdsmi_get_gpu_driver_info=lambda handle: {"driver_version": "6.14.14"},
        amdsmi_get_gpu_compute_partition=partition,
        calls=calls,
    )
    monkeypatch.setitem(sys.modules, "amdsmi", module)
    return module


def test_what_the_management_library_says(amdsmi):
    first, second = amdsmi_facts()["gpus"]
    assert first == {
        "name": "AMD Instinct MI300X",
        "arch": "gfx942",
        "cu_count": 38,
        "driver": "6.14.14",
        "partition": "CPX",
    }
    assert second["partition"] == ""
    assert amdsmi.calls == ["init", "shut down"]


def test_what_pytorch_says():
    import torch

    facts = torch_facts()
    assert facts["hip"] == torch.version.hip
    assert len(facts["devices"]) == torch.cuda.device_count()
