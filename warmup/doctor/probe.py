"""What only a fresh process can say without risk to this one: whether a library loads, what a framework sees.

``python -m warmup.doctor.probe torch``, ``amdsmi`` or ``library PATH...`` prints one JSON document. A runtime that
crashes while it loads takes only this process with it.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from typing import Any

_TIMEOUT_S = 120.0  # importing a ROCm build of PyTorch from a cold disk takes tens of seconds


def ask(*arguments: str) -> dict[str, Any]:
    """Runs a probe in a fresh process; ``{"error": ...}`` where it failed."""
    command = [sys.executable, "-m", "warmup.doctor.probe", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return {"error": f"no answer in {_TIMEOUT_S:g} s"}
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"ended with status {done.returncode}"])[-1]
        return {"error": last}
    return json.loads(done.stdout.splitlines()[-1])


def torch_facts() -> dict[str, Any]:
    """The build of PyTorch, and the devices that it sees."""
    import torch

    devices = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        arch = getattr(properties, "gcnArchName", "")
        devices.append({"name": properties.name, "arch": arch, "multiprocessors": properties.multi_processor_count})
    miopen = torch.backends.cudnn.version() if torch.version.hip and devices else None
    return {"hip": torch.version.hip, "miopen": miopen, "devices": devices}


def amdsmi_facts() -> dict[str, Any]:
    """What AMD's management library says of every GPU; its functions are those of the package amdsmi."""
    import amdsmi  # type: ignore[import-not-found]

    amdsmi.amdsmi_init()
    try:
        gpus = []
        for handle in amdsmi.amdsmi_get_processor_handles():
            asic = amdsmi.amdsmi_get_gpu_asic_info(handle)
            fact = {
                "name": asic.get("market_name", ""),
                "arch": asic.get("target_graphics_version", ""),
                "cu_count": asic.get("num_compute_units"),
                "driver": amdsmi.amdsmi_get_gpu_driver_info(handle).get("driver_version", ""),
            }
            try:
                fact["partition"] = amdsmi.amdsmi_get_gpu_compute_partition(handle)
            except amdsmi.AmdSmiLibraryException:  # a GPU that cannot be partitioned
                fact["partition"] = ""
            gpus.append(fact)
        return {"gpus": gpus}
    finally:
        amdsmi.amdsmi_shut_down()


def load(paths: list[str]) -> dict[str, Any]:
    """Loads shared libraries in order, each visible to the next; the error is the loader's own.

    ONNX Runtime's providers call into it while they are loaded, so it comes first.
    """
    if any("onnxruntime" in path for path in paths):
        import onnxruntime  # noqa: F401
    for path in paths:
        try:
            ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
        except OSError as error:
            return {"loads": False, "error": str(error)}
    return {"loads": True}


def main(arguments: list[str]) -> None:
    kind, *rest = arguments
    answers = {"torch": torch_facts, "amdsmi": amdsmi_facts, "library": lambda: load(rest)}
    print(json.dumps(answers[kind]()))


if __name__ == "__main__":
    main(sys.argv[1:])
