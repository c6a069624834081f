"""How much of a model's own speed a server leaves: served over HTTP against a bare loop, one thread, in turns.

    python -m benchmarks.throughput

ResNet-50 at 1x3x224x224, and a ResNet-18-like model at six sizes in random order from 32 clients. The loop and the
server have core 0, one after the other, the load generator has core 1. A round is a loop, then the server with the same
shapes in the same order; what counts is the median of the rounds' ratios.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks import records
from benchmarks.preheat import STORE, one_shape, preheat, warm
from benchmarks.records import Check
from benchmarks.servers import ONE_THREAD
from handlers.shapes import Shape
from handlers.spec import load_spec
from serving.bench import BenchResult, run
from serving.bench.traffic import sequence

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
console = Console(stderr=True)
RESNET50 = Path(__file__).parent.parent / "model_store" / "resnet50"
SIZES = (64, 96, 128, 160, 192, 224)


@dataclass(frozen=True)
class Round:
    """One turn of loop and server; times in seconds, speeds in requests a second, ``raw_cpu`` and ``served_cpu`` in
    processor seconds for each request."""

    model: str
    clients: int
    raw: float
    served: float
    raw_cpu: float
    served_cpu: float
    p50: float
    p99: float
    max: float
    errors: int

    @property
    def ratio(self) -> float:
        return self.served / self.raw

    @property
    def cpu_ratio(self) -> float:
        return self.raw_cpu / self.served_cpu


@app.command()
def main(
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    requests: Annotated[int, typer.Option(min=32, help="Of each measurement.")] = 300,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = records.RESULTS,
) -> None:
    """Measure; exit status 1 where a goal is missed."""
    os.sched_setaffinity(0, {1})  # the load; what is measured is pinned to core 0 by itself
    with one_shape(RESNET50, "images=1x3x224x224:fp32") as store:
        rows = turns(store, "resnet50", ["images=1x3x224x224:fp32"], (1, 8), rounds, max(32, requests // 3))
    shapes = [f"images=1x3x{size}x{size}:fp32" for size in SIZES]
    mixed = turns(STORE, "resnet18", shapes, (1, 8, 32), rounds, requests)
    bound = load_spec(STORE / "resnet18").limits.timeout_s
    checks = [
        share(rows, "resnet50", 8, 0.95),
        share(mixed, "resnet18", 32, 1.1),
        Check(
            f"resnet18, 32 clients: every request answered, none after its bound of {bound:g} s",
            f"{sum(row.errors for row in mixed)} failed, slowest {max(row.max for row in mixed):.2f} s",
            not any(row.errors for row in mixed) and all(row.max <= bound for row in mixed),
        ),
    ]
    record([*rows, *mixed], checks, rounds, out)
    records.conclude(checks, console)


def turns(
    store: Path, model: str, shapes: Sequence[str], clients: Sequence[int], rounds: int, requests: int
) -> list[Round]:
    """Loop and server in turns, for each number of clients. The server is started once: only one of the two works."""
    found = []
    with tempfile.TemporaryDirectory(prefix="preheat-benchmark-") as folder:
        bundle = Path(folder) / "bundle"
        warm([model], store, bundle, core=0)
        weighted = [(Shape.parse(text), 1.0) for text in shapes]
        with preheat([model], store, bundle, core=0) as server:
            for number in range(1, rounds + 1):
                for count in clients:
                    order = [shapes[index] for index in sequence([1.0] * len(shapes), requests, seed=number)]
                    wall, cpu = raw_loop(store / model, order, Path(folder))
                    before = server.running.cpu_seconds()
                    result = run(server.url, model, requests=requests, concurrency=count, shapes=weighted, seed=number)
                    served_cpu = (server.running.cpu_seconds() - before) / requests
                    row = _round(result, count, requests / wall, cpu / requests, served_cpu)
                    found.append(row)
                    console.print(
                        f"round {number} {model} {count:2} clients: loop {row.raw:6.1f}/s, served {row.served:6.1f}/s, "
                        f"ratio {row.ratio:.3f} ({row.cpu_ratio:.3f} by processor time), "
                        f"P99 {row.p99 * 1e3:.0f} ms, {row.errors} errors",
                        highlight=False,
                    )
    return found


def raw_loop(model: Path, shapes: Sequence[str], folder: Path) -> tuple[float, float]:
    """Wall and processor seconds of a bare loop over the shapes, in a process of its own on core 0."""
    (folder / "shapes.json").write_text(json.dumps(list(shapes)), encoding="utf-8")
    command = ["taskset", "--cpu-list", "0", sys.executable, "-m", "benchmarks.raw_loop", str(model)]
    done = subprocess.run(
        [*command, str(folder / "shapes.json")],
        cwd=Path(__file__).parent.parent,
        env={**os.environ, **ONE_THREAD},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    return found["wall"], found["cpu"]


def _round(result: BenchResult, clients: int, raw: float, raw_cpu: float, served_cpu: float) -> Round:
    times = sorted(sample.seconds for sample in result.samples)
    return Round(
        model=result.model,
        clients=clients,
        raw=raw,
        served=result.per_second,
        raw_cpu=raw_cpu,
        served_cpu=served_cpu,
        p50=times[len(times) // 2],
        p99=times[-(-len(times) * 99 // 100) - 1],
        max=times[-1],
        errors=sum(result.errors.values()),
    )


def share(rows: Sequence[Round], model: str, clients: int, wanted: float) -> Check:
    """That the median of the rounds' ratios is at least ``wanted``."""
    ratio = statistics.median(row.ratio for row in rows if row.clients == clients)
    return Check(f"{model}, {clients} clients: at least {wanted:g} of the bare loop", f"{ratio:.3f}", ratio >= wanted)


def table(rows: Sequence[Round]) -> str:
    """For each model and number of clients the round with the median ratio."""
    cells = []
    for model, clients in dict.fromkeys((row.model, row.clients) for row in rows):
        found = [row for row in rows if (row.model, row.clients) == (model, clients)]
        middle = statistics.median_low(row.ratio for row in found)
        row = next(row for row in found if row.ratio == middle)
        times = [f"{value * 1e3:,.0f}" for value in (row.p50, row.p99, row.max)]
        cells.append(
            [
                model,
                str(clients),
                f"{row.raw:.1f}",
                f"{row.served:.1f}",
                f"{row.ratio:.3f}",
                f"{row.cpu_ratio:.3f}",
                *times,
            ]
        )
    head = [
        "model",
        "clients",
        "loop, req/s",
        "served, req/s",
        "ratio",
        "by processor time",
        "P50 ms",
        "P99 ms",
        "max ms",
    ]
    return records.table(head, cells)


def data(rows: Sequence[Round]) -> list[dict[str, Any]]:
    """Every round, for the JSON of a benchmark."""
    return [asdict(row) | {"ratio": row.ratio, "cpu_ratio": row.cpu_ratio} for row in rows]


def record(rows: Sequence[Round], checks: Sequence[Check], rounds: int, out: Path) -> None:
    how = (
        f"Random weights, fp32, PyTorch eager on one thread of core 0 on both sides, load from core 1 over loopback "
        f"with the binary tensor extension; {rounds} rounds of a bare loop and the server in turn, the one with the "
        f"median ratio shown. resnet50 at 1x3x224x224; resnet18 at {', '.join(map(str, SIZES))} px in random order. "
        f"The second ratio is of processor time for each request, which what else the machine does hardly changes."
    )
    sections = {"Throughput": table(rows)}
    records.write("throughput", "Throughput against a bare loop", how, sections, checks, data(rows), out)


if __name__ == "__main__":
    app()
