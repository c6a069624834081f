"""The gauges of accelerators, with a stand-in for NVIDIA's library."""

from __future__ import annotations

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


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def test_each_visible_device_has_its_gauges(monkeypatch: pytest.MonkeyPatch, metrics: Metrics) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", library())
    gauges = DeviceGauges(metrics, {"CUDA_VISIBLE_DEVICES": "1"})
    gauges.look()
    text = metrics.exposition().decode()
    assert gauges.present
    assert 'preheat_device_info{device="1",driver="580.1",name="GPU of device 1"} 1.0' in text
    assert 'preheat_device_memory_bytes{device="1",kind="used"} 3000.0' in text
    assert 'preheat_device_busy_ratio{device="1"} 0.25' in text
    assert 'device="0"' not in text


def test_all_devices_where_none_is_chosen(monkeypatch: pytest.MonkeyPatch, metrics: Metrics) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", library())
    DeviceGauges(metrics, {}).look()
    assert 'device="0"' in metrics.exposition().decode()


def test_a_device_that_tells_nothing_is_logged(
    monkeypatch: pytest.MonkeyPatch, metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", library(broken=True))
    DeviceGauges(metrics, {"CUDA_VISIBLE_DEVICES": "GPU-1f"}).look()
    assert "accelerator GPU-1f does not tell its state: gone" in caplog.text


def test_without_the_library_there_are_no_gauges(monkeypatch: pytest.MonkeyPatch, metrics: Metrics) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert not DeviceGauges(metrics, {}).present
