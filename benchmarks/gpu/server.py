"""A server of one model: warmed, started, asked, and its own numbers."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from serving.process import ServerProcess

_STAGES = ("decode", "queue", "copy", "execute", "encode")


def warm(name: str, store: Path, bundle: Path, devices: str = "") -> dict[str, Any]:
    """Makes the bundle; how long that took, and what was proven."""
    command = [sys.executable, "-m", "serving", "warm", name, "--model-store", str(store), "--out", str(bundle)]
    command += ["--no-verify", "--json", *(["--devices", devices] if devices else [])]
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    seconds = time.perf_counter() - started
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    shapes = json.loads(done.stdout)["models"][name]["shapes"]
    return {
        "seconds": seconds,
        "proven": sum(shape["proven"] for shape in shapes),
        "notes": [f"{shape['shape']}: {shape['reason']}" for shape in shapes if shape["reason"]],
        "steady": {shape["shape"]: shape["steady_seconds"] for shape in shapes},
    }


@contextmanager
def serving(name: str, store: Path, bundle: Path, *more: str) -> Iterator[tuple[ServerProcess, float]]:
    """A server of the model, and how many seconds after its start it was ready."""
    arguments = [name, "--model-store", str(store), "--bundle", str(bundle), "--trust", "--admin-port", "-1"]
    with ServerProcess([*arguments, "--log-level", "warning", *more]) as server:
        yield server, server.wait_ready(300)


def settle(server: ServerProcess) -> None:
    """Waits until all processes behind the port are ready: each new connection goes to any of them."""
    good, deadline = 0, time.monotonic() + 120
    while good < 40:
        if time.monotonic() > deadline:
            raise RuntimeError("not all server processes became ready")
        try:
            with urllib.request.urlopen(f"{server.url}/v2/health/ready", timeout=10):
                good += 1
        except OSError:
            good = 0
            time.sleep(0.05)


class Figures:
    """What the server's metrics say now."""

    def __init__(self, server: ServerProcess) -> None:
        with urllib.request.urlopen(f"{server.url}/metrics", timeout=10) as answer:
            self._lines = answer.read().decode().splitlines()

    def sum(self, start: str, part: str = "") -> float:
        """Of all values whose line begins with ``start`` and has ``part`` in it."""
        found = [line for line in self._lines if line.startswith(start + "{") and part in line]
        return sum(float(line.rpartition(" ")[2]) for line in found)


def stages(before: Figures, after: Figures) -> dict[str, float]:
    """Milliseconds per request in each stage, between two looks."""
    means = {}
    for stage in _STAGES:
        part = f'"{stage}"'
        seconds, count = (
            after.sum(f"preheat_stage_seconds_{kind}", part) - before.sum(f"preheat_stage_seconds_{kind}", part)
            for kind in ("sum", "count")
        )
        means[stage] = 1e3 * seconds / count if count else 0.0
    return means


def batches(before: Figures, after: Figures) -> dict[str, float]:
    """How many executions there were between two looks, and their mean rows."""
    count, rows = (
        after.sum(f"preheat_batch_size_{kind}") - before.sum(f"preheat_batch_size_{kind}") for kind in ("count", "sum")
    )
    return {"executions": count, "mean": rows / count if count else 0.0}
