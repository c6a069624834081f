"""What a request waits for after many clients have hung up at once.

    python -m benchmarks.disconnect

32 clients each send a request to a ResNet-18-like model, batches of up to 8. Once one of them is running and the others
wait, all hang up; then one more client sends a request. It should wait for the batch in flight, not for work that
nobody wants any more. Server on core 0, clients on core 1.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from socket import SO_LINGER, SOL_SOCKET, create_connection, socket
from struct import pack
from typing import Annotated

import typer
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from benchmarks import records
from benchmarks.preheat import STORE, preheat, warm
from benchmarks.records import Check
from handlers.shapes import Shape
from serving.bench.client import Target
from serving.bench.traffic import tensor_asks

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
console = Console(stderr=True)

MODEL, SHAPE, LARGEST = "resnet18", "images=1x3x224x224:fp32", "images=8x3x224x224:fp32"


class Stuck(Exception):
    """A server whose queue does not do what the benchmark waits for."""


@dataclass(frozen=True)
class Round:
    """Seconds: a request on an idle server, the next request after all have hung up, and a batch of the largest size as
    the proof measured it. ``waiting`` were in the queue when the clients hung up."""

    alone: float
    next: float
    batch: float
    waiting: int


@app.command()
def main(
    rounds: Annotated[int, typer.Option(min=1)] = 10,
    clients: Annotated[int, typer.Option(min=2)] = 32,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = records.RESULTS,
) -> None:
    """Measure; exit status 1 where the goal is missed."""
    os.sched_setaffinity(0, {1})
    with tempfile.TemporaryDirectory(prefix="preheat-benchmark-") as folder:
        bundle = Path(folder) / "bundle"
        warm([MODEL], STORE, bundle, core=0)
        with preheat([MODEL], STORE, bundle, core=0) as server:
            rows = [one_round(server.url, clients) for _ in range(rounds)]
    alone, following = (statistics.median(column) for column in ([r.alone for r in rows], [r.next for r in rows]))
    batch = statistics.median(row.batch for row in rows)
    bound = batch + alone
    check = Check(
        f"the next request waits no longer than for a batch of 8 ({batch * 1e3:.0f} ms) and itself",
        f"{following * 1e3:.0f} ms, median of {rounds}",
        following <= bound,
    )
    text = records.table(
        ["", "ms"],
        [
            ["a request on an idle server", f"{alone * 1e3:.0f}"],
            ["a batch of 8, by its proof", f"{batch * 1e3:.0f}"],
            [f"the next request after {clients} have hung up, median", f"{following * 1e3:.0f}"],
            ["the same, slowest", f"{max(row.next for row in rows) * 1e3:.0f}"],
            ["all that they had asked for, one by one", f"{clients * alone * 1e3:.0f}"],
        ],
    )
    how = (
        f"{clients} clients ask a ResNet-18-like model for {SHAPE}; when one runs and the others wait, all reset their "
        f"connections, and another client sends a request. Medians of {rounds} rounds."
    )
    data = [asdict(row) for row in rows]
    records.write("disconnect", "After clients hang up", how, {"Waiting": text}, [check], data, out)
    records.conclude([check], console)


def one_round(url: str, clients: int) -> Round:
    """One request alone, then all at once, then the next one."""
    target = Target.parse(url)
    (ask,) = tensor_asks(MODEL, [(Shape.parse(SHAPE), 1.0)])
    request = b"".join(target.encode(ask))
    alone = timed(target, request)
    with ExitStack() as crowd:
        sockets = [crowd.enter_context(create_connection((target.host, target.port))) for _ in range(clients)]
        for connection in sockets:
            connection.sendall(request)
        waiting = until_waiting(url, clients // 2)
        for connection in sockets:
            connection.setsockopt(SOL_SOCKET, SO_LINGER, pack("ii", 1, 0))  # close() resets, as a dead client does
    following = timed(target, request)
    console.print(f"alone {alone * 1e3:.0f} ms, next {following * 1e3:.0f} ms, {waiting} were waiting", highlight=False)
    return Round(alone, following, batch_seconds(url), waiting)


def timed(target: Target, request: bytes) -> float:
    """Seconds from connecting until the answer's first bytes; they must say 200."""
    start = time.perf_counter()
    with create_connection((target.host, target.port)) as connection:
        connection.sendall(request)
        answer = _first_bytes(connection)
    if not answer.startswith(b"HTTP/1.1 200"):
        raise Stuck(f"answered with {answer[:80]!r}")
    return time.perf_counter() - start


def until_waiting(url: str, wanted: int, patience: float = 60.0) -> int:
    """How many requests wait in the queue, once that are at least ``wanted``; the metrics are the only way to know."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
            for family in text_string_to_metric_families(answer.read().decode()):
                if family.name == "preheat_queue_depth":
                    depth = int(sum(sample.value for sample in family.samples))
                    if depth >= wanted:
                        return depth
    raise Stuck(f"fewer than {wanted} requests ever waited")


def batch_seconds(url: str) -> float:
    """What the largest batch takes, as the proof measured it."""
    with urllib.request.urlopen(f"{url}/v2/models/{MODEL}/shapes", timeout=30) as answer:
        shapes = json.load(answer)["shapes"]
    return float(next(entry["steady_seconds"] for entry in shapes if entry["shape"] == LARGEST))


def _first_bytes(connection: socket) -> bytes:
    connection.settimeout(60)
    return connection.recv(4096)


if __name__ == "__main__":
    app()
