"""TorchServe with a plain handler, TorchServe with Preheat's, and Preheat's own server, side by side in one run.

    python -m benchmarks.torchserve
    python -m benchmarks.torchserve --bundle B --model-store S --first 60 --steady 60 --seconds 1 --workers 1

The same models, images and load generator for all; every server is started anew for each number of workers. First come
the very first requests that a server gets once it says that it is ready, from one client, and as many after them; then
as many at once as asked for. A server is ready when ``/ping`` says so and, since TorchServe's says so before anything
is loaded, when every worker is READY. Everything runs in this project's environment, which has TorchServe in it (a
worker of TorchServe imports both). Needs Java.
"""

from __future__ import annotations

import asyncio
import io
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
import yaml
from PIL import Image, ImageDraw, ImageFont
from rich.console import Console
from safetensors.torch import load_file

from benchmarks import records
from benchmarks.preheat import warm
from benchmarks.records import Check
from handlers.loading import Model, find_models
from handlers.sources import resolve
from serving.bench.client import Target
from serving.bench.latency import Summary, summarize
from serving.bench.load import Sample, closed_loop
from serving.bench.traffic import Ask, file_asks, sequence
from serving.process import ServerProcess
from serving.torchserve.archive import Choices, archive, run_archiver
from serving.torchserve.process import TorchServeProcess, free_ports
from serving.torchserve.properties import METRICS, PROPERTIES, metrics_text, properties, render
from warmup.bundle.manifest import open_bundle

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
console = Console(stderr=True)

STORE = Path(__file__).parent.parent / "model_store"
APPS = Path(__file__).parent / "peers" / "apps" / "torchserve"
PLAIN, WITH, OWN = "TorchServe, plain handler", "TorchServe with Preheat", "Preheat"
SERVERS = (PLAIN, WITH, OWN)
TAIL_GOAL = 1.3
PATIENCE = 900.0  # seconds for a request: a plain handler compiles in it
# Width and height in pixels. The last of each is of no planned size.
SIZES = {"digits": ((128, 64), (96, 96), (256, 128), (100, 60)), "text-detector": ((320, 192), (480, 320), (300, 180))}


@dataclass(frozen=True)
class Cell:
    """So many clients at once: requests per second and the percentiles of their times in seconds."""

    concurrency: int
    per_second: float
    errors: int
    summary: Summary | None


@dataclass
class Run:
    """One server with so many workers. Times in seconds, memory in bytes (pages that processes share count more than
    once); ``lookups`` are what the warm set made of the requests, where the server says."""

    server: str
    workers: int
    ping_seconds: float
    ready_seconds: float
    memory_ready: int = 0
    memory_after: int = 0
    first: Summary | None = None
    steady: Summary | None = None
    errors: int = 0
    cells: list[Cell] = field(default_factory=list)
    lookups: dict[str, float] = field(default_factory=dict)


