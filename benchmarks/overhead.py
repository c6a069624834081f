"""What a server itself costs: the null model, side by side with other servers, in one run.

    python -m benchmarks.overhead
    python -m benchmarks.overhead --rounds 1 --seconds 1 --only Preheat --only FastAPI

Each server has core 0, wrk has core 1. In every round each server is started anew, measured on every kind of request
at every number of connections, and stopped, so that what else the machine does meets all of them. A cell is the median
of the rounds. Before it is measured, a server must answer every kind of request well, and refuse a tensor that is
shorter than it says (the bare application apart, which decodes nothing).
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks import records
from benchmarks.peers.environment import versions
from benchmarks.peers.null_servers import JSON, SMALL, WORKLOADS, NullServer, Request, null_servers
from benchmarks.records import Check
from benchmarks.servers import ONE_THREAD, good, serving
from benchmarks.wrk import Load, post, require_wrk
from serving.torchserve.process import free_ports

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
console = Console(stderr=True)
_PORTS = 5  # of TorchServe


class WrongAnswer(Exception):
    """A server that does not do what is measured."""


@dataclass(frozen=True)
class Cell:
    """One server under one kind of request from so many connections: a round's load, and the server's processor time
    in milliseconds for each request."""

    server: str
    workload: str
    connections: int
    round: int
    load: Load
    core_ms: float


@app.command()
def main(
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    seconds: Annotated[int, typer.Option(min=1, help="Of each measurement; JSON tensors get three times as long.")] = 2,
    connections: Annotated[list[int], typer.Option(help="How many at once.")] = [1, 8, 32],  # noqa: B006  typer's way
    only: Annotated[list[str] | None, typer.Option(help="Measure only this server (may be given again).")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = records.RESULTS,
) -> None:
    """Measure Preheat and its peers on the null model; exit status 1 where a goal is missed."""
    require_wrk()
    if len(os.sched_getaffinity(0)) < 2:
        sys.exit("two cores are needed: one for the server, one for the load")
    servers = [server for server in null_servers() if only is None or server.name in only]
    cells: list[Cell] = []
    for number in range(1, rounds + 1):
        for server in servers:
            cells += measure(server, number, seconds, connections)
    checks = goals(cells, connections)
    record(servers, cells, connections, checks, rounds, seconds, out)
    records.conclude(checks, console)


def measure(server: NullServer, number: int, seconds: int, connections: Sequence[int]) -> list[Cell]:
    """One round of one server, in a process of its own."""
    cells = []
    with tempfile.TemporaryDirectory(prefix="preheat-benchmark-") as text:
        folder, port = Path(text), free_ports(_PORTS)
        url = f"http://127.0.0.1:{port}"
        command = server.command(port, folder)
        path = f"{Path(command[0]).parent}{os.pathsep}{os.environ['PATH']}"
        small = server.requests[SMALL]
        with serving(
            command,
            lambda: good(url + small.path, small.body, small.headers),
            core=0,
            env={**ONE_THREAD, "PATH": path},
            folder=folder,
        ) as running:
            for workload, request in server.requests.items():
                check_answers(server, url, workload, request)
                body = folder / "body"
                body.write_bytes(request.body)
                post(url + request.path, body, request.headers, 1, 1, core=1)  # to warm up
                duration = 3 * seconds if workload == JSON else seconds  # some answer only a few of those in a second
                for count in connections:
                    before = running.cpu_seconds()
                    load = post(url + request.path, body, request.headers, count, duration, core=1)
                    core_ms = (running.cpu_seconds() - before) / max(load.requests, 1) * 1e3
                    cells.append(Cell(server.name, workload, count, number, load, core_ms))
                    console.print(
                        f"round {number} {server.name:20} {workload:24} {count:3} at once: {load.per_second:9,.0f}/s, "
                        f"P99 {load.p99 * 1e3:7.2f} ms, {core_ms:.3f} core-ms each, {load.errors} errors",
                        highlight=False,
                    )
    return cells


def check_answers(server: NullServer, url: str, workload: str, request: Request) -> None:
    """Raises WrongAnswer where the server does not answer, or answers a body that it cannot have decoded."""
    if not good(url + request.path, request.body, request.headers):
        raise WrongAnswer(f"{server.name} does not answer {workload}")
    if server.decodes and good(url + request.path, request.broken, request.headers):
        raise WrongAnswer(f"{server.name} accepts {workload} that is too short: it did not decode it")


def median(cells: Iterable[Cell], server: str, workload: str, connections: int) -> Cell | None:
    """The round with the median throughput, or None where there was none (the lower one of two)."""
    found = [c for c in cells if (c.server, c.workload, c.connections) == (server, workload, connections)]
    if not found:
        return None
    middle = statistics.median_low(cell.load.per_second for cell in found)
    return next(cell for cell in found if cell.load.per_second == middle)


def goals(cells: Sequence[Cell], connections: Sequence[int]) -> list[Check]:
    """What Preheat must reach against whichever peers were measured."""
    checks = []
    for workload in WORKLOADS:
        for count in connections:
            ours = median(cells, "Preheat", workload, count)
            if ours is None:
                continue
            factors = {"FastAPI": 1.0, "MLServer": 2.0 if workload == JSON else 1.0, "LitServe": 1.0, "TorchServe": 1.0}
            if workload == SMALL:
                factors["uvicorn, bare ASGI"] = 0.4
            for peer, factor in factors.items():
                theirs = median(cells, peer, workload, count)
                if theirs is not None:
                    ours_alone = math.inf if ours.load.requests else 0.0  # where a peer answered nothing in time
                    ratio = ours.load.per_second / theirs.load.per_second if theirs.load.requests else ours_alone
                    wanted = f"{workload}, {count} at once: above {factor:g} times {peer}"
                    checks.append(Check(wanted, f"{ratio:.2f} times", ratio >= factor))
    errors = sum(cell.load.errors for cell in cells if cell.server == "Preheat")
    checks.append(Check("no request to Preheat fails", f"{errors} failed", errors == 0))
    return checks


def record(
    servers: Sequence[NullServer],
    cells: Sequence[Cell],
    connections: Sequence[int],
    checks: Sequence[Check],
    rounds: int,
    seconds: int,
    out: Path,
) -> None:
    sections = {}
    for workload in WORKLOADS:
        rows = []
        for server in servers:
            found = [median(cells, server.name, workload, count) for count in connections]
            if any(found):
                speeds = [f"{cell.load.per_second:,.0f}" if cell else "-" for cell in found]
                tails = [f"{cell.load.p99 * 1e3:.1f}" if cell else "-" for cell in found]
                costs = [f"{cell.core_ms:.3f}" if cell else "-" for cell in found]
                rows.append([server.name, *speeds, *tails, *costs])
        head = [f"{what} at {count}" for what in ("req/s", "P99 ms", "core-ms each") for count in connections]
        sections[workload] = records.table(["server", *head], rows)
    installed = {server.name: dict(versions(server.packages)) for server in servers if server.packages}
    rows = [[name, ", ".join(f"{p} {v}" for p, v in found.items())] for name, found in installed.items()]
    sections["Peers"] = records.table(["server", "versions"], rows)
    requests, errors = sum(c.load.requests for c in cells), sum(c.load.errors for c in cells)
    how = (
        f"A model that returns a constant. Each server pinned to core 0, wrk (closed loop) to core 1, over loopback; "
        f"medians of {rounds} interleaved rounds of {seconds} s ({3 * seconds} s for JSON tensors); {errors:,} errors "
        f"in {requests:,} requests. Every server decodes the tensor into a NumPy array except the bare ASGI "
        f"application, which only reads the body. FastAPI takes the bytes as the body, MLServer by a custom route, "
        f"LitServe as an uploaded file, Preheat by the Open Inference Protocol's binary tensor extension, with "
        f"validation, lane and metrics. The null model is so short, and says that any thread may run it, that Preheat "
        f"runs it on the thread that read the request as long as few come at a time, as it does with CPU models under "
        f"0.1 ms; the second row is the same model without that word, which goes to the lane's thread and back as all "
        f"others do."
    )
    data = {"peers": installed, "cells": [asdict(cell) for cell in cells]}
    records.write("overhead", "Server overhead on a null model", how, sections, checks, data, out)


if __name__ == "__main__":
    app()
