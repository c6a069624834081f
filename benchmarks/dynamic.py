"""One compiled function for all shapes, or one for each: how long a sweep takes, and what a request takes then.

    python -m benchmarks.dynamic

A ResNet-18-like model at eighteen shapes on the CPU, ``execution: compile`` with and without ``dynamic_shapes``, each
swept from nothing into a bundle (tuned, sealed, proven). Steady times are the proofs'.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks import records
from benchmarks.records import Check
from benchmarks.variants import variant

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
console = Console(stderr=True)

_NAME = "resnet18"
_MODEL = Path(__file__).parent / "models" / _NAME
_BATCHES, _SIDES = (1, 2, 4), (64, 96, 128, 160, 192, 224)


@app.command()
def main(out: Annotated[Path, typer.Option(help="Folder of the results.")] = records.RESULTS) -> None:
    """Measure; exit status 1 where a goal is missed."""
    with tempfile.TemporaryDirectory(prefix="preheat-benchmark-") as folder:
        each, one = (_sweep(Path(folder) / str(dynamic), dynamic) for dynamic in (False, True))
    rows = [
        [shape, *(f"{way['shapes'][shape][kind]:.1f}" for kind in ("cold", "steady") for way in (each, one))]
        for shape in each["shapes"]
    ]
    rows.append(["whole sweep", f"{each['seconds']:.0f}", f"{one['seconds']:.0f}", "", ""])
    head = ["shape", "first call s, each", "one for all", "steady ms, each", "one for all"]
    checks = [
        Check(
            "a sweep of one function for all shapes takes at most half of the time",
            f"{one['seconds']:.0f} s against {each['seconds']:.0f} s",
            one["seconds"] <= each["seconds"] / 2,
        ),
        Check("every shape is proven both ways", f"{each['proven']} and {one['proven']} of {len(rows) - 1}",
              each["proven"] == one["proven"] == len(rows) - 1),
    ]  # fmt: skip
    how = " ".join((__doc__ or "").partition("dynamic\n\n")[2].split())
    title = "Compiled once for all shapes, or once for each"
    records.write("dynamic", title, how, {"Shapes": records.table(head, rows)}, checks, {"each": each, "one": one}, out)
    records.conclude(checks, console)


def _sweep(folder: Path, dynamic: bool) -> dict[str, Any]:
    with variant(_MODEL, folder) as document:
        document["engine"] |= {"execution": "compile", "dynamic_shapes": dynamic}
        document["shapes"] = {"list": [f"images={b}x3x{side}x{side}:fp32" for b in _BATCHES for side in _SIDES]}
    command = [sys.executable, "-m", "serving", "warm", _NAME, "--model-store", str(folder), "--json"]
    started = time.perf_counter()
    done = subprocess.run([*command, "--out", str(folder / "bundle")], stdout=subprocess.PIPE, text=True)
    seconds = time.perf_counter() - started
    if done.returncode not in (0, 1):  # 1: a shape could not be proven
        raise RuntimeError(f"{' '.join(command)}: {done.returncode}")
    shapes = json.loads(done.stdout)["models"][_NAME]["shapes"]
    return {
        "seconds": seconds,
        "proven": sum(shape["proven"] for shape in shapes),
        "shapes": {
            shape["shape"]: {"cold": shape["cold_seconds"], "steady": 1e3 * shape["steady_seconds"]} for shape in shapes
        },
    }


if __name__ == "__main__":
    app()
