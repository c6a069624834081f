"""What warming costs, and what it buys: the default models, cold and warm.

    python -m benchmarks.warming

A sweep with empty stores; the same sweep again, with nothing left to do; a server from the bundle until it is ready;
then the same mixed requests, one client, to a server without a bundle and to that one. What counts is the server's
first 300 requests against its own steady state.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks import records
from benchmarks.preheat import preheat, warm
from benchmarks.records import Check
from handlers.loading import find_models
from serving.bench import BenchResult, run
from serving.bench.result import comparison

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
console = Console(stderr=True)
STORE = Path(__file__).parent.parent / "model_store"
IMPORTS = "import torch, onnxruntime, torch._inductor.codecache"  # what a sweep imports before it can look at anything


@app.command()
def main(
    requests: Annotated[int, typer.Option(min=300, help="To the warm server, for each model.")] = 900,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = records.RESULTS,
) -> None:
    """Measure; exit status 1 where a goal is missed."""
    models = [model.spec.name for model in find_models(STORE)]
    with tempfile.TemporaryDirectory(prefix="preheat-benchmark-") as folder:
        bundle = Path(folder) / "bundle"
        sweep = warm([], STORE, bundle)
        imports = seconds_of([sys.executable, "-c", IMPORTS])
        before = contents(bundle)
        again = warm([], STORE, bundle)
        added = contents(bundle) != before
        with preheat([], STORE, bundle=None) as server:
            cold = [play("cold", server.url, model, 300) for model in models]
        starts, warmed = [], []
        for number in range(3):
            with preheat([], STORE, bundle) as server:
                starts.append(server.running.ready_seconds)
                if number == 0:
                    warmed = [play("warm", server.url, model, requests) for model in models]
    ready = statistics.median(starts)
    checks = [
        Check(
            f"a second sweep: under 10 s plus imports ({imports:.1f} s), nothing added",
            f"{again:.1f} s, {'something' if added else 'nothing'} added",
            again < 10 + imports and not added,
        ),
        Check(
            f"from the bundle to ready: at most 15 % of the sweep ({sweep:.0f} s)",
            f"{ready:.1f} s, {ready / sweep:.1%}",
            ready <= 0.15 * sweep,
        ),
        *(check for result in warmed for check in tail_checks(result)),
    ]
    record(cold, warmed, [sweep, imports, again, *starts], checks, out)
    records.conclude(checks, console)


def play(label: str, url: str, model: str, requests: int) -> BenchResult:
    """The same stream for the same seed, whatever its length: one client, one request after the other."""
    return run(url, model, requests=requests, concurrency=1, first=300, seed=20, label=f"{label}, {model}")


def tail_checks(result: BenchResult) -> list[Check]:
    """Every lookup a hit, and the first 300 requests no slower at the tail than the rest."""
    first, steady = result.first_part, result.steady_part
    ratio = first.p99 / steady.p99 if first and steady else float("inf")
    hits = result.hit_rate
    return [
        Check(
            f"{result.label}: hit rate 1.0, no errors", f"{hits}, {result.errors}", hits == 1.0 and not result.errors
        ),
        Check(
            f"{result.label}: P99 of the first 300 at most 1.2 times the steady P99",
            f"{ratio:.2f} times" + (f" ({first.p99 * 1e3:.1f} ms)" if first else ""),
            ratio <= 1.2,
        ),
    ]


def contents(bundle: Path) -> dict[str, int]:
    """Every file of a bundle with its size."""
    return {str(path.relative_to(bundle)): path.stat().st_size for path in bundle.rglob("*") if path.is_file()}


def seconds_of(command: Sequence[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


def record(
    cold: Sequence[BenchResult],
    warmed: Sequence[BenchResult],
    times: Sequence[float],
    checks: Sequence[Check],
    out: Path,
) -> None:
    sweep, imports, again, *starts = times
    steps = records.table(
        ["step", "seconds"],
        [
            ["sweep with empty stores", f"{sweep:.1f}"],
            ["the same sweep again", f"{again:.1f}"],
            ["only importing what it needs", f"{imports:.1f}"],
            ["from the bundle to ready", ", ".join(f"{start:.1f}" for start in starts)],
        ],
    )
    runs = [result for pair in zip(cold, warmed, strict=True) for result in pair]
    rows = [[name, *cells] for name, cells in comparison(runs)]
    sections = {"Steps": steps, "Requests": records.table(["", *[run.label for run in runs]], rows)}
    how = (
        "The default models of the store on the CPU, two cores, nothing pinned: warmed with empty stores, served "
        "without a bundle (cold) and from the bundle (warm), mixed shapes by weight, one client, binary tensors."
    )
    data = {
        "sweep_seconds": sweep,
        "imports_seconds": imports,
        "second_sweep_seconds": again,
        "ready_seconds": starts,
        "runs": [result.to_json() for result in runs],
    }
    records.write("warming", "Cold against warm", how, sections, checks, data, out)


if __name__ == "__main__":
    app()
