"""What a worker counts, through TorchServe's metrics API: to be had at its metrics address in Prometheus mode.

TorchServe takes a metric only where its ``metrics_config`` file names it, adds the label ``Hostname`` to each, and
gives every histogram the same buckets (5 ms to 10 s, the default of Prometheus' Java client). ``document`` is such a
file: TorchServe's own metrics as they come with it, and these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Metric:
    """A metric of the worker's; ``labels`` come in this order."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    labels: tuple[str, ...]


REQUESTS = Metric("preheat_requests_total", "counter", "count", ("model", "version", "code"))
LOOKUPS = Metric("preheat_shape_lookups_total", "counter", "count", ("model", "outcome"))
COLD_SECONDS = Metric("preheat_cold_seconds_total", "counter", "s", ("model", "store"))
BATCH_SIZE = Metric("preheat_batch_size", "histogram", "count", ("model",))
STAGE_SECONDS = Metric("preheat_stage_seconds", "histogram", "s", ("model", "stage"))
SHAPES = Metric("preheat_shapes", "gauge", "count", ("model", "state"))
WARMUP_SECONDS = Metric("preheat_warmup_seconds", "gauge", "s", ("model", "phase"))
BUNDLE_INFO = Metric("preheat_bundle_info", "gauge", "count", ("model", "bundle"))
DIFFERENCE = Metric("preheat_bundle_difference", "gauge", "count", ("model", "field", "expected", "found"))
METRICS = (
    REQUESTS,
    LOOKUPS,
    COLD_SECONDS,
    BATCH_SIZE,
    STAGE_SECONDS,
    SHAPES,
    WARMUP_SECONDS,
    BUNDLE_INFO,
    DIFFERENCE,
)


def document(standard: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a ``metrics_config`` file: ``standard``, which is that of TorchServe's own, with these metrics."""
    model_metrics = {kind: list(metrics) for kind, metrics in (standard.get("model_metrics") or {}).items()}
    for metric in METRICS:
        entry = {"name": metric.name, "unit": metric.unit, "dimensions": list(metric.labels)}
        model_metrics.setdefault(metric.kind, []).append(entry)
    return {"ts_metrics": standard["ts_metrics"], "model_metrics": model_metrics}


class Counts:
    """Hands observations to TorchServe, which has them as lines of the worker's output. One batch is few lines: what
    can be added up is."""

    def __init__(self, cache: Any, model: str, version: str) -> None:
        """``cache`` is the ``metrics`` of a handler's context (ts.metrics.metric_cache_abstract)."""
        self._cache = cache
        self._model = model
        self._version = version
        self._made: dict[Metric, Any] = {}

    def add(self, metric: Metric, value: float, *labels: str) -> None:
        """Counts ``value``, or observes it; the first label, the model, is added here."""
        made = self._made.get(metric)
        if made is None:
            made = self._made[metric] = self._make(metric)
        made.add_or_update(value, [self._model, *map(_label, labels)])

    def requests(self, codes: Iterable[int]) -> None:
        for code, count in Counter(codes).items():
            self.add(REQUESTS, count, self._version, str(code))

    def lookups(self, outcomes: Iterable[str]) -> None:
        for outcome, count in Counter(outcomes).items():
            self.add(LOOKUPS, count, outcome)

    def _make(self, metric: Metric) -> Any:
        """Made here where the file does not name it: TorchServe then has it in its log alone."""
        from ts.metrics.metric_cache_errors import MetricsCacheKeyError
        from ts.metrics.metric_type_enum import MetricTypes

        kind = MetricTypes(metric.kind)
        try:
            return self._cache.get_metric(metric.name, kind)
        except MetricsCacheKeyError:
            return self._cache.add_metric_to_cache(metric.name, metric.unit, list(metric.labels), kind)


def _label(text: str) -> str:
    """A label that TorchServe's line format can carry, which gives a meaning to commas, colons and bars."""
    return "".join(" " if character in ",:|#\n\r" else character for character in text)[:120] or "none"
