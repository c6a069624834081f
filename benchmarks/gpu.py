"""What captured graphs buy on a GPU, through REST: tails of the first requests, throughput, time to ready, memory.

    python -m benchmarks.gpu [--devices 2]

ResNet-50 and EfficientNet-B0 in fp16, 32 shapes each (batch 1, 2, 4, 8 by 160 to 448 px), in requests whose shapes
follow Zipf's law in the order of the plan (small ones are frequent). Each model is warmed, proven and served from its
bundle; beside it, in the same run, the same model in this server's eager engine, and in a plain eager handler as
TorchServe's BaseHandler runs one (tensor to the device, ``model(...)`` in inference mode, ``tolist()``), in a process
of its own without any HTTP.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console

from benchmarks import records
from benchmarks.records import Check
from serving.bench import BenchResult, run
from serving.bench.result import read_result
from serving.process import ServerProcess

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
console = Console(stderr=True)
HERE = Path(__file__).parent
SOURCES = {"resnet50": HERE.parent / "model_store" / "resnet50", "efficientnet-b0": HERE / "models" / "efficientnet-b0"}
BATCHES, SIDES = (1, 2, 4, 8), (160, 192, 224, 256, 288, 320, 384, 448)
SHAPES = [f"images={batch}x3x{side}x{side}:fp16" for batch in BATCHES for side in SIDES]
WEIGHTS = [1 / rank for rank in range(1, len(SHAPES) + 1)]
FIRST = 1500


@app.command()
def main(
    models: Annotated[list[str] | None, typer.Argument(help="resnet50, efficientnet-b0; both if none.")] = None,
    runs: Annotated[int, typer.Option(min=1, help="Server starts of which medians are taken.")] = 3,
    devices: Annotated[int, typer.Option(min=1, help="More than one: measure only how several compare to one.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = records.RESULTS,
) -> None:
    """Measure; exit status 1 where a goal is missed."""
    with tempfile.TemporaryDirectory(prefix="preheat-benchmark-") as folder:
        graph, eager = _store(Path(folder) / "graph", "graph"), _store(Path(folder) / "eager", "eager")
        if devices > 1:
            _several(Path(folder), graph, devices, out)
            return
        data: dict[str, Any] = {"gpu": gpu(), "zipf_order": SHAPES}
        checks: list[Check] = []
        rows: list[list[str]] = []
        for name in models or list(SOURCES):
            found = _model(name, Path(folder), graph, eager, runs if name == "resnet50" else 1)
            data[name] = found
            checks += _checks(name, found)
            rows += _rows(name, found)
            _write(f"gpu-{name}" if len(models or ()) == 1 else "gpu", data, rows, checks, out)
    for check in checks:
        console.print(f"{'reached' if check.holds else 'MISSED '} {check.wanted}: {check.found}", highlight=False)
    if not all(check.holds for check in checks):
        raise typer.Exit(1)


def gpu() -> dict[str, str]:
    """The GPU and its driver, as NVIDIA's library names them."""
    import pynvml  # pyright: ignore[reportMissingImports]

    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    return {
        "name": str(pynvml.nvmlDeviceGetName(device)),
        "driver": str(pynvml.nvmlSystemGetDriverVersion()),
        "memory": f"{pynvml.nvmlDeviceGetMemoryInfo(device).total / 1e9:.0f} GB",
        "count": str(pynvml.nvmlDeviceGetCount()),
    }


