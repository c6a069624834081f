"""What a run of the load generator found out, as an object, as JSON and beside other runs in a table."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rich.table import Table

from serving.bench.exposition import Lookups
from serving.bench.latency import Summary, summarize
from serving.bench.load import Sample
from serving.bench.machine import Machine

FORMAT = "preheat-bench/1"


class ResultError(ValueError):
    """A file that holds no result of the load generator."""


@dataclass(frozen=True)
class BenchResult:
    """One run. ``asks`` names the distinct requests (shapes or files) that ``samples`` refer to; ``seconds`` is the
    wall time, ``client_cpu`` the share of one core that the client itself used; ``lookups`` is what the server's
    metrics gained, None where it has none. ``first`` says how many requests count as the first ones."""

    label: str
    url: str
    model: str
    started: str
    command: str
    machine: Machine
    seed: int
    concurrency: int | None
    rate: float | None
    first: int
    seconds: float
    client_cpu: float
    asks: tuple[str, ...]
    samples: tuple[Sample, ...]
    lookups: Lookups | None

    @cached_property
    def first_part(self) -> Summary | None:
        """Times of the first requests that were answered well."""
        return summarize([sample.seconds for sample in self.samples[: self.first] if sample.ok])

    @cached_property
    def steady_part(self) -> Summary | None:
        """Times of the requests after the first ones, None where there were no more."""
        return summarize([sample.seconds for sample in self.samples[self.first :] if sample.ok])

    @cached_property
    def errors(self) -> dict[str, int]:
        """Requests that were not answered with 200, by status code, ``lost`` or ``timeout``."""
        return dict(sorted(Counter(sample.code for sample in self.samples if not sample.ok).items()))

    @property
    def per_second(self) -> float:
        """Good answers a second over the whole run."""
        return sum(sample.ok for sample in self.samples) / self.seconds

    @property
    def hit_rate(self) -> float | None:
        """The share of requests that met a warm shape, by the server's own count; None where it does not count."""
        return self.lookups.hit_rate if self.lookups else None

    @cached_property
    def late(self) -> Summary | None:
        """How late the client sent what was due (open loop only): its own share of the measured times."""
        return summarize([sample.late for sample in self.samples]) if self.rate else None

    def to_json(self) -> dict[str, object]:
        """All facts; times in seconds, samples as columns with microseconds kept."""
        return {
            "format": FORMAT,
            "label": self.label,
            "url": self.url,
            "model": self.model,
            "started": self.started,
            "command": self.command,
            "machine": self.machine.to_json(),
            "seed": self.seed,
            "concurrency": self.concurrency,
            "rate": self.rate,
            "requests": len(self.samples),
            "first": self.first,
            "seconds": self.seconds,
            "client_cpu": self.client_cpu,
            "requests_per_second": self.per_second,
            "errors": self.errors,
            "hit_rate": self.hit_rate,
            "lookups": dict(self.lookups.outcomes) if self.lookups else None,
            "new_store_entries": self.lookups.new_entries if self.lookups else None,
            "first_part": self.first_part.to_json() if self.first_part else None,
            "steady_part": self.steady_part.to_json() if self.steady_part else None,
            "late": self.late.to_json() if self.late else None,
            "asks": list(self.asks),
            "samples": {
                "ask": [sample.ask for sample in self.samples],
                "due": [round(sample.due, 6) for sample in self.samples],
                "seconds": [round(sample.seconds, 6) for sample in self.samples],
                "late": [round(sample.late, 6) for sample in self.samples],
                "code": [sample.code for sample in self.samples],
            },
        }

    @classmethod
    def from_json(cls, document: Mapping) -> BenchResult:  # type: ignore[type-arg]
        """Reads what ``to_json`` wrote; raises ResultError on anything else."""
        if not isinstance(document, Mapping) or document.get("format") != FORMAT:
            raise ResultError(f"not a result of preheat bench (format {FORMAT!r} expected)")
        try:
            columns = document["samples"]
            rows = zip(*(columns[name] for name in ("ask", "due", "seconds", "late", "code")), strict=True)
            asks = tuple(map(str, document["asks"]))
            samples = tuple(
                Sample(int(ask), float(due), float(took), float(late), str(code)) for ask, due, took, late, code in rows
            )
            if any(not 0 <= sample.ask < len(asks) for sample in samples):
                raise ResultError("a sample names a request that is not listed")
            outcomes = document["lookups"]
            return cls(
                label=str(document["label"]),
                url=str(document["url"]),
                model=str(document["model"]),
                started=str(document["started"]),
                command=str(document["command"]),
                machine=Machine.from_json(document["machine"]),
                seed=int(document["seed"]),
                concurrency=document["concurrency"],
                rate=document["rate"],
                first=int(document["first"]),
                seconds=float(document["seconds"]),
                client_cpu=float(document["client_cpu"]),
                asks=asks,
                samples=samples,
                lookups=None if outcomes is None else Lookups(dict(outcomes), int(document["new_store_entries"])),
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ResultError(f"a damaged result of preheat bench: {error!r}") from error


def read_result(path: Path) -> BenchResult:
    """The result in a file; raises ResultError naming the file."""
    try:
        return BenchResult.from_json(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ResultError(f"{path}: {error.strerror}") from error
    except ValueError as error:  # ResultError, not JSON, not UTF-8
        raise ResultError(f"{path}: {error}") from error


def compare(results: Sequence[BenchResult]) -> Table:
    """One table with a column for each run, so that cold stands beside warm."""
    table = Table(title="Times of good answers" if results else None)
    table.add_column("")
    for number, result in enumerate(results, 1):
        table.add_column(result.label or f"run {number}", justify="right")
    for name, cells in comparison(results):
        table.add_row(name, *cells)
    return table


def comparison(results: Sequence[BenchResult]) -> list[tuple[str, list[str]]]:
    """The rows of the table: what is compared, and a cell for each run."""
    if not results:
        return []
    rows = [
        ("load", [f"{r.rate:g}/s, Poisson" if r.rate else f"{r.concurrency} clients" for r in results]),
        ("requests", [f"{len(r.samples):,}" for r in results]),
        ("requests/s", [f"{r.per_second:,.1f}" for r in results]),
        ("hit rate", [_share(r.hit_rate) for r in results]),
        ("cold lookups", [str(r.lookups.outcomes.get("cold", 0)) if r.lookups else "-" for r in results]),
        ("new store entries", [str(r.lookups.new_entries) if r.lookups else "-" for r in results]),
        ("errors", [", ".join(f"{n} x {code}" for code, n in r.errors.items()) or "0" for r in results]),
    ]
    first = sorted({min(r.first, len(r.samples)) for r in results})
    parts = [
        (f"first {' / '.join(map(str, first))}", [r.first_part for r in results]),
        ("then", [r.steady_part for r in results]),
    ]
    for part, summaries in parts:
        if any(summaries):
            rows += [
                (f"{part}: {title}", [seconds(getattr(s, name)) if s else "-" for s in summaries])
                for title, name in (("P50", "p50"), ("P95", "p95"), ("P99", "p99"), ("P99.9", "p999"), ("max", "max"))
            ]
    return rows


def seconds(value: float) -> str:
    """A time as people read it: milliseconds below one second."""
    return f"{value:,.2f} s" if value >= 1 else f"{value * 1e3:,.2f} ms"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
