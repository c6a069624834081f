"""The identity of a node, read from files as AMD's and NVIDIA's drivers leave them, and what differs between two."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from handlers.spec import ModelSpec
from warmup.identity import Difference, differences, engine_facts, identity, node
from warmup.stores.registry import STORES

# As in the properties files of a processor and of an MI300X in CPX mode.
CPU = "cpu_cores_count 96\nsimd_count 0\nsimd_per_cu 0\ngfx_target_version 0\n"
GPU = "simd_count 152\nsimd_per_cu 4\ngfx_target_version 90402\ndrm_render_minor 128\n"


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.fixture(autouse=True)
def no_selection(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "PYTORCH_MIOPEN_SUGGEST_NHWC", "ATEN_CPU_CAPABILITY"):
        monkeypatch.delenv(name, raising=False)


def amd(root: Path, *gpus: str) -> None:
    nodes = "sys/class/kfd/kfd/topology/nodes"
    write(root, {f"{nodes}/0/properties": CPU})
    write(root, {f"{nodes}/{number}/properties": gpu for number, gpu in enumerate(gpus, 1)})
    write(
        root,
        {
            "sys/class/drm/renderD128/device/current_compute_partition": "CPX\n",
            "sys/module/amdgpu/version": "6.12.12\n",
            "opt/rocm/.info/version": "7.1.1\n",
        },
    )


def test_an_amd_gpu(tmp_path: Path) -> None:
    amd(tmp_path, GPU)
    found = node(tmp_path)
    assert {key: found[key] for key in ("gpu_arch", "gpu_compute_units", "gpu_partition", "gpu_driver", "rocm")} == {
        "gpu_arch": "gfx942",
        "gpu_compute_units": "38",
        "gpu_partition": "CPX",
        "gpu_driver": "6.12.12",
        "rocm": "7.1.1",
    }


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (90010, "gfx90a"),
        (90402, "gfx942"),
        (90500, "gfx950"),
        (110501, "gfx1151"),
        (90006, "gfx906"),
        (100300, "gfx1030"),
    ],
)
def test_names_of_architectures(tmp_path: Path, version: int, name: str) -> None:
    amd(tmp_path, GPU.replace("90402", str(version)))
    assert node(tmp_path)["gpu_arch"] == name


def test_equal_gpus_are_one_fact_and_unequal_ones_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    amd(tmp_path, GPU, GPU, GPU.replace("90402", "90010"))
    assert node(tmp_path)["gpu_arch"] == "gfx942, gfx90a"
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1")
    assert node(tmp_path)["gpu_arch"] == "gfx942"
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "2")
    assert node(tmp_path)["gpu_arch"] == "gfx90a"


def test_an_nvidia_gpu(tmp_path: Path) -> None:
    version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build\n"
    write(
        tmp_path,
        {
            "proc/driver/nvidia/version": version,
            "proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: \t\t NVIDIA H200\nIRQ: 44\n",
        },
    )
    found = node(tmp_path)
    assert (found["gpu_arch"], found["gpu_driver"]) == ("NVIDIA H200", "NVIDIA 580.159.03")


def test_a_plain_machine_has_no_gpu_fields(tmp_path: Path) -> None:
    write(tmp_path, {"proc/cpuinfo": "processor: 0\nflags\t\t: fpu vme avx2 sse4_2 smep ibrs avx512f\n"})
    found = node(tmp_path)
    assert found["cpu_isa"] == "avx2 avx512f sse4_2"
    assert not any(field.startswith(("gpu_", "rocm")) for field in found)


def test_layout_switches_are_part_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_MIOPEN_SUGGEST_NHWC", "1")
    assert node(tmp_path)["pytorch_miopen_suggest_nhwc"] == "1"


def test_no_framework_is_imported() -> None:
    program = (
        "import sys, warmup.identity as i; from warmup.stores.registry import STORES; i.identity([], STORES);"
        "sys.exit(any(name in sys.modules for name in ('torch', 'onnxruntime', 'onnx')))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_differences_name_the_field_and_both_values() -> None:
    expected = {"gpu_arch": "gfx942", "torch": "2.9", "rocm": "7.1"}
    found = {"gpu_arch": "gfx90a", "torch": "2.9", "python": "3.12"}
    assert differences(expected, found) == [
        Difference("gpu_arch", "gfx942", "gfx90a"),
        Difference("python", "absent", "3.12"),
        Difference("rocm", "7.1", "absent"),
    ]
    assert str(differences(expected, found)[0]) == "gpu_arch: expected gfx942, found gfx90a"


def test_stores_and_models_that_only_one_side_has_are_no_difference() -> None:
    assert differences({"engine.a": "1", "inductor.compiler": "g++ 12"}, {"engine.b": "2"}) == []
    assert [d.field for d in differences({"engine.a": "1"}, {"engine.a": "2"})] == ["engine.a"]


def spec(**engine: object) -> ModelSpec:
    return ModelSpec.model_validate(
        {
            "name": "m",
            "engine": {"kind": "torch", "source": "net.py:Net", "execution": "compile", **engine},
            "inputs": [{"name": "x", "dtype": "fp32", "dims": [1]}],
            "shapes": {"list": ["x=1:fp32"]},
        }
    )


def test_threads_are_part_of_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert engine_facts(spec()) == engine_facts(spec(threads=3)) != engine_facts(spec(threads=2))


def test_the_whole_identity(tmp_path: Path) -> None:
    found = identity([spec()], STORES[:1], tmp_path)
    assert found["engine.m"] == engine_facts(spec())
    assert f"{STORES[0].name}.compiler" in found
