"""How a server with a process for each accelerator scales over a whole node, and how a sweep does.

python -m benchmarks.scale                # 1, 2, 4 ... of the accelerators that are there
python -m benchmarks.scale --processes 8  # the front alone, on any machine: processes of the CPU behind one port
"""

from __future__ import annotations

import itertools
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from rich.console import Console

from benchmarks import loopback, records
from benchmarks.gpu.clients import Load, flood
from benchmarks.gpu.device import Busy, facts, memory_used
from benchmarks.gpu.server import Figures, serving, settle, warm
from benchmarks.gpu.subject import DRY, SUBJECTS, Subject
from benchmarks.preheat import STORE
from benchmarks.records import Check
from benchmarks.scaling import HEAD, Look, Point, checks, counts, mean_bytes, plot, rows, steady
from benchmarks.servers import Running
from handlers.shapes import Shape
from serving.bench import run
from serving.bench.traffic import tensor_asks
from serving.process import ServerProcess
from warmup.accelerators import accelerators

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
console = Console(stderr=True)

_CLIENTS, _CONNECTIONS = 4, 8  # client processes for each accelerator, and the connections of each
_AFTER = 200  # requests after a process was replaced
_PATIENCE = 120.0
_EVERY = 0.2  # seconds between looks


@app.command()
def main(
    processes: Annotated[int, typer.Option(help="Measure the front alone, with up to so many processes.")] = 0,
    requests: Annotated[int, typer.Option(min=1, help="Requests of each client process.")] = 800,
    dry: Annotated[bool, typer.Option("--dry", help="A small model on any machine: whether all of this runs.")] = False,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = records.RESULTS,
) -> None:
    """Measure; exit status 1 where a goal is missed, 2 where there is no accelerator to measure.

    The accelerators are those that HIP_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES names, else all; with --dry they need
    not be there.
    """
    with tempfile.TemporaryDirectory(prefix="preheat-benchmark-") as folder:
        if processes:
            found = _front(Path(folder), processes, requests, out)
        elif not (there := accelerators()):
            console.print("no accelerator is there; --processes N measures the front on the CPU")
            raise typer.Exit(2)
        else:
            found = _node(DRY if dry else SUBJECTS["resnet50"], Path(folder), there, requests, out)
    records.conclude(found, console)


