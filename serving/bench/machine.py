"""The machine that a measurement ran on, as it is written into every results file."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import psutil

# What changes a served request's time from one installation to another.
PACKAGES = ("preheat", "numpy", "torch", "onnxruntime", "httptools", "starlette", "uvloop", "orjson", "pysimdjson")


@dataclass(frozen=True)
class Machine:
    """Processor, memory in GiB, system, Python and package versions; ``load`` is the load average over a minute before
    the measurement, which says how much else was going on."""

    cpu: str
    cores: int
    memory_gib: float
    system: str
    python: str
    load: float
    packages: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.cpu}, {self.cores} cores, {self.memory_gib:.0f} GiB, {self.system}, Python {self.python}"

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping) -> Machine:  # type: ignore[type-arg]
        return cls(
            cpu=str(document["cpu"]),
            cores=int(document["cores"]),
            memory_gib=float(document["memory_gib"]),
            system=str(document["system"]),
            python=str(document["python"]),
            load=float(document["load"]),
            packages={str(name): str(version) for name, version in document["packages"].items()},
        )


def this_machine() -> Machine:
    """The machine that this process runs on, now."""
    return Machine(
        cpu=_processor(),
        cores=os.cpu_count() or 1,
        memory_gib=round(psutil.virtual_memory().total / 2**30, 1),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        load=round(os.getloadavg()[0], 2),
        packages={name: version for name in PACKAGES if (version := _version(name))},
    )


def command_line() -> str:
    """The command that this process was started with, without the folder that the program lies in."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
