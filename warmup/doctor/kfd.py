"""AMD's GPUs as the kernel's compute driver lists them in sysfs; nothing is opened but text files.

Properties of a topology node: ``gfx_target_version`` is decimal MMmmss, of which minor and stepping are one hex digit
each in the name; compute units are ``simd_count / simd_per_cu``; a processor's node has ``simd_count`` 0. The
partitions of one device are nodes of their own, which differ in bits 31 to 28 of ``location_id``. Source: Linux,
Documentation/ABI/stable/sysfs-driver-kfd and drivers/gpu/drm/amd/amdkfd/kfd_topology.c.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

NODES = "sys/class/kfd/kfd/topology/nodes"
_AMD = 0x1002
_PARTITIONED = ("gfx942", "gfx950")
# Compute partitions by how many of them one device shows; CPX is one die (XCC) each.
_MODES = {1: "SPX", 2: "DPX", 3: "TPX", 4: "QPX"}
# Names by PCI device id (pci.ids, vendor 1002); partitions and virtual functions of others show as their arch.
_MARKET = {
    0x738C: "Instinct MI100",
    0x7408: "Instinct MI250X",
    0x740C: "Instinct MI250X/MI250",
    0x740F: "Instinct MI210",
    0x74A0: "Instinct MI300A",
    0x74A1: "Instinct MI300X",
    0x74A2: "Instinct MI308X",
    0x74A5: "Instinct MI325X",
    0x75A0: "Instinct MI350X",
    0x75A3: "Instinct MI355X",
    0x744C: "Radeon RX 7900 XT/XTX",
}


@dataclass(frozen=True)
class Gpu:
    """One compute device: a GPU, or one partition of it. ``partition`` is empty where the GPU cannot be partitioned."""

    node: int
    arch: str
    compute_units: int
    dies: int
    partition: str
    device_id: int
    render_minor: int

    @property
    def name(self) -> str:
        """What it is sold as, or its arch."""
        return _MARKET.get(self.device_id, self.arch)

    @property
    def multiprocessors(self) -> int:
        """What HIP reports, and MIOpen puts into file names: on RDNA, workgroup processors of two units each."""
        return self.compute_units // 2 if self.arch.startswith(("gfx10", "gfx11", "gfx12")) else self.compute_units

    def to_json(self) -> dict[str, object]:
        return {
            "node": self.node,
            "name": self.name,
            "arch": self.arch,
            "cu_count": self.compute_units,
            "multiprocessors": self.multiprocessors,
            "dies": self.dies,
            "partition": self.partition,
            "render": f"renderD{self.render_minor}",
        }


def gpus(root: Path) -> list[Gpu]:
    """The compute devices in the order in which HIP numbers them; ``root`` is where ``sys`` is."""
    nodes = []
    for path in sorted((root / NODES).glob("[0-9]*"), key=lambda path: int(path.name)):
        facts = _properties(path / "properties")
        if facts.get("simd_count", 0) and facts.get("simd_per_cu", 0) and facts.get("vendor_id", _AMD) == _AMD:
            nodes.append((int(path.name), facts))
    siblings: dict[int, int] = {}
    for _, facts in nodes:
        siblings[_device(facts)] = siblings.get(_device(facts), 0) + 1
    return [_gpu(root, node, facts, siblings[_device(facts)]) for node, facts in nodes]


def driver_loaded(root: Path) -> bool:
    """Whether the kernel has the module amdgpu."""
    return (root / "sys/module/amdgpu").is_dir()


def _gpu(root: Path, node: int, facts: dict[str, int], siblings: int) -> Gpu:
    version = facts.get("gfx_target_version", 0)
    arch = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
    dies = facts.get("num_xcc", 1)
    minor = facts.get("drm_render_minor", 0)
    partition = _line(root / f"sys/class/drm/renderD{minor}/device/current_compute_partition")
    if not partition and arch in _PARTITIONED:
        partition = "CPX" if siblings > 1 and dies == 1 else _MODES.get(siblings, "")
    return Gpu(
        node=node,
        arch=arch,
        compute_units=facts["simd_count"] // facts["simd_per_cu"],
        dies=dies,
        partition=partition,
        device_id=facts.get("device_id", 0),
        render_minor=minor,
    )


def _device(facts: dict[str, int]) -> int:
    """The physical device of a node; a node that does not say where it is stands for itself."""
    location = facts.get("location_id", 0) & 0x0FFFFFFF
    return (facts.get("domain", 0) << 32 | location) or -facts.get("drm_render_minor", 0)


def _properties(path: Path) -> dict[str, int]:
    """``name value`` lines; values that are no number are left out."""
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:  # a node of a device that this container may not see cannot be read
        return {}
    pairs = (line.split() for line in lines)
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _line(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