def _node(subject: Subject, folder: Path, there: Sequence[str], requests: int, out: Path) -> list[Check]:
    """A process for each accelerator, each with its share of a sweep, and all behind one port."""
    gpu, found = facts(), []
    store = subject.store(folder / "store", subject.captured)
    asks = tensor_asks(subject.name, [(Shape.parse(text), 1.0) for text in subject.shapes])
    body = mean_bytes([ask.size for ask in asks], subject.weights)
    carries = loopback.measure(len(there))
    points: list[Point] = []
    for count in counts(len(there)):
        listed = ",".join(there[:count])
        sweep = warm(subject.name, store, folder / f"bundle-{count}", listed)["seconds"]
        load = Load(_CLIENTS * count, _CONNECTIONS, requests)
        with serving(subject.name, store, folder / f"bundle-{count}", "--devices", listed) as (server, _):
            settle(server)
            flood(server.url, subject.name, Load(load.processes, load.each, max(1, requests // 3)))
            points.append(_measure(server, subject.name, count, load, body, Busy(count), sweep))
        _tell(points[-1])
        found = checks(points, carries)
        how = (
            f"{gpu['count']} of {gpu['name']} ({gpu['memory']}, driver {gpu['driver']}) in one host: {subject.name} "
            f"{subject.precision}, {len(subject.shapes)} shapes, binary tensors, one server process per accelerator "
            f"behind one port; for each {_CLIENTS} client processes with {_CONNECTIONS} connections on the same host. "
            f"The loopback alone carries {carries / 1e9:.1f} GB/s. `sweep` is `preheat warm --devices`."
        )
        _write("scale", "A server process for each accelerator of a node", how, points, found, {"gpu": gpu}, out)
    return found


def _front(folder: Path, most: int, requests: int, out: Path) -> list[Check]:
    """Processes that share a port, each pinned to a core, with a model that costs nothing; one of them is killed."""
    name = "null"
    warm(name, STORE, folder / "bundle")
    points: list[Point] = []
    survivals: list[dict[str, Any]] = []
    for count in counts(most):
        more = ["--processes", str(count)] if count > 1 else []
        with serving(name, STORE, folder / "bundle", *more) as (server, _):
            settle(server)
            workers = _workers(server)
            for worker, core in zip(workers, itertools.cycle(range(psutil.cpu_count() or 1)), strict=False):
                worker.cpu_affinity([core])
            started = [_seconds(worker) for worker in workers]
            points.append(_measure(server, name, count, Load(2, _CONNECTIONS, requests), 0.0, nullcontext(), None))
            used = [_seconds(worker) - before for worker, before in zip(workers, started, strict=True)]
            survived = _survive(server, name, count, sent=2 * requests) if count > 1 else {}
        survivals.append({"idle_workers": sum(not seconds for seconds in used), **survived})
        _tell(points[-1])
        console.print(survivals[-1])
    found = [check for count, one in zip(counts(most), survivals, strict=True) for check in _alive(count, one)]
    how = (
        f"Up to {most} processes on {psutil.cpu_count()} cores, each pinned to one, that share a port; a model that "
        f"returns a constant; 2 client processes with {_CONNECTIONS} connections each on the same cores. It shows that "
        "the front holds, not how it scales: there are no accelerators, and too few cores."
    )
    _write("scale-front", "The front with several processes", how, points, found, {"survivals": survivals}, out)
    return found


def _measure(
    server: ServerProcess, name: str, count: int, load: Load, body: float, busy: Any, sweep: float | None
) -> Point:
    """One flood, and what everything used meanwhile."""
    running, cores = Running(psutil.Process(server.pid), 0.0), psutil.cpu_count() or 1
    with Looks(running) as looks, busy:
        found = flood(server.url, name, load, seed=100)
    host, used = steady(looks.seen)
    return Point(
        count=count,
        per_second=found["per_second"],
        p50=found["times"]["p50"],
        p99=found["times"]["p99"],
        busy=tuple(share / 100 for share in getattr(busy, "each", ())),
        host=host / cores,
        server_cores=used,
        client_cores=found["client_cpu"],
        client=found["client_cpu"] / load.processes,
        resident=running.resident_bytes(),
        accelerator_memory=memory_used(count) if hasattr(busy, "each") else 0,
        wire=found["per_second"] * body,
        sweep=sweep,
    )


class Looks:
    """Looks at the processor time of host and server while a block runs."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self.seen: list[Look] = []

    def __enter__(self) -> Looks:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def _look(self) -> None:
        while not self._stop.wait(_EVERY):
            times = psutil.cpu_times()
            host = times.user + times.nice + times.system + getattr(times, "irq", 0.0) + getattr(times, "softirq", 0.0)
            self.seen.append(Look(time.perf_counter(), host, self._running.cpu_seconds()))

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def _survive(server: ServerProcess, name: str, count: int, sent: int) -> dict[str, Any]:
    """Kills a process: how long until as many are ready again, and whether the metrics still count every request."""
    _until(lambda: _counted(server) == sent)
    victim = _workers(server)[0]
    started = time.perf_counter()
    victim.kill()
    _until(lambda: len({worker.pid for worker in _workers(server)} - {victim.pid}) == count)
    settle(server)
    seconds = time.perf_counter() - started
    result = run(server.url, name, requests=_AFTER, concurrency=_CONNECTIONS, first=_AFTER)
    _until(lambda: _counted(server) == sent + _AFTER)
    return {"replaced_seconds": seconds, "sent": sent + _AFTER, "counted": _counted(server), "errors": result.errors}


def _alive(count: int, found: dict[str, Any]) -> list[Check]:
    """The front's own checks of one count."""
    listed = [
        Check(
            f"{count}: every process behind the port works", f"{found['idle_workers']} idle", not found["idle_workers"]
        )
    ]
    if "sent" in found:
        told = f"in {found['replaced_seconds']:.1f} s, then errors {found['errors'] or 'none'}"
        whole = f"{found['counted']:.0f} of {found['sent']}"
        listed.append(Check(f"{count}: a process that was killed is replaced", told, not found["errors"]))
        listed.append(Check(f"{count}: one view of the metrics", whole, found["counted"] == found["sent"]))
    return listed


def _workers(server: ServerProcess) -> list[psutil.Process]:
    """The processes behind the port; one process is its own."""
    process = psutil.Process(server.pid)
    return process.children() or [process]


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _counted(server: ServerProcess) -> float:
    return Figures(server).sum("preheat_requests_total", 'code="200"')


def _until(holds: Callable[[], bool]) -> None:
    """Waits: neither a process nor a metric of another process is an event here."""
    deadline = time.monotonic() + _PATIENCE
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError("the server did not come to where it should be")
        time.sleep(0.05)


def _write(
    name: str, title: str, how: str, points: list[Point], found: list[Check], data: dict[str, Any], out: Path
) -> None:
    """What is there so far: a later count that fails does not lose it."""
    out.mkdir(parents=True, exist_ok=True)
    plot(points, out / f"{name}.png")
    sections = {"Scaling": records.table(HEAD, rows(points)), "Plot": f"![Requests and times]({name}.png)"}
    data = data | {"points": [point.to_json() for point in points]}
    records.write(name, title, how, sections, found, data, out, module="scale")


def _tell(point: Point) -> None:
    console.print(f"{point.count}: {point.per_second:,.0f}/s, P99 {point.p99 * 1e3:.2f} ms", highlight=False)


if __name__ == "__main__":
    app()
