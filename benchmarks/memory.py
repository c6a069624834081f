"""What the server holds in memory beside its models: idle, over a process that has only imported torch.

python -m benchmarks.memory
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Annotated

import psutil
import typer
from rich.console import Console

from benchmarks import records
from benchmarks.preheat import STORE, preheat, warm
from benchmarks.records import Check
from benchmarks.servers import ONE_THREAD
from benchmarks.variants import variant
from serving.bench import run

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
console = Console(stderr=True)
MIB = 1 << 20
GOAL = 150


@app.command()
def main(
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = records.RESULTS,
) -> None:
    """Measure; exit status 1 where the goal is missed."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="preheat-benchmark-") as folder:
        bundle, compiled = Path(folder) / "bundle", Path(folder) / "compiled"
        warm(["tiny"], STORE, bundle, core=0)
        warm(["tiny"], _compiled(Path(folder) / "store"), compiled, core=0)
        for _ in range(rounds):
            bare = import_torch()
            with preheat(["tiny"], STORE, bundle, core=0) as server:
                ready = server.running.resident_bytes()
                run(server.url, "tiny", requests=1000)
                used = server.running.resident_bytes()
            with preheat(["tiny"], Path(folder) / "store", compiled, core=0) as server:
                wait_watched(server.url)
                beside = sum(process.memory_info().rss for process in server.running.process.children())
            rows.append(tuple(size / MIB for size in (bare, ready, used, beside)))
    bare, ready, used, beside = (statistics.median(column) for column in zip(*rows, strict=True))
    extra = used - bare
    check = Check(f"under {GOAL} MiB over import torch, after 1,000 requests", f"{extra:.0f} MiB", extra < GOAL)
    text = records.table(
        ["process", "resident MiB", "over import torch"],
        [
            ["import torch", f"{bare:.0f}", "-"],
            ["server, ready", f"{ready:.0f}", f"{ready - bare:.0f}"],
            ["server, idle after 1,000 requests", f"{used:.0f}", f"{extra:.0f}"],
            ["the process beside a server that looks at its stores", f"{beside:.0f}", "-"],
        ],
    )
    how = (
        f"A model of one linear layer, one worker, medians of {rounds} rounds. All memory that is resident counts. A "
        "model that fills stores (here: compiled) has a process beside the server that looks at them."
    )
    data = [{"import_torch": a, "ready": b, "after_requests": c, "beside": d} for a, b, c, d in rows]
    records.write("memory", "Memory beside the models", how, {"Resident memory": text}, [check], data, out)
    records.conclude([check], console)


def _compiled(store: Path) -> Path:
    """A store with the same model, compiled."""
    with variant(STORE / "tiny", store) as document:
        document["engine"]["execution"] = "compile"
    return store


def wait_watched(url: str) -> None:
    """Waits until the server has looked at its stores once."""
    deadline = time.monotonic() + 60
    while True:
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
            if b"preheat_store_entries{" in answer.read():
                return
        if time.monotonic() > deadline:
            raise TimeoutError("the server has not looked at its stores")
        time.sleep(0.05)


def import_torch() -> int:
    """Resident bytes of a Python process that has imported torch and does nothing."""
    program = "import torch; print(torch.__version__, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, **ONE_THREAD},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin and process.stdout
        process.stdout.readline()
        found = psutil.Process(process.pid).memory_info().rss
        process.communicate(b"\n")
        return found


if __name__ == "__main__":
    app()
