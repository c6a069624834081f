"""``preheat demo``: the default models warmed, proven and shipped; the same requests to a cold and a warm server."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.progress import Progress

from handlers.errors import ModelError
from handlers.loading import Model, find_models
from serving.bench import BenchError, BenchResult, compare, run
from serving.cli.output import console, errors, fail, reported
from serving.places import default_models
from serving.process import ServerFailed, ServerProcess

app = typer.Typer(add_completion=False)

_SEED = 20
_START_SECONDS = 300.0


@app.command()
def demo(
    model_store: Annotated[Path, typer.Option(help="The folder of model folders.")] = default_models(),
    requests: Annotated[int, typer.Option(min=10, help="How many requests each server gets.")] = 300,
    report: Annotated[Path, typer.Option(help="Where the report goes.")] = Path("preheat-report.html"),
    bundle: Annotated[
        Path | None, typer.Option(help="Keep the bundle here; else it is made afresh and removed.")
    ] = None,
) -> None:
    """Warm, prove and ship the default models; play the same requests to a cold server and to a warm one; report."""
    with reported(ModelError, ServerFailed, BenchError), tempfile.TemporaryDirectory(prefix="preheat-demo-") as folder:
        models = find_models(model_store)
        made = bundle or Path(folder) / "bundle"
        console.rule("1. Warm, prove, ship")
        _preheat("warm", "--model-store", str(model_store), "--out", str(made))
        console.rule(f"2. {requests} requests to a cold server: whoever comes first pays")
        cold = _play("cold", models, requests, ["--model-store", str(model_store), "--unproven"])
        console.rule("3. The same requests to a server with the bundle")
        warm = _play("warm", models, requests, ["--model-store", str(model_store), "--bundle", str(made)])
        for before, after in zip(cold, warm, strict=True):
            console.rule(before.model)
            console.print(compare([before, after]))
            console.print(_conclusion(before, after), highlight=False)
        results = []
        for result in (*cold, *warm):
            path = Path(folder) / f"{result.label}-{result.model}.json"
            path.write_bytes(orjson.dumps(result.to_json()))
            results.append(path)
        benches = [argument for path in results for argument in ("--bench", str(path))]
        _preheat("report", "--warm", str(made), *benches, "-o", str(report), "--made-by", "preheat demo")


def _conclusion(cold: BenchResult, warm: BenchResult) -> str:
    """What the table says, in a sentence."""
    slowest = [max(sample.seconds for sample in result.samples) for result in (cold, warm)]
    text = f"Slowest request: {slowest[0]:.2f} s cold, {slowest[1]:.2f} s warm."
    if cold.lookups is not None and not cold.lookups.new_entries:
        text += " The cold server had nothing to tune or compile for this model here, so expect no difference."
    return text


def _play(label: str, models: Sequence[Model], requests: int, arguments: list[str]) -> list[BenchResult]:
    """One client, one request after the other: what each pays is its own."""
    share = requests // len(models)
    results = []
    with (
        tempfile.TemporaryDirectory(prefix="preheat-demo-cache-") as cache,  # for the server's copy of the bundle
        ServerProcess([*arguments, "--log-level", "warning"], {**os.environ, "XDG_CACHE_HOME": cache}) as server,
    ):
        console.print(f"{label} server ready after {server.wait_ready(_START_SECONDS):.1f} s")
        with Progress(console=errors, transient=True) as progress:
            for model in models:
                task = progress.add_task(f"{label}: {model.spec.name}", total=share)
                results.append(
                    run(
                        server.url,
                        model.spec.name,
                        requests=share,
                        concurrency=1,
                        first=share // 2,
                        seed=_SEED,
                        label=label,
                        tick=lambda task=task: progress.advance(task),
                    )
                )
    return results


def _preheat(*arguments: str) -> None:
    status = subprocess.run([sys.executable, "-m", "serving", *arguments]).returncode
    if status:
        fail(f"preheat {arguments[0]} ended with status {status}", status)
