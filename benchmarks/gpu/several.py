"""Several GPUs against one: a server process for each behind one port."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from benchmarks import records
from benchmarks.gpu.clients import Clients
from benchmarks.gpu.device import facts
from benchmarks.gpu.measure import Tell
from benchmarks.gpu.server import serving, settle, warm
from benchmarks.gpu.subject import Subject
from benchmarks.records import Check

_REQUESTS = 800  # of each client process


def several(subject: Subject, folder: Path, devices: int, out: Path, tell: Tell) -> Check:
    """Requests a second of one server process against one per GPU, by four processes of clients for each GPU."""
    gpu = facts()
    data: dict[str, Any] = {"gpu": gpu, "devices": devices}
    store = subject.store(folder / "graph", subject.captured)
    data["warm_seconds"] = warm(subject.name, store, folder / "bundle", "all")["seconds"]
    with Clients(4 * devices, 8) as clients:
        for label, count in (("one", 1), ("all", devices)):
            listed = ",".join(map(str, range(count)))
            with serving(subject.name, store, folder / "bundle", "--devices", listed) as (server, ready):
                settle(server)
                clients.flood(server.url, subject.name, _REQUESTS // 3)
                rates = [
                    clients.flood(server.url, subject.name, _REQUESTS, seed=100 * n)["per_second"] for n in range(3)
                ]
            data[label] = {"ready": ready, "per_second": rates}
            tell(label, data[label])
    one, every = (statistics.median(data[label]["per_second"]) for label in ("one", "all"))
    check = Check(
        f"{devices} GPUs at least {0.95 * devices:.1f} times one",
        f"{every:,.0f}/s against {one:,.0f}/s = {every / one:.2f}",
        every >= 0.95 * devices * one,
    )
    records.write(
        "gpu-several",
        f"{devices} GPUs against one",
        f"{devices} of {gpu['name']}, driver {gpu['driver']}: {subject.name} {subject.precision}, one server process "
        f"per GPU behind one port; {4 * devices} client processes with 8 connections each; medians of 3.",
        {"Throughput": records.table(["", "requests/s"], [["one GPU", f"{one:,.0f}"], ["all", f"{every:,.0f}"]])},
        [check],
        data,
        out,
        module="gpu",
    )
    return check
