"""What the loopback carries when nothing else is done with the bytes: one process sends, one receives.

    python -m benchmarks.loopback

With the congestion control that this machine has for all connections, and without pacing (``serving/pacing.py``).
"""

from __future__ import annotations

import multiprocessing
import socket
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks import records
from serving.bench.latency import summarize
from serving.pacing import UNPACED

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

_CONTEXT = multiprocessing.get_context("spawn")
_BLOCK = 1 << 20
_SECONDS = 2.0
_BODY = 8 * 3 * 448 * 448 * 2  # bytes: eight images of 448 pixels in half precision
_UNTIMED = 5  # of the bodies: windows grow
_PAUSE = 0.002  # seconds between bodies, as if a model computed


@app.command()
def main(
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    bodies: Annotated[int, typer.Option(min=10, help="In a round.")] = 60,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = records.RESULTS,
) -> None:
    """One body at a time, and a byte back; rounds of the two in turns."""
    default = _default()
    controls = [default, *({UNPACED} - {default})]
    times: dict[bytes, list[float]] = {control: [] for control in controls}
    for _ in range(rounds):
        for control in controls:
            times[control] += bursts(control, bodies)
    rows = []
    for control in controls:
        name = f"{control.decode()}{', the default here' if control == default else ''}"
        summary = summarize(times[control])
        assert summary is not None
        found = [f"{1e3 * value:.2f} ms" for value in (summary.p50, summary.p99, summary.max)]
        rows.append([name, *found, f"{_BODY / summary.p50 / 1e9:.1f} GB/s"])
    records.write(
        "loopback",
        "One body over the loopback",
        f"A process sends {_BODY:,} bytes to another one, which answers with one byte; then the next. Times from the "
        f"first byte to the answer; {rounds} rounds of {bodies} bodies for each congestion control, in turns.",
        {"Times": records.table(["congestion control", "P50", "P99", "max", "rate at P50"], rows)},
        [],
        {"times": {control.decode(): times[control] for control in controls}},
        out,
    )
    records.conclude([], Console(stderr=True))


def measure(pairs: int, seconds: float = _SECONDS) -> float:
    """Bytes a second of all pairs of processes together, without pacing."""
    together = _CONTEXT.Barrier(pairs)
    started = [_start(_drain, _stream, together, seconds) for _ in range(pairs)]
    return sum(_result(*each) for each in started)


def bursts(control: bytes, count: int) -> list[float]:
    """Seconds of each of ``count`` bodies under a congestion control."""
    return _result(*_start(_answer, _burst, control, count))


def _start(receive: Callable, send: Callable, *arguments: object) -> tuple[Connection, list]:
    """A pair of processes, and where one of them puts what it has measured."""
    mine, theirs = _CONTEXT.Pipe()
    processes = [_CONTEXT.Process(target=receive, args=(theirs,))]
    processes[0].start()
    port = mine.recv()
    processes.append(_CONTEXT.Process(target=send, args=(theirs, port, *arguments)))
    processes[1].start()
    theirs.close()  # so that a process that fails is seen
    return mine, processes


def _result(pipe: Connection, processes: list) -> Any:
    found = pipe.recv()
    for process in processes:
        process.join()
    return found


def _accept(pipe: Connection) -> socket.socket:
    """The connection of the other process, which is told the port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        pipe.send(listening.getsockname()[1])
        return listening.accept()[0]


def _connect(port: int, control: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control)
    return connection


def _drain(pipe: Connection) -> None:
    """Tells the rate at which bytes came, from the first to the last."""
    buffer = bytearray(_BLOCK)
    with _accept(pipe) as connection:
        received, started = connection.recv_into(buffer), time.perf_counter()
        while size := connection.recv_into(buffer):
            received += size
        pipe.send(received / (time.perf_counter() - started))


def _stream(pipe: Connection, port: int, together: Barrier, seconds: float) -> None:
    block = bytes(_BLOCK)
    with _connect(port, UNPACED) as connection:
        together.wait()
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            connection.sendall(block)


def _answer(pipe: Connection) -> None:
    body = memoryview(bytearray(_BODY))
    with _accept(pipe) as connection:
        while True:
            received = 0
            while received < _BODY:
                size = connection.recv_into(body[received:])
                if not size:
                    return
                received += size
            connection.send(b"!")


def _burst(pipe: Connection, port: int, control: bytes, count: int) -> None:
    body = bytes(_BODY)
    times = []
    with _connect(port, control) as connection:
        for _ in range(_UNTIMED + count):
            time.sleep(_PAUSE)
            started = time.perf_counter()
            connection.sendall(body)
            connection.recv(1)
            times.append(time.perf_counter() - started)
    pipe.send(times[_UNTIMED:])


def _default() -> bytes:
    with socket.socket() as plain:
        return plain.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")


if __name__ == "__main__":
    app()
