from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from warmup.doctor.finding import Severity
from warmup.doctor.kfd import Gpu
from warmup.doctor.packages import (
    Provider,
    Torch,
    check_onnxruntime,
    check_torch,
    check_torch_devices,
    onnxruntime_builds,
    torch_build,
)
from warmup.doctor.probe import ask
from warmup.doctor.system import Driver

GPU = Gpu(1, "gfx942", 304, 8, "SPX", 0x74A1, 128)
DRIVER = Driver("6.12.12", "6.8.0", "6.4")
CPU, ROCM = Torch("2.9.0+cpu", "", ""), Torch("2.9.0+rocm6.4", "6.4.43482-0f2d60242", "")


def severities(findings) -> list[Severity]:
    return [finding.severity for finding in findings]


def test_a_build_of_pytorch_must_fit_the_node():
    assert check_torch(ROCM, [GPU], DRIVER) == check_torch(CPU, [], DRIVER) == check_torch(None, [GPU], DRIVER) == []
    assert severities(check_torch(CPU, [GPU], DRIVER)) == [Severity.ERROR]
    assert severities(check_torch(ROCM, [], DRIVER)) == [Severity.ERROR]
    old = check_torch(ROCM, [GPU], Driver("6.2.4", "6.5.0", "5.7"))
    assert severities(old) == [Severity.ERROR] and "PyTorch's own ROCm" in old[0].what


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"error": "libamdhip64.so.6: cannot open shared object file"}, "importing fails: libamdhip64"),
        ({"devices": []}, "sees no device"),
        ({"devices": [{"arch": "gfx942:sramecc+:xnack-", "multiprocessors": 38}]}, "('gfx942', 38)"),
    ],
)
def test_pytorch_must_see_what_the_kernel_lists(facts, words):
    (finding,) = check_torch_devices(facts, [GPU])
    assert words in finding.what
    assert check_torch_devices({"devices": [{"arch": "gfx942:xnack-", "multiprocessors": 304}]}, [GPU]) == []


def test_two_builds_of_onnxruntime():
    findings = check_onnxruntime({"onnxruntime": "1.22.0", "onnxruntime-rocm": "1.22.2"}, [], [])
    assert severities(findings) == [Severity.ERROR] and "both installed" in findings[0].what


def test_a_provider_that_is_listed_but_does_not_load():
    builds = {"onnxruntime-rocm": "1.22.2"}
    broken = Provider("rocm", Path("/x/libonnxruntime_providers_rocm.so"), False, "libhipblas.so.3: cannot open")
    assert severities(check_onnxruntime(builds, [broken], [])) == [Severity.WARNING]
    (finding,) = check_onnxruntime(builds, [broken], [GPU])
    assert finding.severity is Severity.ERROR
    assert "ROCMExecutionProvider is listed, but does not load: libhipblas.so.3" in finding.what
    working = Provider("rocm", Path("/x"), True, "")
    assert check_onnxruntime(builds, [working], [GPU]) == []


def test_a_build_without_a_provider_for_the_gpu_is_noted():
    assert severities(check_onnxruntime({"onnxruntime": "1.22.0"}, [], [GPU])) == [Severity.NOTE]
    assert check_onnxruntime({"onnxruntime": "1.22.0"}, [], []) == []


def test_the_installed_builds_are_found_without_importing_them():
    code = (
        "import sys, json; from warmup.doctor.packages import torch_build, onnxruntime_builds;"
        "t = torch_build(); b = onnxruntime_builds();"
        "print(json.dumps([t.version if t else '', b, sorted({'torch', 'onnxruntime'} & set(sys.modules))]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    version, builds, imported = json.loads(done.stdout)
    import torch

    assert version == torch.__version__
    assert builds == onnxruntime_builds() and len(builds) >= 1
    assert imported == []
    build = torch_build()
    assert build is not None and (build.hip or None) == torch.version.hip


def test_a_library_is_tried_in_a_process_of_its_own(tmp_path):
    (tmp_path / "libbroken.so").write_bytes(b"not a library")
    broken = ask("library", str(tmp_path / "libbroken.so"))
    assert broken["loads"] is False and "libbroken.so" in broken["error"]
    missing = ask("library", "libm.so.6", "libnosuchthing.so.9")
    assert missing["loads"] is False and "libnosuchthing.so.9" in missing["error"]
    assert ask("library", "libm.so.6") == {"loads": True}


def test_a_probe_that_fails_says_why():
    assert ask("nosuchprobe") == {"error": "KeyError: 'nosuchprobe'"}
