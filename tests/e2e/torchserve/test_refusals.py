"""Workers in TorchServe that must not start, and one that may start cold because its archive says so."""

from __future__ import annotations

import io
import json
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import onnx
import pytest
import yaml
from onnx import TensorProto, helper

from serving.torchserve.process import TorchServeProcess
from serving.torchserve.settings import CONFIG

_ON_ROCM = """
name: on-rocm
engine: {kind: onnx, source: "identity.onnx", providers: [rocm]}
inputs: [{name: x, dtype: float32, dims: [batch, 4]}]
shapes: {list: ["x=1x4:fp32"]}
"""


@pytest.fixture(scope="module")
def torchserve(place: Path, archived: Callable[..., Path], java: None) -> Iterator[TorchServeProcess]:
    """TorchServe with ``counter`` whose bundle is of another machine, ``double`` whose bundle is gone, ``loose`` whose
    bundle is gone as well and need not be there, and ``on-rocm`` whose provider this machine lacks."""
    other, gone = place / "other", place / "gone"
    shutil.copytree(place / "bundle", other)
    manifest = json.loads((other / "manifest.json").read_text())
    manifest["identity"]["machine"] = "sparc64"
    (other / "manifest.json").write_text(json.dumps(manifest))
    shutil.copytree(place / "bundle", gone)
    loose = place / "more" / "loose"
    shutil.copytree(place / "models" / "double", loose)
    text = (loose / "model.yaml").read_text()
    (loose / "model.yaml").write_text(text.replace("name: double", "name: loose").replace("cold: pad", "cold: run"))
    on_rocm = place / "more" / "on-rocm"
    on_rocm.mkdir()
    (on_rocm / "model.yaml").write_text(_ON_ROCM)
    onnx.save(_identity(), on_rocm / "identity.onnx")

    store = archived("refused", "counter", "--bundle", str(other), "--trust")
    archived("refused", "double", "--bundle", str(gone), "--reference")
    archived("refused", "loose", "on-rocm", "--unproven", "--model-store", str(place / "more"))
    shutil.rmtree(gone)
    _reconfigure(store / "loose.mar", {}, bundle=str(gone))
    for refused in ("counter", "double", "on-rocm"):  # a second try will do no better
        _reconfigure(store / f"{refused}.mar", {"maxRetryTimeoutInSec": 0})
    environment = {**os.environ, "XDG_CACHE_HOME": str(place / "empty")}  # where the bundle that is gone is not cached
    with TorchServeProcess(store, place / "refusing", environment) as server:
        server.wait_answering(120)
        yield server


def _identity() -> onnx.ModelProto:
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "identity", tensors[:1], tensors[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _reconfigure(archive: Path, keys: dict[str, int], **preheat: object) -> None:
    """Changes keys of an archive's ``model-config.yaml``, and of its ``handler: preheat:``."""
    with zipfile.ZipFile(archive) as source:
        files = {name: source.read(name) for name in source.namelist()}
    config = yaml.safe_load(files[CONFIG])
    config |= keys
    config["handler"]["preheat"] |= preheat
    with zipfile.ZipFile(archive, "w") as target:
        for name, data in (files | {CONFIG: yaml.safe_dump(config).encode()}).items():
            target.writestr(name, data)


def test_a_bundle_of_another_machine_is_refused_with_the_fields_that_differ(torchserve: TorchServeProcess) -> None:
    line = torchserve.wait_logged("model counter is not served", 120)
    assert "machine: expected sparc64, found" in line
    assert torchserve.workers("counter") != ["READY"]
    metrics = httpx.get(f"{torchserve.metrics_url}/metrics", timeout=60).text
    assert 'preheat_bundle_difference{model="counter",field="machine",expected="sparc64"' in metrics


def test_a_bundle_that_is_gone_is_refused_where_a_proof_is_required(torchserve: TorchServeProcess) -> None:
    line = torchserve.wait_logged("model double is not served", 120)
    assert "a proof is required" in line
    assert "/gone" in line
    assert torchserve.workers("double") != ["READY"]


def test_where_no_proof_is_required_the_model_is_served_cold(torchserve: TorchServeProcess) -> None:
    torchserve.wait_logged(
        "/gone: no bundle here: manifest.json is missing): served unproven, every shape is cold", 120
    )
    file = io.BytesIO()
    np.save(file, np.array([[1, 2, 3]], np.float32))
    answer = httpx.post(f"{torchserve.url}/predictions/loose", content=file.getvalue(), timeout=120)
    assert answer.json() == {"y": [[2, 4, 6]]}
    assert torchserve.workers("loose") == ["READY"]
    metrics = httpx.get(f"{torchserve.metrics_url}/metrics", timeout=60).text
    assert 'preheat_shape_lookups_total{model="loose",outcome="cold"' in metrics
    assert 'preheat_cold_seconds_total{model="loose",store="first_call"' in metrics


def test_a_provider_that_cannot_be_had_is_refused(torchserve: TorchServeProcess) -> None:
    line = torchserve.wait_logged("model on-rocm is not served", 120)
    assert "no listed provider can be had: rocm: " in line
    assert torchserve.workers("on-rocm") != ["READY"]


def test_ping_says_that_a_model_cannot_be_served(torchserve: TorchServeProcess) -> None:
    torchserve.wait_logged("Auto recovery start timestamp", 120)
    answer = httpx.get(f"{torchserve.url}/ping", timeout=60)
    assert (answer.status_code, answer.json()) == (500, {"status": "Unhealthy"})