def _store(folder: Path, execution: str) -> Path:
    """The models, described alike: fp16, channels last, the 32 shapes; only the execution differs."""
    for name, source in SOURCES.items():
        shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        document = yaml.safe_load((source / "model.yaml").read_text(encoding="utf-8"))
        document["engine"] |= {"precision": "fp16", "channels_last": True, "execution": execution}
        document["inputs"][0]["dtype"] = document["outputs"][0]["dtype"] = "fp16"
        document["shapes"] = {"list": [{"shape": s, "weight": w} for s, w in zip(SHAPES, WEIGHTS, strict=True)]}
        document["batching"] = {"max_delay_ms": 2, "queue": 256}
        (folder / name / "model.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    return folder


def _model(name: str, folder: Path, graph: Path, eager: Path, runs: int) -> dict[str, Any]:
    found: dict[str, Any] = {"proof": _warm(name, graph, folder / f"{name}-bundle"), "runs": []}
    for number in range(runs):
        with _serving(name, graph, folder / f"{name}-bundle") as (server, ready):
            first = _play(server, name, 1, FIRST, "first")
            steady = _play(server, name, 1, FIRST, "steady", seed=1)
            many = _play(server, name, 32, 2000, "32 clients", seed=2)
            measured = {"ready": ready, "replay": _metric(server, "preheat_warmup_seconds")}
            measured |= {"first": _numbers(first), "steady": _numbers(steady), "many": _numbers(many)}
            measured |= {"graph_bytes": _metric(server, "preheat_graph_bytes")}
            measured["slowest_against_own_shape"] = _worst(first, steady)
            if number == 0:
                with _Busy() as busy:
                    eights = run(server.url, name, requests=800, concurrency=32, first=800, batch=8, seed=3)
                measured |= {"batch_8": _numbers(eights), "gpu_busy": busy.percent}
                measured["stages"] = _stages(server)
            found["runs"].append(measured)
            _tell(f"{name} run {number}", measured)
    found["handler"] = json.loads(
        subprocess.run(
            [sys.executable, "-m", "benchmarks.gpu_handler", str(eager / name)],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    )
    _tell(f"{name} eager handler", found["handler"])
    if runs > 1:
        _warm(name, eager, folder / f"{name}-eager")
        with _serving(name, eager, folder / f"{name}-eager") as (server, ready):
            first, steady = _play(server, name, 1, FIRST, "eager first"), _play(server, name, 1, FIRST, "eager", seed=1)
            many = _play(server, name, 32, 2000, "eager, 32 clients", seed=2)
            found["eager"] = {"ready": ready, "first": _numbers(first), "steady": _numbers(steady)}
            found["eager"]["many"] = _numbers(many)
            _tell(f"{name} eager engine", found["eager"])
    return found


def _settle(server: ServerProcess) -> None:
    """Waits until all processes behind the port are ready: each new connection goes to any of them."""
    good, deadline = 0, time.monotonic() + 120
    while good < 40:
        if time.monotonic() > deadline:
            raise RuntimeError("not all server processes became ready")
        try:
            with urllib.request.urlopen(f"{server.url}/v2/health/ready", timeout=10):
                good += 1
        except OSError:
            good = 0
            time.sleep(0.05)


def _warm(name: str, store: Path, bundle: Path, devices: str = "") -> dict[str, Any]:
    command = [
        sys.executable,
        "-m",
        "serving",
        "warm",
        name,
        "--model-store",
        str(store),
        "--out",
        str(bundle),
        "--json",
    ]
    command += ["--devices", devices] if devices else []
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    seconds = time.perf_counter() - started
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    shapes = json.loads(done.stdout)["models"][name]["shapes"]
    return {
        "seconds": seconds,
        "proven": sum(shape["proven"] for shape in shapes),
        "notes": [f"{shape['shape']}: {shape['reason']}" for shape in shapes if shape["reason"]],
        "steady": {shape["shape"]: shape["steady_seconds"] for shape in shapes},
    }


@contextmanager
def _serving(name: str, store: Path, bundle: Path, *more: str) -> Iterator[tuple[ServerProcess, float]]:
    arguments = [name, "--model-store", str(store), "--bundle", str(bundle), "--trust", "--admin-port", "-1"]
    with ServerProcess([*arguments, "--log-level", "warning", *more]) as server:
        yield server, server.wait_ready(300)


def _play(server: ServerProcess, name: str, clients: int, requests: int, label: str, seed: int = 0) -> BenchResult:
    return run(server.url, name, requests=requests, concurrency=clients, first=requests, seed=seed, label=label)


def _numbers(result: BenchResult) -> dict[str, Any]:
    assert result.first_part is not None
    return {
        "times": result.first_part.to_json(),
        "per_second": result.per_second,
        "errors": result.errors,
        "hit_rate": result.hit_rate,
        "client_cpu": result.client_cpu,
        "seconds": [round(sample.seconds, 6) for sample in result.samples],
    }


def _worst(first: BenchResult, steady: BenchResult) -> float:
    """The slowest of the first requests, as a multiple of its own shape's steady median."""
    medians = {}
    for ask in range(len(steady.asks)):
        times = [sample.seconds for sample in steady.samples if sample.ask == ask]
        medians[ask] = statistics.median(times) if times else float("inf")
    return max(sample.seconds / medians[sample.ask] for sample in first.samples)


def _metric(server: ServerProcess, name: str) -> float:
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + "{"))


