"""How much of ONNX Runtime's own speed a server leaves: text-detector served over HTTP against a bare ``session.run``.

    python -m benchmarks.onnx_throughput

One image of 640x640 a request, on the CPU provider with one thread. Loop and server have core 0, one after the other,
the load generator has core 1. A round is a loop, then the server; what counts is the median of the rounds' ratios.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks import records
from benchmarks.preheat import one_shape
from benchmarks.throughput import data, share, table, turns

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
console = Console(stderr=True)
DETECTOR = Path(__file__).parent.parent / "model_store" / "text-detector"
SHAPE = "x=1x3x640x640:fp32"
WANTED = 0.97


@app.command()
def main(
    rounds: Annotated[int, typer.Option(min=1)] = 5,
    requests: Annotated[int, typer.Option(min=8, help="Of each measurement.")] = 40,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = records.RESULTS,
) -> None:
    """Measure; exit status 1 where the goal is missed."""
    os.sched_setaffinity(0, {1})  # the load; what is measured is pinned to core 0 by itself
    with one_shape(DETECTOR, SHAPE) as store:
        rows = turns(store, DETECTOR.name, [SHAPE], (1, 8), rounds, requests)
    checks = [share(rows, DETECTOR.name, clients, WANTED) for clients in (1, 8)]
    how = (
        f"ONNX Runtime's CPU provider, fp32, one thread of core 0 on both sides, load from core 1 over loopback with "
        f"the binary tensor extension ({SHAPE}, 4.9 MB a request); {rounds} rounds of a bare session.run loop and the "
        f"server in turn, the one with the median ratio shown. The second ratio is of processor time for each request."
    )
    title = "ONNX Runtime through REST against a bare loop"
    records.write("onnx_throughput", title, how, {"Throughput": table(rows)}, checks, data(rows), out)
    records.conclude(checks, console)


if __name__ == "__main__":
    app()
