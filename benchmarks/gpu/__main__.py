"""``python -m benchmarks.gpu``: see the package."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks import records
from benchmarks.gpu.clients import Clients
from benchmarks.gpu.device import facts
from benchmarks.gpu.measure import measure, prove
from benchmarks.gpu.several import several
from benchmarks.gpu.subject import DRY, SUBJECTS, Subject
from benchmarks.gpu.summary import checks, paused, plot, rows
from benchmarks.records import Check

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
console = Console(stderr=True)


@app.command()
def main(
    models: Annotated[list[str] | None, typer.Argument(help="resnet50, efficientnet-b0; both if none.")] = None,
    runs: Annotated[int, typer.Option(min=1, help="Server starts of which medians are taken.")] = 3,
    devices: Annotated[int, typer.Option(min=1, help="More than one: measure only how several compare to one.")] = 1,
    execution: Annotated[str, typer.Option(help="What is compared to eager: graph or compile+graph.")] = "graph",
    dry: Annotated[bool, typer.Option("--dry", help="A small model on any machine: whether all of this runs.")] = False,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = records.RESULTS,
) -> None:
    """Measure; exit status 1 where a goal is missed."""
    subjects = [DRY] if dry else [SUBJECTS[name] for name in models or SUBJECTS]
    with tempfile.TemporaryDirectory(prefix="preheat-benchmark-") as folder:
        if devices > 1:
            found = [several(subjects[0], Path(folder), devices, out, _tell)]
        else:
            found = _each(subjects, Path(folder), runs, execution, out)
    records.conclude(found, console)


def _each(subjects: list[Subject], folder: Path, runs: int, execution: str, out: Path) -> list[Check]:
    name = "-".join(["gpu", *(subject.name for subject in subjects if len(subjects) < len(SUBJECTS))])
    name += "" if execution == "graph" else f"-{execution.replace('+', '-')}"
    subjects = [subject.executed(execution) for subject in subjects]
    data: dict[str, Any] = {"gpu": facts(), "execution": execution, "runs": runs, "models": {}}
    started = time.perf_counter()
    with ThreadPoolExecutor(len(subjects)) as pool:  # nothing is measured yet
        proofs = list(pool.map(lambda subject: prove(subject, folder / subject.name), subjects))
    with Clients(4, 8) as clients:
        for subject, proof in zip(subjects, proofs, strict=True):
            _tell(f"{subject.name}, proof", {key: proof[key] for key in ("seconds", "proven", "notes")})
            found = data["models"][subject.name] = {"proof": proof}

            def keep(label: str, step: object) -> None:  # whatever becomes of the next step
                _tell(label, step)
                data["seconds"] = time.perf_counter() - started
                _write(name, data, out)

            measure(subject, folder / subject.name, runs, clients, found, keep)
    return [check for model, one in data["models"].items() for check in checks(model, one)]


def _write(name: str, data: dict[str, Any], out: Path) -> None:
    gpu, models = data["gpu"], data["models"]
    table = [row for model, one in models.items() for row in rows(model, one)]
    out.mkdir(parents=True, exist_ok=True)
    plot(models, out / f"{name}.png")
    records.write(
        name,
        f"Captured graphs on a GPU ({data['execution']})",
        f"{gpu['name']} ({gpu['memory']}, driver {gpu['driver']}), client on the same host, binary tensors, fp16. "
        f"Rewritten in the graphs: {'; '.join(_rewritten(models, data['execution']))}. Medians of "
        f"{data['runs']} server starts. `first` are the first 1,500 requests after ready (of the handler: of a new "
        "process), `steady` the next, one client; `many` are 32 clients; `full` are 32 whose requests all have batch "
        "8; `in shared memory`: the tensors are there, and not sent. The eager engine is this server without graphs; "
        "the eager handler runs in process, without HTTP. Pauses of a process that only looks at the clock: "
        f"{'; '.join(paused(one['runs']) for one in models.values() if one['runs'])}. "
        f"All of it took {data['seconds']:.0f} s.",
        {
            "Times": records.table(["", "P50", "P95", "P99", "max", "requests/s"], table),
            "From the quickest request to the slowest": f"![Times of requests]({name}.png)",
        },
        [check for model, one in models.items() for check in checks(model, one)],
        data,
        out,
        module="gpu",
    )


def _rewritten(models: Iterable[str], execution: str) -> list[str]:
    return [
        f"{name} by {' and '.join(SUBJECTS[name].rewritten(execution))}" if name in SUBJECTS else f"{name} not at all"
        for name in models
    ]


def _tell(label: str, found: object) -> None:
    console.print(f"{label}: {json.dumps(_short(found))}", highlight=False, soft_wrap=True)


def _short(found: object) -> object:
    """Without the long lists."""
    if isinstance(found, dict):
        return {key: _short(value) for key, value in found.items() if key not in ("curve", "busy_samples")}
    if isinstance(found, list):
        return [_short(value) for value in found]
    return round(found, 5) if isinstance(found, float) else found


if __name__ == "__main__":
    app()