def _stages(server: ServerProcess) -> dict[str, float]:
    """Milliseconds per request and stage, over all requests so far."""
    stages = ("decode", "queue", "copy", "execute", "encode")
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=10) as answer:
        text = answer.read().decode().splitlines()

    def value(kind: str, stage: str) -> float:
        found = [line for line in text if line.startswith(f"preheat_stage_seconds_{kind}") and f'"{stage}"' in line]
        return float(found[0].rpartition(" ")[2])

    return {stage: 1e3 * value("sum", stage) / value("count", stage) for stage in stages}


class _Busy:
    """How busy the GPU is: the share of time in which a kernel runs, as NVIDIA's library samples it."""

    percent = 0.0

    def __enter__(self) -> _Busy:
        import pynvml  # pyright: ignore[reportMissingImports]

        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        self._stop = threading.Event()
        self._seen: list[int] = []

        def look() -> None:
            while not self._stop.wait(0.1):
                self._seen.append(pynvml.nvmlDeviceGetUtilizationRates(device).gpu)

        self._thread = threading.Thread(target=look)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        middle = self._seen[2:-1] or self._seen
        self.percent = statistics.mean(middle) if middle else 0.0


def _median(found: dict[str, Any], part: str, number: str) -> float:
    return statistics.median(one[part]["times"][number] for one in found["runs"])


def _checks(name: str, found: dict[str, Any]) -> list[Check]:
    runs = found["runs"]
    steady50, steady99 = _median(found, "steady", "p50"), _median(found, "steady", "p99")
    first50, first99, first_max = (_median(found, "first", key) for key in ("p50", "p99", "max"))
    hit = min(one["first"]["hit_rate"] for one in runs)
    memory = max(one["graph_bytes"] for one in runs)
    own = statistics.median(one["slowest_against_own_shape"] for one in runs)
    proof = found["proof"]
    checks = [
        Check(f"{name}: hit rate of the first {FIRST:,} requests 1.0", f"{hit:.3f}", hit == 1.0),
        Check(
            f"{name}: their P99 at most 1.1 times the steady P99",
            f"{_ms(first99)} / {_ms(steady99)} = {first99 / steady99:.2f}",
            first99 <= 1.1 * steady99,
        ),
        Check(
            f"{name}: none of them over 3 times their P50",
            f"{_ms(first_max)} / {_ms(first50)} = {first_max / first50:.1f}; against its own shape's median {own:.1f}",
            first_max <= 3 * first50,
        ),
        Check(f"{name}: steady P50 at most 2.0 ms through REST", _ms(steady50), steady50 <= 2e-3),
        Check(f"{name}: steady P99 at most 4.0 ms through REST", _ms(steady99), steady99 <= 4e-3),
        Check(f"{name}: GPU busy over 85 % with batch 8", f"{runs[0]['gpu_busy']:.0f} %", runs[0]["gpu_busy"] > 85),
        Check(f"{name}: graphs within 2.5 GB", f"{memory / 1e9:.2f} GB", memory <= 2.5e9),
        Check(
            f"{name}: every shape proven, outputs equal to eager within 1e-3",
            f"{proof['proven']} of {len(SHAPES)}, {len(proof['notes'])} without a graph",
            proof["proven"] == len(SHAPES) and not proof["notes"],
        ),
    ]
    if name == "resnet50":
        replay = statistics.median(one["replay"] for one in runs)
        ready = statistics.median(one["ready"] for one in runs)
        checks.append(
            Check(f"{name}: 32 shapes ready under 15 s", f"{ready:.1f} s, of which {replay:.1f} s replay", ready < 15)
        )
    if "eager" in found:
        graph, eager = (
            statistics.median(one["many"]["per_second"] for one in runs),
            found["eager"]["many"]["per_second"],
        )
        checks.append(
            Check(
                f"{name}: with 32 clients at least 4 times the eager engine",
                f"{graph:,.0f}/s against {eager:,.0f}/s = {graph / eager:.1f}",
                graph >= 4 * eager,
            )
        )
    return checks


