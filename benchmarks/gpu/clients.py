"""Clients: one after the other for tails, and several processes of them at once, since one of them could be slower
than the server."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from serving.bench import BenchResult, run
from serving.bench.latency import summarize
from serving.bench.traffic import Encoding

_CURVE = 200  # points of the percentile curve that is kept


def one(url: str, name: str, requests: int, seed: int, encoding: Encoding = "binary") -> BenchResult:
    """One client, one request at a time."""
    return run(url, name, requests=requests, concurrency=1, first=requests, seed=seed, encoding=encoding)


@dataclass(frozen=True)
class Load:
    """``processes`` client processes with ``each`` connections, ``requests`` in each process."""

    processes: int
    each: int
    requests: int


class Clients:
    """Client processes, started once for all loads: each has the same number of connections."""

    def __init__(self, processes: int, each: int) -> None:
        self._processes, self._each = processes, each

    def __enter__(self) -> Clients:
        self._pool = multiprocessing.get_context("spawn").Pool(self._processes)
        self._pool.map(_import, range(self._processes))
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.terminate()
        self._pool.join()

    def flood(
        self,
        url: str,
        name: str,
        requests: int,
        seed: int = 0,
        batch: int | None = None,
        encoding: Encoding = "binary",
    ) -> dict[str, Any]:
        """``requests`` from each process at once; their times together, and the sum of their requests a second."""
        asked = [(url, name, self._each, requests, seed + number, batch, encoding) for number in range(self._processes)]
        results = self._pool.starmap(_run, asked, chunksize=1)
        samples = [sample for result in results for sample in result.samples]
        bad = [sample.code for sample in samples if not sample.ok]
        if bad:
            raise RuntimeError(f"{len(bad)} of {len(samples)} requests were not answered well: {sorted(set(bad))}")
        summary = summarize([sample.seconds for sample in samples])
        assert summary is not None
        return {
            "times": summary.to_json(),
            "per_second": sum(result.per_second for result in results),
            "client_cpu": sum(result.client_cpu for result in results),
            "hit_rate": min(result.hit_rate or 0.0 for result in results),
        }


def flood(url: str, name: str, load: Load, seed: int = 0) -> dict[str, Any]:
    """A load from client processes of its own."""
    with Clients(load.processes, load.each) as clients:
        return clients.flood(url, name, load.requests, seed)


def _import(number: int) -> None:
    """Nothing: where this runs, all that this module imports is there."""


def _run(
    url: str, name: str, each: int, requests: int, seed: int, batch: int | None, encoding: Encoding
) -> BenchResult:
    return run(
        url, name, requests=requests, concurrency=each, first=requests, batch=batch, seed=seed, encoding=encoding
    )


def numbers(result: BenchResult) -> dict[str, Any]:
    """Of one client's run: times, and the curve of their percentiles."""
    assert result.first_part is not None
    return {
        "times": result.first_part.to_json(),
        "per_second": result.per_second,
        "errors": result.errors,
        "hit_rate": result.hit_rate,
        "client_cpu": result.client_cpu,
        "curve": curve([sample.seconds for sample in result.samples]),
    }


def curve(seconds: Sequence[float]) -> list[float]:
    """Evenly spaced percentiles from the smallest to the largest."""
    ordered = sorted(seconds)
    last = len(ordered) - 1
    return [round(ordered[round(index * last / _CURVE)], 6) for index in range(_CURVE + 1)]
