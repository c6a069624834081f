"""File names of MIOpen's databases: which device, version and store a name stands for, and the name for a device.

Source: MIOpen ``src/include/miopen/handle.hpp`` (``GetDbBasename``), ``src/target_properties.cpp`` and
``src/find_db.cpp``, as of 2024-10; observed on MIOpen 3.4.0. The number of compute units follows the arch as
``_<decimal>`` up to 64 and as bare hex above, so ``gfx90a68`` is a gfx90a with 104 units.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["find", "fusion", "perf", "kernels"]

# MIOpen's arch ids have three characters up to gfx9 and four from gfx10 on; only so can the units be told from them.
_ARCH = r"gfx1[0-9][0-9a-f]{2}|gfx[6-9][0-9a-f]{2}"
_BASE = rf"(?P<arch>{_ARCH})(?P<sramecc>_(?:no)?sramecc)?(?P<xnack>_xnack)?(?:_(?P<decimal>[0-9]+)|(?P<hex>[0-9a-f]+))?"
_VERSION = r"(?P<version>[0-9]+_[0-9]+_[0-9]+)(?:_(?P<hash>[0-9A-Za-z\-]*))?"
_BACKEND = r"\.(?P<backend>HIP|OpenCL)"
_BZ2 = r"(?P<bz2>\.bz2)?"
_FORMS: tuple[tuple[Kind, str, re.Pattern[str]], ...] = (
    ("find", "system", re.compile(rf"{_BASE}{_BACKEND}\.fdb\.txt{_BZ2}")),
    ("fusion", "system", re.compile(rf"{_BASE}{_BACKEND}\.fusion\.fdb\.txt{_BZ2}")),
    ("find", "user", re.compile(rf"{_BASE}{_BACKEND}\.{_VERSION}\.ufdb\.txt{_BZ2}")),
    ("fusion", "user", re.compile(rf"{_BASE}{_BACKEND}\.{_VERSION}\.fusion\.ufdb\.txt{_BZ2}")),
    ("perf", "user", re.compile(rf"{_BASE}{_BACKEND}\.{_VERSION}\.udb\.txt{_BZ2}")),
    ("perf", "system", re.compile(rf"{_BASE}\.db(?P<text>\.txt)?{_BZ2}")),
    ("perf", "user", re.compile(rf"{_BASE}_(?P<schema>[0-9]+\.[0-9]+\.[0-9]+)\.udb{_BZ2}")),
    ("kernels", "user", re.compile(rf"{_BASE}\.ukdb{_BZ2}")),
    ("kernels", "system", re.compile(rf"{_BASE}\.kdb{_BZ2}")),
)


class DbNameError(ValueError):
    """A file name that is none of MIOpen's."""


@dataclass(frozen=True)
class Device:
    """The device part of a name. ``units`` is what HIP reports as multiprocessors: on RDNA, workgroup processors."""

    arch: str
    units: int | None
    xnack: bool = False
    sramecc: str = ""

    @property
    def base(self) -> str:
        """The beginning of every name that this device reads or writes; without units where they are not known."""
        features = self.sramecc + ("_xnack" if self.xnack else "")
        if self.units is None:
            return self.arch + features
        return self.arch + features + (f"_{self.units}" if self.units <= 64 else f"{self.units:x}")

    @classmethod
    def of(cls, gcn_arch_name: str, units: int) -> Device:
        """The device of HIP's arch name (``gfx942:sramecc+:xnack-``) and unit count; raises DbNameError."""
        arch, *features = gcn_arch_name.split(":")
        if not re.fullmatch(_ARCH, arch) or units < 1:
            raise DbNameError(
                f"{gcn_arch_name!r} with {units} units is not a device; expected as in gfx942:xnack- and 304"
            )
        return cls(arch, units, xnack="xnack+" in features)


