"""What makes warmed stores valid: facts of the machine, of the libraries, of the stores and of the models' engines.

A flat dict of text by field name. Facts of a store or of a model's engine have a name with a dot, ``inductor.compiler``
or ``engine.digits``. No framework is imported: AMD's driver is read through sysfs, NVIDIA's through procfs and its
management library, versions through the installed packages' metadata.
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from handlers.spec import ModelSpec
from warmup.nvml import opened
from warmup.stores.store import Store

# Switches of PyTorch's that decide the layout in which MIOpen sees convolutions, and so which records apply.
LAYOUT_SWITCHES = ("PYTORCH_MIOPEN_SUGGEST_NHWC", "PYTORCH_MIOPEN_SUGGEST_NHWC_BATCHNORM")
# Which of PyTorch's own kernels the processor gets, whatever it could do.
CPU_SWITCH = "ATEN_CPU_CAPABILITY"
# Builds of one package under several names: they all install ``onnxruntime``.
ONNXRUNTIME = ("onnxruntime", "onnxruntime-rocm", "onnxruntime-migraphx", "onnxruntime-gpu")
ABSENT = "absent"
# Instruction sets that compilers use, as the kernel names them in /proc/cpuinfo (x86 "flags", Arm "Features").
_ISA = re.compile(
    r"avx\w*|amx\w*|sse\w*|ssse3|fma|fma4|f16c|bmi[12]|abm|lzcnt|popcnt|movbe|aes|vaes|pclmulqdq|vpclmulqdq|gfni|sha_ni|"
    r"adx|cx16|xop|asimd\w*|sve\w*|sme|sme2\w*|bf16|i8mm|fphp|crc32|atomics|dcpop|vsx|altivec"
)


@dataclass(frozen=True)
class Difference:
    """A field that two identities give different values; ``absent`` where one has no such field."""

    field: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.field}: expected {self.expected}, found {self.found}"


def node(root: Path = Path("/")) -> dict[str, str]:
    """The facts of this machine and its libraries; ``root`` is where ``proc``, ``sys`` and ``opt`` are."""
    facts = {
        "machine": platform.machine(),
        "cpu_isa": _cpu_isa(root),
        "python": f"{platform.python_implementation()} {'.'.join(platform.python_version_tuple()[:2])}",
        "torch": _version("torch"),
        "triton": _version("triton", "pytorch-triton-rocm", "pytorch-triton"),
        "onnxruntime": _version(*ONNXRUNTIME),
        **{switch.lower(): os.environ[switch] for switch in (*LAYOUT_SWITCHES, CPU_SWITCH) if os.environ.get(switch)},
        **_amd(root),
        **_nvidia(root),
    }
    return {field: value for field, value in facts.items() if value}


def identity(specs: Iterable[ModelSpec], stores: Iterable[Store], root: Path = Path("/")) -> dict[str, str]:
    """The whole identity of a bundle for these models in these stores."""
    facts = node(root)
    for store in stores:
        facts |= {f"{store.name}.{field}": value for field, value in store.identity().items()}
    return facts | {f"engine.{spec.name}": engine_facts(spec) for spec in specs}


def engine_facts(spec: ModelSpec) -> str:
    """What of an engine's description decides which entries it looks for, beside what the model computes."""
    engine = spec.engine
    return json.dumps(
        {
            "providers": list(engine.providers),
            "threads": _threads(engine.threads),
            "options": engine.options,
            "tf32": engine.tf32,
        },
        sort_keys=True,
    )


def differences(expected: Mapping[str, str], found: Mapping[str, str]) -> list[Difference]:
    """Every field in which ``found`` is not what a bundle ``expected``.

    Facts of a store or of a model (with a dot in their name) are compared only where both have them: a server need not
    serve every model of a bundle.
    """
    return [
        Difference(field, expected.get(field, ABSENT), found.get(field, ABSENT))
        for field in sorted({*expected, *found})
        if expected.get(field) != found.get(field) and ("." not in field or (field in expected and field in found))
    ]


