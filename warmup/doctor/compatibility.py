"""Which driver goes with which ROCm, by AMD's published table, and which MIOpen belongs to which ROCm.

Sources: ROCm documentation, install-on-linux, "User and AMD GPU Driver (amdgpu) support matrix", 2025-09-17, and for
30.30 the driver's own compatibility page (amdgpu-docs, 7.2.3). Up to ROCm 6.3 driver and user space may be two releases
apart, from 6.4 on one year; since ROCm 7.0 the driver is numbered by itself, from 30.10.
"""

from __future__ import annotations

import re

from warmup.doctor.finding import Finding, error, note, warning

# Driver release: the oldest and the newest supported ROCm, and the newest ROCm when the row was published.
_ROWS = {
    "30.30": ("6.3", "7.2", "7.2"),
    "30.10": ("6.2", "7.0", "7.0"),
    "6.4": ("6.1", "7.0", "7.0"),
    "6.3": ("6.1", "7.0", "7.0"),
    "6.2": ("6.0", "7.0", "7.0"),
    "6.1": ("5.7", "6.4", "7.0"),
    "6.0": ("5.6", "6.2", "7.0"),
    "5.7": ("5.5", "6.1", "7.0"),
}
# MIOpen as seen in ROCm releases.
_MIOPEN = {"6.3": "3.3", "6.4": "3.4", "7.0": "3.5", "7.2": "3.5"}
_TABLE = "AMD's user and driver support matrix"


def check_driver(release: str, rocm: str, where: str) -> list[Finding]:
    """Whether AMD supports ROCm ``rocm`` (of ``where``) on a driver of ``release``; empty where either is unknown."""
    if not release or not rocm:
        return []
    if release not in _ROWS:
        what = f"release {release} with {where} (ROCm {rocm}): no row of {_TABLE} known here"
        return [
            note("driver", "amdgpu", what, "nobody checked that they go together", "look the pair up in that table")
        ]
    oldest, newest, published = _ROWS[release]
    what = f"release {release} supports ROCm {oldest} to {newest}, {where} is ROCm {rocm}"
    why = "calls may fail or hang in ways that look like faults of the model"
    do = f"install a driver that {_TABLE} lists for ROCm {rocm}"
    version = _numbers(rocm)
    if _numbers(oldest) <= version <= _numbers(newest):
        return []
    if version > _numbers(published):
        return [warning("driver", "amdgpu", f"{what}, which is newer than the table", why, do)]
    return [error("driver", "amdgpu", what, why, do)]


def check_miopen(miopen: str, rocm: str, where: str) -> list[Finding]:
    """Whether a ROCm installation has the MIOpen that belongs to it."""
    expected = _MIOPEN.get(".".join(rocm.split(".")[:2]))
    if not expected or not miopen or _numbers(miopen) == _numbers(expected):
        return []
    return [
        warning(
            "miopen",
            where,
            f"MIOpen {miopen} in ROCm {rocm}, which comes with {expected}",
            "databases are named by MIOpen's version and hash, so records tuned elsewhere are not found",
            "install the MIOpen of this ROCm, or warm with this one",
        )
    ]


def minor(version: str) -> str:
    """``6.4`` of ``6.4.43482-0f2d60242``, as PyTorch writes the HIP that it was built with."""
    match = re.match(r"\d+\.\d+", version)
    return match[0] if match else ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])
