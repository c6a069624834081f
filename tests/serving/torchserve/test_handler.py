"""The handler in the parts that need no TorchServe around it; tests/e2e/torchserve has the rest, in the real one."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from handlers.errors import ModelError
from serving.prepare import Prepared
from serving.repository import BundleFacts
from warmup.stores.store import Settings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", ResourceWarning)  # TorchServe reads its version and leaves the file open
    from serving.torchserve.handler import PreheatHandler, Refused, _device


def _prepared(tmp_path: Path, **identity: str) -> Prepared:
    bundle = BundleFacts("sha256:" + "0" * 64, "pinned digest", identity)
    return Prepared((), (), tmp_path, Settings(), bundle)


def test_without_an_accelerator_the_model_runs_on_the_cpu(tmp_path: Path) -> None:
    assert _device(_prepared(tmp_path), None) == {"torch.device": "cpu"}


def test_a_worker_that_has_one_uses_the_one_that_it_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert _device(_prepared(tmp_path, gpu_arch="gfx942"), 3) == {}


def test_a_worker_that_sees_the_others_too_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    with pytest.raises(ModelError, match="sees 8 accelerators; model-config.yaml: parallelType: custom"):
        _device(_prepared(tmp_path, gpu_arch="gfx942"), 0)


def test_what_was_proven_on_an_accelerator_is_not_served_without_one(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="proven on gfx942, and TorchServe gave this worker no accelerator"):
        _device(_prepared(tmp_path, gpu_arch="gfx942"), None)


class _Context:
    """As much of TorchServe's context as a start reads (ts/context.py)."""

    manifest = {"model": {"modelName": "double", "modelVersion": "3"}}
    metrics = None

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.system_properties = {"model_dir": str(folder), "gpu_id": None}
        self.model_yaml_config = config


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"handler": {"preheat": {"bundel": "x"}}}, "handler.preheat.bundel: unknown key"),
        ({}, "No such file"),
    ],
)
def test_a_start_that_cannot_be_is_refused_in_one_line(
    tmp_path: Path,
    config: dict[str, Any],
    says: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "torch._inductor.config", raising=False)  # another test may have compiled
    handler = PreheatHandler()
    with pytest.raises(Refused, match=says):
        handler.initialize(_Context(tmp_path, config))
    (record,) = [record for record in caplog.records if record.name == "preheat.torchserve"]
    assert record.getMessage().startswith("model double is not served: ")
    assert not handler.initialized