@app.command()
def main(
    workers: Annotated[list[int], typer.Option(min=1)] = [1, 2],  # noqa: B006  typer's way
    concurrency: Annotated[list[int], typer.Option(min=1, help="Clients at once.")] = [1, 8, 32],  # noqa: B006
    first: Annotated[int, typer.Option(min=10, help="Requests that count as the first.")] = 300,
    steady: Annotated[int, typer.Option(min=10, help="Requests after them that they are compared with.")] = 600,
    seconds: Annotated[int, typer.Option(min=1, help="Of each measurement at a number of clients, about.")] = 10,
    only: Annotated[list[str] | None, typer.Option(help="Measure only this server (may be given again).")] = None,
    model_store: Annotated[Path, typer.Option(help="Where digits and text-detector are.")] = STORE,
    bundle: Annotated[Path | None, typer.Option(help="Their bundle; made in about ten minutes where none.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = records.RESULTS,
) -> None:
    """Measure; exit status 1 where a goal is missed."""
    models = find_models(model_store, SIZES)
    runs: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="preheat-ts-") as text:
        place = Path(text)
        if bundle is None:
            bundle = place / "bundle"
            warm(list(SIZES), model_store, bundle)
        asks = images(place / "images")
        for count in workers:
            for server in only or SERVERS:
                folder = place / f"{count}-{SERVERS.index(server)}"
                with started(server, models, model_store, bundle, count, folder) as (run, target, process):
                    measure(run, target, process, asks, (first, steady), concurrency, seconds)
                    if server == WITH:
                        run.lookups = lookups(process)
                runs.append(run)
    checks = goals(runs, first)
    record(runs, checks, concurrency, first, steady, out)
    records.conclude(checks, console)


@contextmanager
def started(
    server: str, models: Sequence[Model], store: Path, bundle: Path, workers: int, folder: Path
) -> Iterator[tuple[Run, str, ServerProcess | TorchServeProcess]]:
    """A server that is ready: what is known of it, its address, its process."""
    folder.mkdir(parents=True)
    if server == OWN:
        names = [model.folder.name for model in models]
        arguments = [*names, "--model-store", str(store), "--bundle", str(bundle), "--processes", str(workers)]
        with ServerProcess([*arguments, "--admin-port", "-1", "--log-level", "warning"]) as own:
            ready = own.wait_ready(PATIENCE)
            yield Run(server, workers, ready, ready), own.url, own
        return
    archives = folder / "store"
    archives.mkdir()
    for model in models:
        if server == PLAIN:
            plain_archive(model, archives, workers)
        else:
            archive(model, open_bundle(bundle), archives, Choices(workers))
    ports = free_ports(5)
    values = properties(archives, max(model.spec.limits.request_bytes for model in models), port=ports)
    values |= {"grpc_inference_port": str(ports + 3), "grpc_management_port": str(ports + 4)}
    (archives / PROPERTIES).write_text(render(values), encoding="latin-1")
    (archives / METRICS).write_text(metrics_text(), encoding="utf-8")
    with TorchServeProcess(archives, folder / "run") as torchserve:
        ping = torchserve.wait_answering(PATIENCE)
        ready = torchserve.wait_ready(PATIENCE)
        yield Run(server, workers, ping, ready), torchserve.url, torchserve


def plain_archive(model: Model, out: Path, workers: int) -> None:
    """The model with a plain handler. Batches and queue as Preheat's archive has them; ``digits`` is compiled as
    TorchServe's documentation has it."""
    spec = model.spec
    with tempfile.TemporaryDirectory(prefix="preheat-plain-") as text:
        work = Path(text)
        content = work / "content"
        shutil.copytree(model.folder, content / "model", ignore=shutil.ignore_patterns("__pycache__"))
        config: dict[str, Any] = {"minWorkers": workers, "maxWorkers": workers, "maxBatchDelay": 2, "jobQueueSize": 256}
        config |= {"batchSize": 4 if spec.name == "digits" else 2, "responseTimeout": int(PATIENCE)}
        if spec.engine.kind == "torch":
            import torch

            weights = work / "weights.pt"
            torch.save(load_file(model.folder / str(spec.engine.weights)), weights)
            config["pt2"] = {"compile": {"enable": True}}
            (content / "net.py").write_bytes((model.folder / "net.py").read_bytes())
            source = ["--model-file", str(APPS / "plain_net.py"), "--serialized-file", str(weights)]
            handler = APPS / "plain_digits.py"
        else:
            source = ["--serialized-file", str(resolve(spec.engine.source, model.folder))]
            handler = APPS / "plain_text_detector.py"
        (work / "model-config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
        run_archiver(
            [
                *("--model-name", spec.name, "--version", spec.version, "--handler", str(handler), *source),
                *("--config-file", str(work / "model-config.yaml"), "--extra-files", str(content)),
                *("--archive-format", "zip-store", "--export-path", str(out)),
            ],
            work,
        )


def images(folder: Path) -> list[Ask]:
    """A picture with some digits for each size of each model, as requests of the same weight."""
    folder.mkdir()
    asks: list[Ask] = []
    for model, sizes in SIZES.items():
        paths = []
        for width, height in sizes:
            picture = Image.new("L", (width, height), 255)
            ImageDraw.Draw(picture).text((8, height // 3), "2718 3141", fill=0, font=ImageFont.load_default(22))
            buffer = io.BytesIO()
            picture.save(buffer, "PNG")
            paths.append(folder / f"{model}-{width}x{height}.png")
            paths[-1].write_bytes(buffer.getvalue())
        asks += file_asks(model, paths)
    return asks


def measure(
    run: Run,
    url: str,
    process: ServerProcess | TorchServeProcess,
    asks: Sequence[Ask],
    lengths: tuple[int, int],
    concurrency: Sequence[int],
    seconds: int,
) -> None:
    """The first requests and those after them from one client, then every number of clients."""
    first, steady = lengths
    run.memory_ready = resident(process.pid)
    samples, _ = load(url, asks, first + steady, 1)
    run.first = summarize([sample.seconds for sample in samples[:first] if sample.ok])
    run.steady = summarize([sample.seconds for sample in samples[first:] if sample.ok])
    run.errors = sum(not sample.ok for sample in samples)
    rate = 1 / run.steady.mean if run.steady else 1.0
    for count in concurrency:
        samples, taken = load(url, asks, max(count * 4, int(rate * seconds)), count)
        good = [sample.seconds for sample in samples if sample.ok]
        cell = Cell(count, len(good) / taken, len(samples) - len(good), summarize(good))
        run.cells.append(cell)
        rate = max(cell.per_second, 1.0)
        console.print(
            f"{run.server:26} {run.workers} workers, {count:2} at once: {cell.per_second:7.1f}/s, "
            f"{_ms(cell.summary, 'p50')} / {_ms(cell.summary, 'p99')} ms, {cell.errors} errors",
            highlight=False,
        )
    run.memory_after = resident(process.pid)


def load(url: str, asks: Sequence[Ask], count: int, concurrency: int) -> tuple[list[Sample], float]:
    """The same sequence for the same count, and the seconds that it took."""
    target = Target.parse(url)
    requests = [target.encode(ask) for ask in asks]
    order = sequence([ask.weight for ask in asks], count, seed=20)
    begun = time.perf_counter()
    samples = asyncio.run(closed_loop(target, requests, order, concurrency, PATIENCE, lambda: None))
    return samples, time.perf_counter() - begun


def resident(pid: int) -> int:
    """Bytes of a process and of all below it."""
    found = psutil.Process(pid)
    return sum(process.memory_info().rss for process in [found, *found.children(recursive=True)])


def lookups(process: ServerProcess | TorchServeProcess) -> dict[str, float]:
    """Outcomes by TorchServe's metrics, of all models together."""
    assert isinstance(process, TorchServeProcess)
    found: dict[str, float] = {}
    for line in process.metrics().splitlines():
        if line.startswith("preheat_shape_lookups_total{"):
            outcome = line.split('outcome="', 1)[1].split('"', 1)[0]
            found[outcome] = found.get(outcome, 0.0) + float(line.rsplit(" ", 1)[1])
    return found


def goals(runs: Sequence[Run], first: int) -> list[Check]:
    """What has to be reached: the tail of the first requests with Preheat, and nothing cold or failed there."""
    checks = []
    for run in runs:
        if run.server != WITH or run.workers != max(one.workers for one in runs):
            continue
        plain = next((one for one in runs if (one.server, one.workers) == (PLAIN, run.workers)), None)
        ratio = run.first.p99 / run.steady.p99 if run.first and run.steady else float("inf")
        beside = f"; plain handler: {_ms(plain.first, 'p99')} ms" if plain else ""
        checks += [
            Check(
                f"TorchServe with Preheat, {run.workers} workers: P99 of the first {first} at most {TAIL_GOAL} times "
                "the steady P99",
                f"{ratio:.2f} times ({_ms(run.first, 'p99')} ms{beside})",
                ratio <= TAIL_GOAL,
            ),
            Check("no request to it is cold, and none fails", f"{run.lookups}, {_failed(run)} failed", _clean(run)),
        ]
    return checks


def _failed(run: Run) -> int:
    return run.errors + sum(cell.errors for cell in run.cells)


def _clean(run: Run) -> bool:
    return not _failed(run) and not run.lookups.get("cold") and bool(run.lookups)


def _ms(summary: Summary | None, name: str) -> str:
    return f"{getattr(summary, name) * 1e3:,.1f}" if summary else "-"


def record(
    runs: Sequence[Run], checks: Sequence[Check], concurrency: Sequence[int], first: int, steady: int, out: Path
) -> None:
    mib = 1 << 20
    starts = [
        [
            run.server,
            str(run.workers),
            f"{run.ping_seconds:.1f}",
            f"{run.ready_seconds:.1f}",
            f"{run.memory_ready / mib:,.0f}",
            f"{run.memory_after / mib:,.0f}",
            _ms(run.first, "p50"),
            _ms(run.first, "p99"),
            _ms(run.first, "max"),
            _ms(run.steady, "p50"),
            _ms(run.steady, "p99"),
        ]
        for run in runs
    ]
    head = ["server", "workers", "/ping after s", "ready after s", "MiB when ready", "MiB afterwards"]
    head += [f"first {first}: P50 ms", "P99 ms", "slowest ms", f"next {steady}: P50 ms", "P99 ms"]
    cells = [
        [
            run.server,
            str(run.workers),
            *(f"{cell.per_second:,.1f}" for cell in run.cells),
            *(_ms(cell.summary, "p50") for cell in run.cells),
            *(_ms(cell.summary, "p99") for cell in run.cells),
            str(_failed(run)),
        ]
        for run in runs
    ]
    columns = [f"{what} at {count}" for what in ("req/s", "P50 ms", "P99 ms") for count in concurrency]
    sections = {
        "From the start on, one client": records.table(head, starts),
        "Clients at once": records.table(["server", "workers", *columns, "failed"], cells),
    }
    how = (
        "`digits` (compiled) and `text-detector` (ONNX) on the CPU, mixed images of seven sizes, two of which no plan "
        "has; the same sequence of requests, closed loop over loopback, nothing pinned. A plain handler compiles as "
        "TorchServe's documentation says and shares the code before and after the model with Preheat's. Ready: every "
        "worker of TorchServe's is READY; its /ping says healthy earlier, whatever the workers do. Memory is resident "
        "memory of all processes, Java's included; pages that they share count more than once."
    )
    data = [asdict(run) for run in runs]
    records.write("torchserve", "TorchServe, with and without Preheat, and Preheat", how, sections, checks, data, out)


if __name__ == "__main__":
    app()
