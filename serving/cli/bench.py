"""``preheat bench``: load on a server, and what its first requests paid compared with the rest."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.progress import Progress

from serving.bench import BenchError, BenchResult, ResultError, compare, read_result, run
from serving.bench.gate import broken
from serving.bench.traffic import Encoding, TrafficError, read_shapes
from serving.cli.output import console, errors, fail, print_json, reported
from serving.places import default_models

app = typer.Typer()


@app.command()
def bench(
    url: Annotated[str | None, typer.Argument(help="Where the server is, as in http://127.0.0.1:8080.")] = None,
    model: Annotated[str | None, typer.Option(help="The model to ask for.")] = None,
    requests: Annotated[int, typer.Option(min=1, help="How many requests to send.")] = 600,
    concurrency: Annotated[int, typer.Option(min=1, help="Closed loop: clients that wait for their answers.")] = 8,
    rate: Annotated[
        float | None, typer.Option(min=1e-3, help="Open loop: requests a second, at random moments (Poisson).")
    ] = None,
    first: Annotated[int, typer.Option(min=1, help="How many requests count as the first ones.")] = 300,
    shapes: Annotated[
        Path | None, typer.Option(help='A file {"shapes": {SHAPE: WEIGHT}}; else the plan that the server shows.')
    ] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Only shapes whose first dim is this.")] = None,
    images: Annotated[
        list[Path] | None, typer.Option(help="Send this file, or the files in this folder, to /predictions instead.")
    ] = None,
    encoding: Annotated[Encoding, typer.Option(help="How tensors travel.")] = "binary",
    seed: Annotated[int, typer.Option(help="Same seed, same requests in the same order.")] = 0,
    timeout: Annotated[float, typer.Option(min=1e-3, help="Seconds that an answer may take.")] = 120.0,
    label: Annotated[str, typer.Option(help="The run's name in tables and plots, as in cold or warm.")] = "",
    max_p99: Annotated[
        float | None, typer.Option(min=1e-6, help="A gate: seconds that the P99 of the first requests may be.")
    ] = None,
    min_hit_rate: Annotated[
        float | None, typer.Option(min=0, max=1, help="A gate: the share of requests that must meet a warm shape.")
    ] = None,
    against: Annotated[list[Path] | None, typer.Option(help="Earlier results, to stand beside this one.")] = None,
    breakdown: Annotated[
        bool,
        typer.Option("--breakdown", help="Without a server: where an ONNX model's time goes, on each provider here."),
    ] = False,
    shape: Annotated[
        list[str] | None, typer.Option(help="With --breakdown: this shape; may be repeated. Else the planned ones.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="With --breakdown: executions of each shape.")] = 20,
    model_store: Annotated[Path, typer.Option(help="With --breakdown: the folder of models.")] = default_models(),
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Where to write the result, as JSON.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Send mixed shapes to a server and show P50 to P99.9 of the first requests and of the rest, and the hit rate.

    Exit status 1 where a request was not answered with 200, or a gate does not hold. Without URL, only the results of
    --against are shown. With --breakdown, no server is asked: --model is loaded here, on each of its providers in turn
    and on the CPU; exit status 1 where the parts do not explain 97 % of the total.
    """
    if breakdown:
        from serving.cli.bench_breakdown import bench_breakdown

        if url is not None or model is None:
            fail("--breakdown takes --model and no URL")
        bench_breakdown(model, model_store, shape or (), repeats, as_json)
    with reported(ResultError):
        results = [read_result(path) for path in against or ()]
    if url is None:
        if not results:
            fail("a URL to measure is needed, or --against with earlier results")
    elif model is None:
        fail("--model is needed: which model to ask for")
    else:
        signal.signal(signal.SIGTERM, _end)  # so that what is registered and shared does not stay
        with reported(BenchError, TrafficError), Progress(console=errors, transient=True) as progress:
            task = progress.add_task(f"{model} at {url}", total=requests)
            result = run(
                url,
                model,
                requests=requests,
                concurrency=concurrency,
                rate=rate,
                first=first,
                shapes=read_shapes(shapes) if shapes else None,
                batch=batch,
                images=_files(images or []),
                encoding=encoding,
                seed=seed,
                timeout=timeout,
                label=label,
                tick=lambda: progress.advance(task),
            )
        results.append(result)
        _write(out, result)
    if as_json:
        print_json([result.to_json() for result in results] if len(results) > 1 else results[0].to_json())
    else:
        console.print(compare(results))
        console.print(str(results[-1].machine), style="dim")
    if url is None:
        return
    for problem in (found := broken(results[-1], max_p99, min_hit_rate)):
        errors.print(f"preheat: {problem}", markup=False, soft_wrap=True)
    if found or results[-1].errors:
        raise typer.Exit(1)


def _end(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _files(paths: list[Path]) -> list[Path]:
    files = [file for path in paths for file in (sorted(path.iterdir()) if path.is_dir() else [path])]
    if paths and not any(map(Path.is_file, files)):
        fail(f"no files in {', '.join(map(str, paths))}")
    return [file for file in files if not file.is_dir()]


def _write(out: Path | None, result: BenchResult) -> None:
    if out is None:
        return
    try:
        out.write_bytes(orjson.dumps(result.to_json()))
    except OSError as error:
        fail(f"{out}: {error.strerror}")
