"""Which accelerators this process may use, found without a framework: frameworks read what is visible only once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

ALL = "all"
VISIBLE = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")  # AMD's PyTorch reads both, NVIDIA's the second


class NoSuchAccelerator(Exception):
    """An accelerator that is not there; the message names those that are."""


def accelerators(root: Path = Path("/"), environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The accelerators by the names under which a child process can be given one: what the environment lets this
    process see, else the numbers of all that the drivers list."""
    environment = os.environ if environment is None else environment
    for variable in VISIBLE:
        if environment.get(variable):
            return tuple(item.strip() for item in environment[variable].split(","))
    amd = [path for path in (root / "sys/class/kfd/kfd/topology/nodes").glob("[0-9]*") if _computes(path)]
    nvidia = list((root / "proc/driver/nvidia/gpus").glob("*"))
    return tuple(map(str, range(len(amd) or len(nvidia))))


def chosen(text: str, there: tuple[str, ...]) -> tuple[str, ...]:
    """The accelerators that ``all`` or ``0,1`` means; raises NoSuchAccelerator where one is missing or named twice."""
    names = there if text == ALL else tuple(item.strip() for item in text.split(","))
    known = f"this machine has: {', '.join(there) or 'none'}"
    if not names:
        raise NoSuchAccelerator(f"no accelerator is there; {known}")
    for name in names:
        if name not in there:
            raise NoSuchAccelerator(f"accelerator {name!r} is not there; {known}")
        if names.count(name) > 1:
            raise NoSuchAccelerator(f"accelerator {name!r} is named twice")
    return names


def pinned(device: str) -> dict[str, str]:
    """The environment of a process that sees one accelerator alone."""
    return {**dict.fromkeys(VISIBLE, device), "PREHEAT_DEVICE": device}


def _computes(node: Path) -> bool:
    """Whether a node of AMD's compute driver is a GPU: processors have no SIMD units."""
    try:
        lines = (node / "properties").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    return any(line.split()[:1] == ["simd_count"] and line.split()[1] != "0" for line in lines)
