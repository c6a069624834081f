"""The gauges of accelerators, with stand-ins for their makers' libraries."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace

import pytest

from serving.metrics.devices import DeviceGauges
from serving.metrics.metrics import Metrics


class Fault(Exception):
    """What the library raises."""


def library(count: int = 2, broken: bool = False) -> SimpleNamespace:
    def memory(device: str) -> SimpleNamespace:
        if broken:
            raise Fault("gone")
        return SimpleNamespace(used=3_000, total=9_000)

    return SimpleNamespace(
        NVMLError=Fault,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: count,
        nvmlDeviceGetHandleByIndex=lambda index: f"device {index}",
        nvmlDeviceGetHandleByUUID=lambda name: f"device {name}",
        nvmlDeviceGetName=lambda device: f"GPU of {device}",
        nvmlSystemGetDriverVersion=lambda: "580.1",
        nvmlDeviceGetMemoryInfo=memory,
        nvmlDeviceGetUtilizationRates=lambda device: SimpleNamespace(gpu=25),
    )


def amd(count: int = 2, activity: object = 70, broken: bool = False) -> SimpleNamespace:
    def memory(device: int) -> dict[str, int]:
        if broken:
            raise Fault("lost")
        return {"vram_used": 2048 + device, "vram_total": 196_592}

    return SimpleNamespace(
        AmdSmiException=Fault,
        amdsmi_init=lambda: None,
        amdsmi_get_processor_handles=lambda: list(range(count)),
        amdsmi_get_gpu_asic_info=lambda device: {"market_name": "AMD Instinct MI300X"},
        amdsmi_get_gpu_driver_info=lambda device: {"driver_name": "amdgpu", "driver_version": "6.12.12"},
        amdsmi_get_gpu_vram_usage=memory,
        amdsmi_get_gpu_activity=lambda device: {"gfx_activity": activity, "umc_activity": 3, "mm_activity": "N/A"},
    )


@pytest.fixture(autouse=True)
def no_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pynvml", "amdsmi"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def test_each_visible_device_has_its_gauges(monkeypatch: pytest.MonkeyPatch, metrics: Metrics) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", library())
    gauges = DeviceGauges(metrics, {"CUDA_VISIBLE_DEVICES": "1"})
    gauges.look()
    text = asyncio.run(metrics.exposition()).decode()
    assert gauges.present
    assert 'preheat_device_info{device="1",driver="580.1",name="GPU of device 1"} 1.0' in text
    assert 'preheat_device_memory_bytes{device="1",kind="used"} 3000.0' in text
    assert 'preheat_device_busy_ratio{device="1"} 0.25' in text
    assert 'device="0"' not in text


def test_all_devices_where_none_is_chosen(monkeypatch: pytest.MonkeyPatch, metrics: Metrics) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", library())
    DeviceGauges(metrics, {}).look()
    assert 'device="0"' in asyncio.run(metrics.exposition()).decode()


def test_a_device_that_tells_nothing_is_logged(
    monkeypatch: pytest.MonkeyPatch, metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", library(broken=True))
    DeviceGauges(metrics, {"CUDA_VISIBLE_DEVICES": "GPU-1f"}).look()
    assert "accelerator GPU-1f does not tell its state: gone" in caplog.text


def test_without_the_library_there_are_no_gauges(monkeypatch: pytest.MonkeyPatch, metrics: Metrics) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert not DeviceGauges(metrics, {}).present


def test_amds_library_tells_megabytes_and_percent(monkeypatch: pytest.MonkeyPatch, metrics: Metrics) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", amd())
    gauges = DeviceGauges(metrics, {"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "1"})
    gauges.look()
    text = asyncio.run(metrics.exposition()).decode()
    assert gauges.present
    assert 'preheat_device_info{device="1",driver="6.12.12",name="AMD Instinct MI300X"} 1.0' in text
    used = next(line for line in text.splitlines() if line.startswith("preheat_device_memory_bytes") and "used" in line)
    assert float(used.split()[-1]) == 2049 * 2**20
    assert 'preheat_device_busy_ratio{device="1"} 0.7' in text
    assert 'device="0"' not in text


def test_what_amds_library_does_not_know_is_left_out(monkeypatch: pytest.MonkeyPatch, metrics: Metrics) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", amd(count=1, activity="N/A"))
    DeviceGauges(metrics, {}).look()
    text = asyncio.run(metrics.exposition()).decode()
    assert 'kind="total"' in text and 'preheat_device_busy_ratio{device="0"}' not in text


def test_an_amd_device_that_is_lost_is_logged(
    monkeypatch: pytest.MonkeyPatch, metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", amd(count=1, broken=True))
    DeviceGauges(metrics, {}).look()
    assert "accelerator 0 does not tell its state: lost" in caplog.text
