"""What is measured of one model, and in which order."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu.clients import Clients, numbers, one
from benchmarks.gpu.device import Busy
from benchmarks.gpu.pauses import pauses
from benchmarks.gpu.server import Figures, batches, serving, stages, warm
from benchmarks.gpu.subject import Subject
from serving.bench import BenchResult
from serving.bench.traffic import Encoding
from serving.process import ServerProcess

Tell = Callable[[str, object], None]
_FLOODS = ("many", "full")


def prove(subject: Subject, folder: Path) -> dict[str, Any]:
    """Makes the bundles of a model, with graphs and eager, in ``folder``; the proof of the first.

    Graphs are compared with eager execution while they are captured; the comparison with fp32 on the CPU is left out,
    since it takes minutes.
    """
    with ThreadPoolExecutor(2) as pool:
        graph, eager = (
            pool.submit(warm, subject.name, subject.store(folder / kind, execution), folder / f"{kind}-bundle")
            for kind, execution in (("graph", subject.captured), ("eager", "eager"))
        )
        eager.result()
        return graph.result()


def measure(subject: Subject, folder: Path, runs: int, clients: Clients, found: dict[str, Any], tell: Tell) -> None:
    """Everything about one model that was proven in ``folder``, step by step into ``found``; ``tell`` is called after
    each step. ``runs`` servers with graphs are started."""
    found |= {"shapes": len(subject.shapes), "first_count": subject.first, "runs": []}
    starts = [partial(_serve, subject, folder, kind) for kind in (*["graph"] * runs, "eager")]
    with ExitStack() as stack:
        if subject.together:
            with ThreadPoolExecutor(len(starts)) as pool:
                ready = list(pool.map(lambda start: stack.enter_context(start()), starts))
            starts = [partial(nullcontext, one) for one in ready]
        for number, start in enumerate(starts[:-1]):
            with start() as (server, seconds):
                found["runs"].append(_graphs(subject, server, seconds, clients))
            tell(f"{subject.name}, run {number}", found["runs"][-1])
        if not subject.together:
            found["shared_first"] = [_shared_first(subject, folder) for _ in range(runs)]
            tell(f"{subject.name}, first in shared memory", found["shared_first"])
        with starts[-1]() as (server, seconds):
            found["eager"] = _eager(subject, server, seconds, clients)
    tell(f"{subject.name}, eager engine", found["eager"])
    found["handler"] = _handler(subject, folder / "eager")
    tell(f"{subject.name}, eager handler", found["handler"])


def _eager(subject: Subject, server: ServerProcess, ready: float, clients: Clients) -> dict[str, Any]:
    first, steady = (one(server.url, subject.name, subject.first, seed) for seed in (0, 1))
    count = max(10, subject.many // 4)
    many = [clients.flood(server.url, subject.name, count, seed=10 + number) for number in range(3)]
    return {"ready": ready, "first": numbers(first), "steady": numbers(steady), "many": many}


def _serve(subject: Subject, folder: Path, kind: str) -> AbstractContextManager[tuple[ServerProcess, float]]:
    return serving(subject.name, folder / kind, folder / f"{kind}-bundle", "--allow-client-shm")


def _graphs(subject: Subject, server: ServerProcess, ready: float, clients: Clients) -> dict[str, Any]:
    """One server with graphs, from when it was ready: the first requests, the next, 32 clients, 32 with the largest
    batch only; the same without the first in shared memory."""
    name, looks = subject.name, [Figures(server)]
    first = one(server.url, name, subject.first, seed=0)
    looks.append(Figures(server))
    steady = one(server.url, name, subject.first, seed=1)
    looks.append(Figures(server))
    found: dict[str, Any] = {
        "ready": ready,
        "replay": looks[0].sum("preheat_warmup_seconds"),
        "graph_bytes": looks[0].sum("preheat_graph_bytes"),
        "first": numbers(first),
        "steady": numbers(steady),
        "own_shape": _worst(first, steady),
        "by_shape": _by_shape(steady),
    }
    for label in _FLOODS:
        found[label] = _flood(subject, server, clients, label)
        looks.append(Figures(server))
        found[label]["rows"] = batches(looks[-2], looks[-1])
    pairs = zip(("steady", "many", "full"), looks[1:], looks[2:], strict=False)
    found["shared"] = _shared(subject, server, clients)
    found["pauses"] = pauses()
    found["stages"] = {label: stages(before, after) for label, before, after in pairs}
    return found


def _shared(subject: Subject, server: ServerProcess, clients: Clients) -> dict[str, Any]:
    """The same requests with their tensors in shared memory."""
    where: Encoding = "shared-memory"
    steady = one(server.url, subject.name, subject.first, seed=1, encoding=where)
    return {"steady": numbers(steady)} | {label: _flood(subject, server, clients, label, where) for label in _FLOODS}


def _flood(
    subject: Subject, server: ServerProcess, clients: Clients, label: str, encoding: Encoding = "binary"
) -> dict[str, Any]:
    """32 clients, with any batch (``many``) or with the largest only (``full``), and how busy the GPU is with them."""
    count, batch = (subject.many, None) if label == "many" else (subject.full, max(subject.batches))
    with Busy() as busy:
        found = clients.flood(server.url, subject.name, count, seed=10, batch=batch, encoding=encoding)
    return found | {"busy": busy.percent, "busy_samples": busy.seen}


def _shared_first(subject: Subject, folder: Path) -> dict[str, Any]:
    """The first requests of a server, in shared memory."""
    with _serve(subject, folder, "graph") as (server, _):
        return numbers(one(server.url, subject.name, subject.first, seed=0, encoding="shared-memory"))


def _handler(subject: Subject, store: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.gpu.handler", str(store), subject.name]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def _worst(first: BenchResult, steady: BenchResult) -> float:
    """The slowest of the first requests, as a multiple of its own shape's steady median."""
    medians = _by_shape(steady)
    return max(sample.seconds / medians.get(first.asks[sample.ask], float("inf")) for sample in first.samples)


def _by_shape(result: BenchResult) -> dict[str, float]:
    """The median time of each shape."""
    times: dict[str, list[float]] = {}
    for sample in result.samples:
        times.setdefault(result.asks[sample.ask], []).append(sample.seconds)
    return {shape: statistics.median(seconds) for shape, seconds in times.items()}
