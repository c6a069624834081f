"""The Python packages that meet the GPU: which PyTorch, which ONNX Runtime, and which of its providers really load."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from warmup.doctor.compatibility import check_driver, minor
from warmup.doctor.finding import Finding, error, note, warning
from warmup.doctor.kfd import Gpu
from warmup.doctor.probe import ask
from warmup.doctor.system import Driver

# Distributions that all install the module ``onnxruntime``, over each other.
_BUILDS = ("onnxruntime", "onnxruntime-rocm", "onnxruntime-migraphx", "onnxruntime-gpu", "onnxruntime-directml")
_SHARED = "libonnxruntime_providers_shared.so"
_PROVIDERS = {"migraphx": "MIGraphXExecutionProvider", "rocm": "ROCMExecutionProvider", "cuda": "CUDAExecutionProvider"}


@dataclass(frozen=True)
class Torch:
    """An installed PyTorch: its version, and the HIP or CUDA that it was built with (empty where it was not)."""

    version: str
    hip: str
    cuda: str

    @property
    def text(self) -> str:
        built = f"ROCm {self.hip}" if self.hip else f"CUDA {self.cuda}" if self.cuda else "the CPU"
        return f"{self.version}, built for {built}"


@dataclass(frozen=True)
class Provider:
    """One execution provider whose library is installed; ``reason`` is the loader's where it does not load."""

    name: str
    library: Path
    loads: bool
    reason: str


def torch_build() -> Torch | None:
    """The installed PyTorch by its own version file; nothing is imported."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0]) / "version.py"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    found = dict(re.findall(r"^(\w+)\b[^=\n]*= *'([^']*)'", text, re.MULTILINE))
    return Torch(found.get("__version__", "?"), found.get("hip", ""), found.get("cuda", ""))


def onnxruntime_builds() -> dict[str, str]:
    """Installed distributions that provide ``onnxruntime``, with their versions."""
    found = {}
    for name in _BUILDS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def onnxruntime_providers() -> list[Provider]:
    """The providers beside the CPU's that are installed, each loaded in a fresh process to see whether it can be."""
    spec = importlib.util.find_spec("onnxruntime")
    if spec is None or not spec.submodule_search_locations:
        return []
    folder = Path(spec.submodule_search_locations[0]) / "capi"
    providers = []
    for name in _PROVIDERS:
        library = folder / f"libonnxruntime_providers_{name}.so"
        if library.is_file():
            answer = ask("library", str(folder / _SHARED), str(library))
            providers.append(Provider(name, library, bool(answer.get("loads")), str(answer.get("error", ""))))
    return providers


def check_torch(torch: Torch | None, gpus: list[Gpu], driver: Driver) -> list[Finding]:
    """Whether the installed PyTorch fits the node's GPUs and their driver."""
    if torch is None:
        return []
    if gpus and not torch.hip:
        what = f"PyTorch {torch.text} on a node with {len(gpus)} AMD GPUs"
        why = "PyTorch models run on the CPU, or not at all"
        return [error("torch", "torch", what, why, "install PyTorch's build for ROCm from its own package index")]
    if torch.hip and not gpus:
        what = f"PyTorch {torch.text}, but the node shows no AMD GPU"
        why = "models fall back to the CPU, or fail to load"
        return [error("torch", "torch", what, why, "run on a node with a GPU, or install the CPU build")]
    return check_driver(driver.release, minor(torch.hip), "PyTorch's own ROCm")


def check_torch_devices(facts: dict, gpus: list[Gpu]) -> list[Finding]:
    """Whether PyTorch sees what the kernel lists; ``facts`` are those of the probe."""
    if "error" in facts:
        why = "no PyTorch model can be loaded"
        return [error("torch", "torch", f"importing fails: {facts['error']}", why, "reinstall the build for this ROCm")]
    devices = facts["devices"]
    if not devices:
        what = f"PyTorch sees no device, the kernel lists {len(gpus)}"
        why = "models run on the CPU, or not at all"
        return [error("torch", "torch", what, why, "check /dev/kfd, /dev/dri, groups and *_VISIBLE_DEVICES")]
    listed = {(gpu.arch, gpu.multiprocessors) for gpu in gpus}
    seen = {(device["arch"].split(":")[0], device["multiprocessors"]) for device in devices}
    if seen <= listed:
        return []
    what = f"PyTorch sees {sorted(seen - listed)}, the kernel lists {sorted(listed)}"
    why = "MIOpen names databases by what PyTorch's HIP says, so those of this node are not found"
    return [warning("torch", "torch", what, why, "look for HSA_OVERRIDE_GFX_VERSION or a partition that changed")]


def check_onnxruntime(builds: dict[str, str], providers: list[Provider], gpus: list[Gpu]) -> list[Finding]:
    """Whether one build is installed, and whether what it promises can be had."""
    findings = []
    if len(builds) > 1:
        listed = " and ".join(f"{name} {version}" for name, version in builds.items())
        why = "they install the same files over each other: which providers there are depends on the order of installs"
        do = "uninstall all of them, then install the one for this GPU"
        findings.append(error("onnxruntime", "onnxruntime", f"{listed} are both installed", why, do))
    for provider in providers:
        if provider.loads:
            continue
        what = f"{_PROVIDERS[provider.name]} is listed, but does not load: {provider.reason}"
        why = "ONNX Runtime says so on stderr only and runs models on the CPU"
        report = error if gpus else warning
        do = "install the ROCm libraries that it names, or the CPU build"
        findings.append(report("onnxruntime", provider.library, what, why, do))
    if builds and gpus and not any(p.loads for p in providers) and not findings:
        what = f"{', '.join(builds)} has no provider for AMD GPUs"
        why = "ONNX models run on the CPU"
        findings.append(note("onnxruntime", "onnxruntime", what, why, "install onnxruntime-migraphx or -rocm"))
    return findings