@dataclass(frozen=True)
class DbName:
    """Everything that a database's file name says.

    ``version`` and ``hash`` are of user databases: MIOpen ignores a file of any other version. The hash is None where
    the name has none and empty where it ends in an underscore, as in Debian's build. ``schema`` is of SQLite perf-dbs.
    """

    kind: Kind
    scope: Literal["system", "user"]
    device: Device
    backend: str | None = None
    version: tuple[int, int, int] | None = None
    hash: str | None = None
    schema: str | None = None
    text: bool = True
    bz2: bool = False

    @classmethod
    def parse(cls, name: str) -> DbName:
        """Reads a file name without its directory; raises DbNameError for one that is not a database of MIOpen."""
        for kind, scope, pattern in _FORMS:
            match = pattern.fullmatch(name)
            if not match:
                continue
            parts = match.groupdict()
            units = int(parts["decimal"]) if parts["decimal"] else int(parts["hex"], 16) if parts["hex"] else None
            device = Device(parts["arch"], units, xnack=bool(parts["xnack"]), sramecc=parts["sramecc"] or "")
            version = parts.get("version")
            sqlite = kind == "kernels" or (kind == "perf" and not name.removesuffix(".bz2").endswith(".txt"))
            return cls(
                kind=kind,
                scope=scope,  # type: ignore[arg-type]
                device=device,
                backend=parts.get("backend"),
                version=tuple(map(int, version.split("_"))) if version else None,  # type: ignore[arg-type]
                hash=parts.get("hash"),
                schema=parts.get("schema"),
                text=not sqlite,
                bz2=bool(parts["bz2"]),
            )
        raise DbNameError(
            f"{name!r} is not a database of MIOpen; expected as in gfx942130.HIP.3_4_0_.ufdb.txt, "
            "gfx90a68.HIP.fdb.txt, gfx942130.db.txt or gfx942130.ukdb"
        )

    @property
    def file_name(self) -> str:
        """The name that MIOpen would give to this database."""
        middle = f".{self.backend}" if self.backend else ""
        if self.version:
            middle += "." + "_".join(map(str, self.version)) + (f"_{self.hash}" if self.hash is not None else "")
        if self.kind == "fusion":
            middle += ".fusion"
        user = self.scope == "user"
        if self.kind == "kernels":
            end = ".ukdb" if user else ".kdb"
        elif self.kind == "perf" and not self.text:
            end = f"_{self.schema}.udb" if user else ".db"
        elif self.kind == "perf":
            end = ".udb.txt" if user else ".db.txt"
        else:
            end = ".ufdb.txt" if user else ".fdb.txt"
        return self.device.base + middle + end + (".bz2" if self.bz2 else "")

    @property
    def version_text(self) -> str | None:
        """``3.4.0`` or ``3.4.0.76e3cde91``; None for a system database, which belongs to its library."""
        if self.version is None:
            return None
        return ".".join(map(str, self.version)) + (f".{self.hash}" if self.hash else "")

    def foreign_to(self, device: Device, version: str | None = None) -> list[str]:
        """Why MIOpen on ``device`` (and of ``version``, with its hash if it has one) would not read this file."""
        reasons = []
        if self.device.arch != device.arch:
            reasons.append(f"it is of {self.device.arch}, the device is a {device.arch}")
        if self.device.units is not None and self.device.units != device.units:
            reasons.append(f"it is for {self.device.units} compute units, the device has {device.units}")
        if self.device.xnack != device.xnack:
            reasons.append(f"it is for xnack {'on' if self.device.xnack else 'off'}, the device has it the other way")
        if self.backend not in (None, "HIP"):
            reasons.append(f"it is of the {self.backend} backend, ROCm reads HIP only")
        if version is not None and self.version_text is not None and self.version_text != version.rstrip("."):
            reasons.append(f"it is of MIOpen {self.version_text}, the library is {version}")
        return reasons


def find_db_name(device: Device, version: str, hash: str | None = "") -> str:
    """The user find-db of a device and of MIOpen ``3.4.0`` with this hash."""
    numbers = _version(version)
    return DbName("find", "user", device, "HIP", numbers, hash).file_name


def perf_db_name(device: Device, version: str, hash: str | None = "") -> str:
    """The user perf-db (text) of a device and of MIOpen ``3.4.0`` with this hash."""
    return DbName("perf", "user", device, "HIP", _version(version), hash).file_name


def kernel_cache_name(device: Device) -> str:
    """The user kernel cache of a device; its version is in the directory's name."""
    return DbName("kernels", "user", device, text=False).file_name


def _version(text: str) -> tuple[int, int, int]:
    match = re.fullmatch(r"([0-9]+)\.([0-9]+)\.([0-9]+)", text)
    if not match:
        raise DbNameError(f"{text!r} is not a MIOpen version; expected as in 3.4.0")
    major, minor, patch = map(int, match.groups())
    return major, minor, patch