def _rows(name: str, found: dict[str, Any]) -> list[list[str]]:
    def row(label: str, times: dict[str, float], per_second: float) -> list[str]:
        return [f"{name}, {label}", *(_ms(times[key]) for key in ("p50", "p95", "p99", "max")), f"{per_second:,.0f}"]

    last = found["runs"][-1]
    rows = [
        row(f"graphs, {part}", last[part]["times"], last[part]["per_second"]) for part in ("first", "steady", "many")
    ]
    if "eager" in found:
        rows += [
            row(f"eager engine, {part}", found["eager"][part]["times"], found["eager"][part]["per_second"])
            for part in ("first", "steady", "many")
        ]
    handler = found["handler"]
    return [
        *rows,
        *(row(f"eager handler, {part}", handler[part], 1 / handler[part]["mean"]) for part in ("first", "steady")),
    ]


def _write(name: str, data: dict[str, Any], rows: list[list[str]], checks: Sequence[Check], out: Path) -> None:
    device = data["gpu"]
    records.write(
        name,
        "Captured graphs on a GPU",
        f"{device['name']} ({device['memory']}, driver {device['driver']}). Fp16 through REST with binary tensors, "
        "client on the same host; the eager handler runs in process, without HTTP. `first` are the first 1,500 "
        "requests after ready (of the handler: of a new process), `steady` the next, one client; `many`: 32 clients.",
        {"Times": records.table(["", "P50", "P95", "P99", "max", "requests/s"], rows)},
        checks,
        data,
        out,
    )


def _several(folder: Path, store: Path, devices: int, out: Path) -> None:
    """Requests a second of one server process against one per GPU, by two clients' processes for each GPU."""
    data: dict[str, Any] = {"gpu": gpu(), "devices": devices}
    started = _warm("resnet50", store, folder / "bundle", "all")
    data["warm_seconds"] = started["seconds"]
    for label, count in (("one", 1), ("all", devices)):
        listed = ",".join(map(str, range(count)))
        with _serving("resnet50", store, folder / "bundle", "--devices", listed) as (server, ready):
            _settle(server)
            _flood(server.url, "resnet50", 4 * devices, 300)
            rates = [_flood(server.url, "resnet50", 4 * devices, 800) for _ in range(3)]
            data[label] = {"ready": ready, "per_second": rates}
            console.print(label, data[label])
    one, every = (statistics.median(data[label]["per_second"]) for label in ("one", "all"))
    check = Check(
        f"{devices} GPUs at least {0.95 * devices:.1f} times one",
        f"{every:,.0f}/s against {one:,.0f}/s = {every / one:.2f}",
        every >= 0.95 * devices * one,
    )
    rows = [["one GPU", f"{one:,.0f}"], [f"{devices} GPUs", f"{every:,.0f}"]]
    records.write(
        "gpu-several",
        f"{devices} GPUs against one",
        f"{devices} of {data['gpu']['name']}, driver {data['gpu']['driver']}: ResNet-50 fp16, 32 shapes, one server "
        f"process per GPU behind one port; {4 * devices} client processes with 8 connections each; medians of 3.",
        {"Throughput": records.table(["", "requests/s"], rows)},
        [check],
        data,
        out,
    )
    console.print(f"{'reached' if check.holds else 'MISSED '} {check.wanted}: {check.found}")


def _flood(url: str, name: str, processes: int, requests: int, *more: str) -> float:
    """Requests a second that several client processes get answered together."""
    command = [sys.executable, "-m", "serving", "bench", url, "--model", name, "--requests", str(requests), *more]
    with tempfile.TemporaryDirectory() as folder:
        results = [Path(folder) / f"{seed}.json" for seed in range(processes)]
        started = [
            subprocess.Popen(
                [*command, "--concurrency", "8", "--seed", str(seed), "--out", str(result)], stdout=subprocess.DEVNULL
            )
            for seed, result in enumerate(results)
        ]
        statuses = [process.wait() for process in started]
        if any(statuses):
            raise RuntimeError(f"{' '.join(command)}: not all requests were answered")
        return sum(read_result(result).per_second for result in results)


def _tell(label: str, measured: dict[str, Any]) -> None:
    shown = {
        k: {n: v for n, v in m.items() if n != "seconds"} if isinstance(m, dict) else m for k, m in measured.items()
    }
    console.print(f"{label}: {json.dumps(shown)}", highlight=False, soft_wrap=True)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"


if __name__ == "__main__":
    app()
