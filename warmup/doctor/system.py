"""The node's own software: kernel driver, ROCm, and MIOpen with its version, hash and databases, read from files."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

# Which release of AMD's driver package brings which version of the kernel module, by the first two numbers of the
# latter; as the packages are named, amdgpu-dkms_6.14.14.30100000 and amdgpu-dkms 6.12.12.60400.
_MODULES = {
    "6.7": "6.1",
    "6.8": "6.2",
    "6.10": "6.3",
    "6.12": "6.4",
    "6.14": "30.10",
}
_DEFINE = re.compile(r"#define\s+MIOPEN_VERSION_(MAJOR|MINOR|PATCH|TWEAK)\s+(\S*)")
_PACKAGE = re.compile(r"^Package: amdgpu-dkms$(?:\n.+)*?\nVersion: (?:\d+:)?\S*?\.(\d{5,8})-", re.MULTILINE)


@dataclass(frozen=True)
class Driver:
    """The module amdgpu: its own version (empty where it is the kernel's), the kernel, and AMD's release of it."""

    module: str
    kernel: str
    release: str

    @property
    def text(self) -> str:
        if not self.module:
            return f"in-tree, Linux {self.kernel}"
        return f"{self.module} (release {self.release})" if self.release else self.module


@dataclass(frozen=True)
class MIOpenFacts:
    """One installed MIOpen: where its library is, ``3.4.1`` and ``76e3cde91``, and its system databases."""

    library: Path
    version: str
    hash: str
    databases: Path


def driver(root: Path) -> Driver:
    """The kernel driver's versions."""
    module = _first(root / "sys/module/amdgpu/version")
    kernel = _first(root / "proc/sys/kernel/osrelease")
    return Driver(module, kernel, _packaged(root) or _by_module(module))


def rocm_version(root: Path) -> str:
    """``6.4.1`` of the ROCm below ``opt``; empty where there is none."""
    for folder in _rocm_folders(root):
        found = re.match(r"\d+\.\d+(?:\.\d+)?", _first(folder / ".info/version"))
        if found:
            return found[0]
    return ""


def miopens(root: Path, packages: bool) -> list[MIOpenFacts]:
    """The MIOpens that a framework here may load; that of a PyTorch wheel comes first, since it wins in its process.

    ``packages`` is whether this interpreter's own packages belong to the node.
    """
    folders = list(_rocm_folders(root))
    spec = importlib.util.find_spec("torch") if packages else None
    if spec and spec.submodule_search_locations:
        folders.insert(0, Path(spec.submodule_search_locations[0]))
    found = []
    for folder in folders:
        libraries = sorted((folder / "lib").glob("libMIOpen.so*"))
        if libraries and all(library.resolve() != libraries[0].resolve() for library in (m.library for m in found)):
            version, tweak = _miopen_version(folder / "include/miopen/version.h")
            found.append(MIOpenFacts(libraries[0], version, tweak, folder / "share/miopen/db"))
    return found


def _miopen_version(header: Path) -> tuple[str, str]:
    if not header.is_file():
        return "", ""
    parts = dict(_DEFINE.findall(header.read_text(encoding="utf-8", errors="replace")))
    return ".".join(parts.get(name, "?") for name in ("MAJOR", "MINOR", "PATCH")), parts.get("TWEAK", "")


def _rocm_folders(root: Path) -> list[Path]:
    """``/opt/rocm`` and then its versioned neighbours, newest first."""
    numbered = [path for path in (root / "opt").glob("rocm-*") if re.fullmatch(r"rocm-\d+(\.\d+)*", path.name)]
    numbered.sort(key=lambda path: [int(part) for part in path.name[5:].split(".")], reverse=True)
    return [path for path in (root / "opt/rocm", *numbered) if path.is_dir()]


def _packaged(root: Path) -> str:
    """The driver's release by Debian's package database: a version ends in ``.60401`` (6.4.1) or ``.30100100``."""
    status = root / "var/lib/dpkg/status"
    if not status.is_file():
        return ""
    match = _PACKAGE.search(status.read_text(encoding="utf-8", errors="replace"))
    if not match:
        return ""
    digits = match[1]
    if len(digits) == 8:  # since 30.10: two digits for each of four numbers
        return f"{int(digits[:2])}.{int(digits[2:4])}"
    return f"{int(digits[0])}.{int(digits[1:3])}"


def _by_module(module: str) -> str:
    if module.startswith("6.16."):
        return "30.20" if module.startswith("6.16.6") else "30.30"
    return _MODULES.get(".".join(module.split(".")[:2]), "")


def _first(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").split("\n", 1)[0].strip()
    except OSError:
        return ""
