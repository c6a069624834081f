"""The metrics of a server, as named in ``docs/metrics.md``.

In one process they live in memory. With ``PROMETHEUS_MULTIPROC_DIR`` set before this module is imported, every process
writes its own files there and any of them can answer a scrape for all (prometheus_client's multiprocess mode).
To make the text takes milliseconds for each hundred series, which requests must not wait for.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from serving.beside import Beside, ProcessEnded
from serving.metrics.histogram import BulkHistogram, log_buckets
from serving.steps import in_steps

REQUEST_BUCKETS = log_buckets(0.0005, 60, 30)
SHAPE_BUCKETS = log_buckets(0.0005, 60, 15)
BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
STAGES = ("decode", "preprocess", "queue", "copy", "execute", "postprocess", "encode")
_SCRAPE_SECONDS = 5.0  # of the 10 that Prometheus waits unless told otherwise (scrape_timeout)
_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class _Collected(Collector):
    """One metric, as a registry gives it."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        return [self._metric]


class Metrics:
    """All metrics of one server process."""

    def __init__(self) -> None:
        disable_created_metrics()  # a second series for every series, which no query here reads
        self._registry = CollectorRegistry()
        folder = os.environ.get(_FOLDER)
        self._together = Beside("serving.metrics.together", folder) if folder else None
        self.requests = self._counter("requests", "Requests answered.", "model", "version", "protocol", "code")
        self.request_seconds = self._histogram(
            "request_seconds", "Time from the request's last byte to its answer.", REQUEST_BUCKETS, "model", "version"
        )
        self.stage_seconds = self._histogram(
            "stage_seconds", "Time that a request spent in each stage.", SHAPE_BUCKETS, "model", "stage"
        )
        self.lookups = self._counter(
            "shape_lookups", "Requests by what the warm set made of their shape.", "model", "outcome"
        )
        self.shape_seconds = self._histogram(
            "shape_seconds", "Request time by planned shape, or cold.", SHAPE_BUCKETS, "model", "shape"
        )
        self.elements = self._counter("elements", "Input elements run, asked for or padding.", "model", "kind")
        self.batch_size = self._histogram("batch_size", "Rows in use of each execution.", BATCH_BUCKETS, "model")
        self.queue_depth = self._gauge("queue_depth", "Requests that wait.", "livesum", "model")
        self.rejected = self._counter("rejected", "Requests not run.", "model", "reason")
        self.store_entries = self._gauge("store_entries", "Entries in a tuning store.", "livemax", "store")
        self.store_new_entries = self._counter(
            "store_new_entries", "Entries that appeared after ready: misses that somebody paid for.", "store"
        )
        self.cold_seconds = self._counter(
            "cold_seconds", "Time that requests spent on first-call costs after ready.", "model", "store"
        )
        self.shapes = self._gauge("shapes", "Planned shapes by state.", "livemax", "model", "state")
        self.graph_bytes = self._gauge("graph_bytes", "Device memory of captured graphs.", "livesum", "model")
        self.warmup_seconds = self._gauge("warmup_seconds", "Time spent warming.", "livemax", "model", "phase")
        self.warmup_remaining = self._gauge(
            "warmup_remaining_seconds", "Expected time until warm.", "livemax", "model", "phase"
        )
        self.device_info = self._gauge("device_info", "An accelerator.", "livemax", "device", "name", "driver")
        self.device_memory = self._gauge("device_memory_bytes", "Its memory.", "livemax", "device", "kind")
        self.device_busy = self._gauge(
            "device_busy_ratio", "Share of time in which it ran anything.", "livemax", "device"
        )
        self.ready = self._gauge("ready", "1 if the server is ready for traffic.", "livemin")
        self.bundle_info = self._gauge(
            "bundle_info", "The bundle served.", "livemax", "bundle", "arch", "cu", "versions"
        )

    def forget(self, model: str) -> None:
        """Removes the gauges of a model that is no longer served. Its counters stay, as what they counted does."""
        if self._together is not None:
            return  # other processes may serve it still, and prometheus_client cannot remove from its files
        for gauge in (self.queue_depth, self.shapes, self.graph_bytes, self.warmup_seconds, self.warmup_remaining):
            gauge.remove_by_labels({"model": model})

    async def exposition(self) -> bytes:
        """The text that Prometheus scrapes, of all processes where there are several. Raises ProcessEnded."""
        if self._together is not None:
            try:
                text = await self._together.ask("", _SCRAPE_SECONDS)
            except ProcessEnded:  # since the last scrape, it may be
                text = await self._together.ask("", _SCRAPE_SECONDS)
            return text.encode()
        return b"".join(await in_steps(self.pieces()))

    async def close(self) -> None:
        """Ends what reads the metrics of several processes."""
        if self._together is not None:
            await self._together.close()

    def pieces(self) -> Iterator[bytes]:
        """The text of this process's metrics, in pieces that take a fraction of a millisecond each."""
        last = ""
        for metric in self._registry.collect():
            text = generate_latest(_Collected(metric))
            yield text.split(b"\n", 2)[2] if metric.name == last else text  # its HELP and TYPE were given before
            last = metric.name

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, namespace="preheat", registry=self._registry)

    def _gauge(self, name: str, text: str, mode: str, *labels: str) -> Gauge:
        return Gauge(
            name,
            text,
            labels,
            namespace="preheat",
            registry=self._registry,
            multiprocess_mode=mode,  # type: ignore[arg-type]
        )

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> BulkHistogram:
        return BulkHistogram(name, text, labels, namespace="preheat", registry=self._registry, buckets=buckets)
