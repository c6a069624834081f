"""One examination of a node: its facts, and all findings, worst first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from warmup.doctor.compatibility import check_driver, check_miopen
from warmup.doctor.directories import check_directories, check_system_databases, user_directories
from warmup.doctor.environment import check_environment
from warmup.doctor.finding import Finding, Severity, error, note, warning
from warmup.doctor.kfd import Gpu, driver_loaded, gpus
from warmup.doctor.packages import (
    check_onnxruntime,
    check_torch,
    check_torch_devices,
    onnxruntime_builds,
    onnxruntime_providers,
    torch_build,
)
from warmup.doctor.probe import ask
from warmup.doctor.system import Driver, MIOpenFacts, driver, miopens, rocm_version
from warmup.miopen.names import DbName, Device
from warmup.miopen.probe import ProbeError, database_stem

_ORDER = list(Severity)


@dataclass(frozen=True)
class Diagnosis:
    """What a node is, and what is wrong with it. ``facts`` hold text, or lists and mappings of text."""

    root: Path
    gpus: tuple[Gpu, ...]
    facts: Mapping[str, object]
    findings: tuple[Finding, ...] = field(default_factory=tuple)

    @property
    def able(self) -> bool:
        """Whether nothing was found that keeps the node from serving what was warmed."""
        return not any(finding.severity is Severity.ERROR for finding in self.findings)

    def to_json(self) -> dict[str, object]:
        return {
            "root": str(self.root),
            "able": self.able,
            "gpus": [gpu.to_json() for gpu in self.gpus],
            **self.facts,
            "findings": [finding.to_json() for finding in self.findings],
        }


def examine(root: Path, variables: Mapping[str, str]) -> Diagnosis:
    """Examines the node whose files are below ``root``, for a serving process with these environment variables.

    Paths in variables are taken as they stand. The Python packages of this interpreter belong to the node only where
    ``root`` is ``/``; of another root they are left out. Takes seconds where a framework has to be asked.
    """
    here = root.resolve() == Path("/")
    found = gpus(root)
    kernel, rocm = driver(root), rocm_version(root)
    libraries = miopens(root, packages=here)
    xnack = variables.get("HSA_XNACK") == "1"
    devices = [Device(gpu.arch, gpu.multiprocessors, xnack=xnack) for gpu in found]
    facts: dict[str, object] = {
        "driver": kernel.text if driver_loaded(root) else "",
        "rocm": rocm,
        "miopen": [_describe(library) for library in libraries],
        "database_names": sorted({device.base for device in devices}),
        "directories": {kind: str(path) for kind, path in user_directories(variables).items()},
    }
    findings = [
        *_devices(root, found, here),
        *check_environment(variables, len(found)),
        *check_directories(variables, root, devices[0] if devices else None),
        *check_system_databases(libraries, devices),
    ]
    if found:
        findings += check_driver(kernel.release, rocm, str(root / "opt/rocm"))
        findings += _miopen(libraries, rocm)
    if here:
        more, spotted = _packages(found, kernel, libraries)
        facts |= more
        findings += spotted
    else:
        facts["packages"] = "not examined: they are this machine's, and the root is another's"
    findings.sort(key=lambda finding: _ORDER.index(finding.severity))
    return Diagnosis(root, tuple(found), facts, tuple(findings))


def _devices(root: Path, found: list[Gpu], here: bool) -> list[Finding]:
    where = root / "sys/class/kfd"
    if not found and driver_loaded(root):
        what = "the driver amdgpu is loaded, but lists no compute device"
        why = "nothing can run on a GPU"
        do = "look into dmesg for amdgpu and kfd; a display-only GPU has no compute device"
        return [error("gpu", where, what, why, do)]
    if not found:
        what = "no AMD GPU: the kernel's compute driver is not there"
        why = "models run on the CPU only, and nothing about MIOpen can be measured here"
        if (root / "proc/driver/nvidia/version").is_file():
            why = "an NVIDIA driver is there instead: models run on its GPUs, and nothing about MIOpen applies"
        return [note("gpu", where, what, why, "nothing, if that is meant; else start the container with /dev/kfd")]
    findings = []
    kinds = {(gpu.arch, gpu.multiprocessors) for gpu in found}
    if len(kinds) > 1:
        what = f"GPUs of several kinds: {', '.join(f'{arch} with {units} units' for arch, units in sorted(kinds))}"
        why = "MIOpen keeps the first one's system find-db for all devices of a process"
        findings.append(warning("gpu", where, what, why, "serve with one process per GPU, and warm for each kind"))
    partitions = {gpu.partition for gpu in found}
    if len(partitions) > 1:
        what = f"GPUs in several partition modes: {', '.join(sorted(partitions))}"
        why = "databases are named by compute units, so what is warm on one is cold on another"
        findings.append(warning("gpu", where, what, why, "set one mode for all GPUs (amd-smi set --compute-partition)"))
    if here:
        findings += _device_files(root, found)
    return findings


def _device_files(root: Path, found: list[Gpu]) -> list[Finding]:
    """Device nodes that a container needs; sysfs shows GPUs without them."""
    files = [root / "dev/kfd", *(root / f"dev/dri/renderD{gpu.render_minor}" for gpu in found)]
    missing = [str(path) for path in files if not path.exists()]
    if not missing:
        return []
    why = "the kernel shows the GPU, but this process cannot open it"
    do = "start the container with --device=/dev/kfd --device=/dev/dri and the groups video and render"
    return [error("gpu", missing[0], f"not there: {', '.join(missing)}", why, do)]


def _miopen(libraries: list[MIOpenFacts], rocm: str) -> list[Finding]:
    if not libraries:
        what = "no libMIOpen below opt/rocm or in a PyTorch wheel"
        why = "no framework here can run a convolution on the GPU"
        return [
            warning("miopen", "libMIOpen.so", what, why, "install ROCm's MIOpen, or a PyTorch build that brings it")
        ]
    findings = []
    versions = {(library.version, library.hash) for library in libraries if library.version}
    if len(versions) > 1:
        listed = ", ".join(f"{library.library} is {_version(library)}" for library in libraries)
        why = "databases are named by version and hash: each library finds only its own"
        do = "warm and serve with the same framework and library"
        findings.append(warning("miopen", "libMIOpen.so", f"several MIOpens: {listed}", why, do))
    for library in libraries:
        if library.library.parent.parent.name.startswith("rocm"):
            findings += check_miopen(library.version, rocm, str(library.library))
    return findings


def _packages(
    found: list[Gpu], kernel: Driver, libraries: list[MIOpenFacts]
) -> tuple[dict[str, object], list[Finding]]:
    torch, builds, providers = torch_build(), onnxruntime_builds(), onnxruntime_providers()
    facts: dict[str, object] = {
        "torch": torch.text if torch else "",
        "onnxruntime": builds,
        "providers": {provider.name: provider.loads for provider in providers} | ({"cpu": True} if builds else {}),
    }
    findings = [*check_torch(torch, found, kernel), *check_onnxruntime(builds, providers, found)]
    if found and torch and torch.hip:
        seen = ask("torch")
        facts["torch_devices"] = seen.get("devices", [])
        findings += check_torch_devices(seen, found)
    if found:
        facts["amdsmi"] = ask("amdsmi")
    if found and libraries:
        try:
            name = DbName.parse(f"{database_stem(str(libraries[0].library))}.ufdb.txt")
            facts["miopen_answers"] = {"device": name.device.base, "version": name.version_text}
        except ProbeError as problem:
            why = "no convolution can run, or every one is searched for"
            findings.append(error("miopen", libraries[0].library, str(problem), why, "repair the ROCm installation"))
    return facts, findings


def _describe(library: MIOpenFacts) -> dict[str, str]:
    return {"library": str(library.library), "version": library.version, "hash": library.hash}


def _version(library: MIOpenFacts) -> str:
    return f"{library.version}.{library.hash}" if library.hash else library.version or "of an unknown version"
