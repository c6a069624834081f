"""This project's own server, warmed and started as a user would, with what the benchmarks need to know of it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.servers import ONE_THREAD, Running, good, serving
from benchmarks.variants import variant
from serving.torchserve.process import free_ports

COMMAND = str(Path(sys.executable).with_name("preheat"))
STORE = Path(__file__).parent / "models"  # models that are there for benchmarks only


class WarmFailed(Exception):
    """``preheat warm`` did not end with a proven bundle."""


@dataclass(frozen=True)
class Served:
    """A server that says that it is ready."""

    url: str
    running: Running


def warm(models: Sequence[str], store: Path, out: Path, core: int | None = None, fresh: bool = False) -> float:
    """Runs ``preheat warm`` and returns how many seconds the command took; what is proven already is left as it is."""
    command = [COMMAND, "warm", *models, "--model-store", str(store), "--out", str(out), "--json"]
    command += ["--fresh"] if fresh else []
    pinned = ["taskset", "--cpu-list", str(core), *command] if core is not None else command
    start = time.perf_counter()
    done = subprocess.run(pinned, env=_environment(core), capture_output=True, text=True)
    if done.returncode:
        raise WarmFailed(
            f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return time.perf_counter() - start


@contextmanager
def preheat(models: Sequence[str], store: Path, bundle: Path | None, core: int | None = None) -> Iterator[Served]:
    """Serves models from a bundle, or unproven without one, on one core and one thread where a core is given."""
    port = free_ports(1)
    command = serve_command(models, store, bundle, port)
    url = f"http://127.0.0.1:{port}"
    with serving(command, lambda: good(f"{url}/v2/health/ready"), core=core, env=_environment(core)) as running:
        yield Served(url, running)


def serve_command(models: Sequence[str], store: Path, bundle: Path | None, port: int) -> list[str]:
    """The command line of a server that has the bundle, or none."""
    command = [COMMAND, "serve", *models, "--model-store", str(store), "--port", str(port), "--admin-port", "-1"]
    return [*command, "--log-level", "warning", *(["--bundle", str(bundle)] if bundle else ["--unproven"])]


@contextmanager
def one_shape(model: Path, shape: str) -> Iterator[Path]:
    """A store with a copy of ``model`` whose plan is one shape, on one thread."""
    with tempfile.TemporaryDirectory(prefix="preheat-benchmark-") as folder:
        with variant(model, Path(folder)) as description:
            pad = {key: value for key, value in description["shapes"].items() if key == "pad"}
            description["shapes"] = {"list": [shape], **pad}
            description["engine"]["threads"] = 1
        yield Path(folder)


def _environment(core: int | None) -> dict[str, str]:
    return {**os.environ, **(ONE_THREAD if core is not None else {})}