def _threads(declared: int) -> int:
    """The threads that an engine gets: compiled kernels are made for a number of them. 0 is one per usable core."""
    if declared:
        return declared
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return int(limit) if limit.isdecimal() and int(limit) else len(os.sched_getaffinity(0))


def _version(*names: str) -> str:
    """The version of the first of these packages that is installed, with its name where it has several."""
    for name in names:
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        return f"{name} {found}" if len(names) > 1 else found
    return ""


def _cpu_isa(root: Path) -> str:
    for line in _lines(root / "proc/cpuinfo"):
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return " ".join(sorted(flag for flag in value.split() if _ISA.fullmatch(flag)))
    return ""


def _amd(root: Path) -> dict[str, str]:
    """AMD's GPUs as the kernel's compute driver lists them, in the order in which HIP numbers them.

    Properties of a node: ``gfx_target_version`` is decimal MMmmss (minor and stepping are one hex digit each in the
    name), compute units are ``simd_count / simd_per_cu``; a processor's node has ``simd_count`` 0. Linux,
    Documentation/ABI/stable/sysfs-driver-kfd and drivers/gpu/drm/amd/amdkfd/kfd_topology.c.
    """
    nodes = sorted((root / "sys/class/kfd/kfd/topology/nodes").glob("[0-9]*"), key=lambda path: int(path.name))
    gpus = []
    for path in nodes:
        facts = dict(line.split(None, 1) for line in _lines(path / "properties") if len(line.split(None, 1)) == 2)
        simds, per_unit = int(facts.get("simd_count", 0)), int(facts.get("simd_per_cu", 0))
        if not simds or not per_unit:
            continue
        version = int(facts.get("gfx_target_version", 0))
        arch = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
        minor = facts.get("drm_render_minor", "").strip()
        partition = _first(root / f"sys/class/drm/renderD{minor}/device/current_compute_partition")
        gpus.append((arch, str(simds // per_unit), partition))
    visible = _visible(gpus)
    if not visible:
        return {}
    return {
        "gpu_arch": _same(gpu[0] for gpu in visible),
        "gpu_compute_units": _same(gpu[1] for gpu in visible),
        "gpu_partition": _same(gpu[2] for gpu in visible),
        "gpu_driver": _first(root / "sys/module/amdgpu/version") or f"Linux {platform.release()}",
        "rocm": _first(root / "opt/rocm/.info/version"),
    }


def _visible(gpus: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """The GPUs that this process may use; a selection by UUID is taken as no selection."""
    chosen = os.environ.get("HIP_VISIBLE_DEVICES") or os.environ.get("ROCR_VISIBLE_DEVICES") or ""
    numbers = [int(item) for item in chosen.split(",") if item.strip().isdecimal()]
    return [gpus[number] for number in numbers if number < len(gpus)] if numbers else gpus


def _nvidia(root: Path) -> dict[str, str]:
    """NVIDIA's GPUs and driver as the driver lists them below ``/proc/driver/nvidia``, and what NVIDIA's library, where
    it is installed, tells of those that this process may use."""
    models = []
    for path in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in _lines(path))}
        models.append(facts.get("Model", ""))
    if not models:
        return {}
    version = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", _first(root / "proc/driver/nvidia/version"))
    library = opened(os.environ) if root == Path("/") else None
    told = library.facts() if library else {}
    return {"gpu_arch": _same(models), "gpu_driver": f"NVIDIA {version[1] if version else 'unknown'}"} | told


def _same(values: Iterable[str]) -> str:
    """The one value of all GPUs, or all of them where they differ."""
    return ", ".join(dict.fromkeys(values))


def _first(path: Path) -> str:
    return next(iter(_lines(path)), "").strip()


def _lines(path: Path) -> list[str]:
    """A file of the kernel's or of a package's; none where there is no such thing here."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
