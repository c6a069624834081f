"""What the server's own work costs the requests that come meanwhile.

    python -m benchmarks.scrapes

One client asks a model that computes nothing, on the thread of a lane, for one of 200 planned shapes. A process of low
priority takes all metrics again 0.1 s after it had them, which is some hundred times as often as Prometheus does, or
nobody does, in turns. Server on core 0, client and scraper on core 1.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks import records
from benchmarks.preheat import STORE, preheat, warm
from benchmarks.records import Check
from benchmarks.variants import variant
from serving.bench import run

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
console = Console(stderr=True)

MODEL, SHAPES, EVERY = "null-lane", 200, 0.1  # seconds between the end of a scrape and the next
_ALLOWED = 1.0  # ms that the slowest requests in a thousand may be slower for the scrapes


@app.command()
def main(
    rounds: Annotated[int, typer.Option(min=1)] = 5,
    requests: Annotated[int, typer.Option(min=2000)] = 8000,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = records.RESULTS,
) -> None:
    """Measure; exit status 1 where the goal is missed."""
    os.sched_setaffinity(0, {1})
    found: dict[str, list[dict[str, float]]] = {"without": [], "with": []}
    with tempfile.TemporaryDirectory(prefix="preheat-benchmark-") as folder:
        store, bundle = _store(Path(folder)), Path(folder) / "bundle"
        warm([MODEL], store, bundle, core=0)
        with preheat([MODEL], store, bundle, core=0) as server:
            run(server.url, MODEL, requests=requests, concurrency=1)  # series of all shapes, and all caches
            for seed in range(rounds):
                found["without"].append(_one(server.url, requests, seed))
                with scraping(server.url) as scrapes:
                    found["with"].append(_one(server.url, requests, seed))
                found["with"][-1] |= {"scrapes": len(scrapes), "scrape": statistics.median(scrapes)}
    medians = {
        label: {key: statistics.median(row[key] for row in rows) for key in rows[0]} for label, rows in found.items()
    }
    more = 1e3 * (medians["with"]["p999"] - medians["without"]["p999"])
    check = Check(f"scrapes cost the slowest in a thousand at most {_ALLOWED:g} ms", f"{more:.2f} ms", more <= _ALLOWED)
    names = {
        "without": "no scrapes",
        "with": f"{medians['with']['scrapes'] / medians['with']['seconds']:.1f} scrapes/s",
    }
    columns = ("p50", "p99", "p999", "max")
    records.write(
        "scrapes",
        "Requests beside scrapes",
        f"One client, {requests:,} requests to a model that computes nothing, with {SHAPES} planned shapes. Medians of "
        f"{rounds} rounds. A scrape takes {1e3 * medians['with']['scrape']:.0f} ms, spread over pauses.",
        {
            "Times": records.table(
                ["ms", "P50", "P99", "P99.9", "max"],
                [[names[label], *(f"{1e3 * row[key]:.2f}" for key in columns)] for label, row in medians.items()],
            )
        },
        [check],
        found,
        out,
    )
    records.conclude([check], console)


def _store(folder: Path) -> Path:
    """A model store with the null model and many shapes."""
    store = folder / "store"
    with variant(STORE / MODEL, store) as document:
        document["shapes"] = {"list": [f"x=1x1x{height}x4:fp32" for height in range(1, SHAPES + 1)]}
    return store


def _one(url: str, requests: int, seed: int) -> dict[str, float]:
    result = run(url, MODEL, requests=requests, concurrency=1, first=requests, seed=seed)
    assert result.first_part is not None
    return {**result.first_part.to_json(), "seconds": result.seconds}


@contextmanager
def scraping(url: str) -> Iterator[list[float]]:
    """Takes the metrics again and again in a process of its own; how long each took is there at the end."""
    context: Any = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_scrape, args=(url.removeprefix("http://"), theirs), daemon=True)
    process.start()
    times: list[float] = []
    try:
        ours.recv()  # it has begun
        yield times
        ours.send(None)
        times += ours.recv()
    finally:
        process.kill()
        process.join()


def _scrape(address: str, told: Any) -> None:
    os.nice(19)
    connection = HTTPConnection(address)
    times: list[float] = []
    while not told.poll(EVERY):
        started = time.perf_counter()
        connection.request("GET", "/metrics")
        connection.getresponse().read()
        times.append(time.perf_counter() - started)
        if len(times) == 1:
            told.send(None)
    told.send(times[1:])  # the first was before the requests


if __name__ == "__main__":
    app()
