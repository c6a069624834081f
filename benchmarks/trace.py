"""How long it takes to find ResNet-50's convolutions at 32 shapes, and what the largest shipped find-db says of them.

    python -m benchmarks.trace ../shared/data/miopen/gfx90a68.HIP.fdb.txt.bz2

Tracing starts with the module in memory and ends with every key; coverage starts with reading the database's file,
decompressed beforehand, and ends with the times of all shapes. Medians of fresh processes, in CPU seconds and not those
of the clock, so that what else the machine does counts little. No GPU takes part: the database's times are its own.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks import records
from benchmarks.records import Check
from handlers.spec import load_spec
from warmup.coverage import Records, cover
from warmup.miopen.finddb import read_bytes
from warmup.plan import expand

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
console = Console(stderr=True)
MODEL = Path(__file__).parent.parent / "model_store/resnet50"
SHAPES, TRACE_S, COVERAGE_S = 32, 5.0, 3.0
GROWTH_MB = 200  # the outputs of all convolutions at the largest shape are 1.4 GB


@app.command()
def main(
    file: Annotated[Path, typer.Argument(help="A find-db, compressed or not.")],
    rounds: Annotated[int, typer.Option(min=1)] = 5,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = records.RESULTS,
    one: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Measure; exit status 1 where the goal is missed."""
    if one:
        print(json.dumps(measure(file)))
        return
    with tempfile.TemporaryDirectory(prefix="preheat-benchmark-") as folder:
        plain = Path(folder) / file.name.removesuffix(".bz2")
        plain.write_bytes(read_bytes(file))
        command = [sys.executable, "-m", "benchmarks.trace", str(plain), "--one"]
        runs = [json.loads(subprocess.check_output(command)) for _ in range(rounds)]
    row = {field: statistics.median(run[field] for run in runs) for field in runs[0]}
    checks = goals(row)
    table = records.table(
        ["step", "CPU s", "s", ""],
        [
            ["import PyTorch and build the module", f"{row['build_cpu_s']:.2f}", f"{row['build_s']:.2f}", ""],
            [
                f"trace {SHAPES} shapes",
                f"{row['trace_cpu_s']:.2f}",
                f"{row['trace_s']:.2f}",
                f"{row['problems']:.0f} distinct problems, {row['growth_mb']:.0f} MB more memory",
            ],
            [
                "read the database and cover",
                f"{row['coverage_cpu_s']:.2f}",
                f"{row['coverage_s']:.2f}",
                f"{row['covered']:.0f} of them covered",
            ],
        ],
    )
    how = (__doc__ or "").partition("\n\n    ")[0] + " " + (__doc__ or "").rpartition("\n\n")[2]
    records.write("trace", "Tracing and coverage", how, {file.name: table}, checks, runs, out)
    console.print((out / "trace.md").read_text(encoding="utf-8"), markup=False, highlight=False)
    if not all(check.holds for check in checks):
        raise typer.Exit(1)


def measure(database: Path) -> dict[str, float]:
    """One run in this process: CPU and clock seconds of each step, and by how much tracing raised the peak memory."""
    spec = load_spec(MODEL)
    plan = expand(spec, MODEL)
    cpu, clock = [time.process_time()], [time.perf_counter()]

    def step() -> None:
        cpu.append(time.process_time())
        clock.append(time.perf_counter())

    from handlers.engines.module import build_module, forward
    from warmup.trace.torch import trace_torch

    module = build_module(spec, MODEL)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step()
    trace = trace_torch(forward(module, spec), module, [planned.shape for planned in plan])
    keys = trace.keys
    step()
    growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    found = Records.load([database], keys.values())
    covered = cover(plan, trace, found)
    step()
    result: dict[str, float] = {"problems": len(trace.problems), "shapes": len(covered), "growth_mb": growth / 1024}
    result["covered"] = sum(key in found.solutions for key in keys.values())
    for at, name in enumerate(("build", "trace", "coverage")):
        result[f"{name}_cpu_s"], result[f"{name}_s"] = cpu[at + 1] - cpu[at], clock[at + 1] - clock[at]
    return result


def goals(row: Mapping[str, float]) -> list[Check]:
    trace, coverage, growth = row["trace_cpu_s"], row["coverage_cpu_s"], row["growth_mb"]
    return [
        Check(f"trace {row['shapes']:.0f} shapes in under {TRACE_S:g} s", f"{trace:.2f} s", trace < TRACE_S),
        Check(f"no activations: under {GROWTH_MB} MB more memory", f"{growth:.0f} MB", growth < GROWTH_MB),
        Check(f"coverage, reading included, in under {COVERAGE_S:g} s", f"{coverage:.2f} s", coverage < COVERAGE_S),
    ]


if __name__ == "__main__":
    app()
