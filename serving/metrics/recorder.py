"""What one model's requests did, kept until it is counted.

A request costs one append here; ``steps`` counts, on a scrape and once a second, in short steps.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from serving.lanes.warmset import Outcome
from serving.metrics.metrics import STAGES, Metrics

_RECENT = 1000  # requests: enough for a P99 of ten
_STEP = 256  # requests whose stages are counted at once
_SHAPES = 8  # shapes whose requests are


class Sample(NamedTuple):
    """One answered request. Times are seconds; ``stages`` are in the order of ``metrics.STAGES``."""

    protocol: str
    code: int
    seconds: float
    outcome: Outcome | None  # None where the request never reached the warm set
    shape: str
    stages: tuple[float, ...] | None  # None where the request was not executed
    useful: int
    padding: int


class Recent(NamedTuple):
    """The latest answered requests of this process, at most a thousand; None where nothing says."""

    count: int
    p99_seconds: float | None
    hit_rate: float | None  # of those that reached the warm set


class Recorder:
    """The samples of one model. ``add`` on the event loop, ``batch`` on the lane's thread, ``flush`` on the loop."""

    def __init__(self, metrics: Metrics, model: str, version: str) -> None:
        self._metrics = metrics
        self._model = model
        self._version = version
        self._samples: list[Sample] = []
        self._counting: Iterator[None] = iter(())
        self._batches: deque[int] = deque()
        self._lookups: Counter[Outcome] = Counter()
        self._recent: deque[tuple[float, Outcome | None]] = deque(maxlen=_RECENT)
        self.outcomes: Counter[str] = Counter()
        for outcome in Outcome:  # a rate over a series that does not exist yet is no data, so all start at 0
            metrics.lookups.labels(model, outcome.value)
        for kind in ("useful", "padding"):
            metrics.elements.labels(model, kind)
        # So with histograms, which moreover take time to make.
        metrics.request_seconds.labels(model, version)
        metrics.batch_size.labels(model)
        for stage in STAGES:
            metrics.stage_seconds.labels(model, stage)

    def add(self, sample: Sample) -> None:
        self._samples.append(sample)

    def lookup(self, outcome: Outcome) -> None:
        """Counts what the warm set made of a request, however the request then ends."""
        self._lookups[outcome] += 1

    def expect(self, shape: str) -> None:
        """Makes the series of a shape, before there are requests of it."""
        self._metrics.shape_seconds.labels(self._model, shape)

    def batch(self, rows: int) -> None:
        self._batches.append(rows)

    def rejected(self, reason: str) -> None:
        self._metrics.rejected.labels(self._model, reason).inc()

    def cold(self, store: str, seconds: float) -> None:
        """Counts first-call time that a request paid for."""
        self._metrics.cold_seconds.labels(self._model, store).inc(seconds)

    def recent(self) -> Recent:
        """What the latest requests met, up to the last ``flush``."""
        seconds = sorted(taken for taken, _ in self._recent)
        outcomes = [outcome for _, outcome in self._recent if outcome is not None]
        return Recent(
            len(seconds),
            seconds[-(-len(seconds) * 99 // 100) - 1] if seconds else None,
            sum(outcome is not Outcome.COLD for outcome in outcomes) / len(outcomes) if outcomes else None,
        )

    def flush(self) -> None:
        """Counts what has been added since the last call."""
        for _ in self.steps():
            pass

    def steps(self) -> Iterator[None]:
        """The same in steps of a fraction of a millisecond each, between which requests may be answered; what they add
        is for the next call. Calls that overlap do each other's steps."""
        begun = self._counting
        for _ in begun:
            yield
        if self._counting is begun:  # else somebody has begun to count, after this call, what this call is for
            self._counting = self._count()
        for _ in self._counting:
            yield

    def _count(self) -> Iterator[None]:
        samples, self._samples = self._samples, []
        metrics, model = self._metrics, self._model
        rows = [self._batches.popleft() for _ in range(len(self._batches))]
        metrics.batch_size.labels(model).observe_many(rows)
        lookups, self._lookups = self._lookups, Counter()
        for outcome, count in lookups.items():
            metrics.lookups.labels(model, outcome.value).inc(count)
            self.outcomes[outcome.value] += count
        if not samples:
            return
        yield
        self._recent.extend((sample.seconds, sample.outcome) for sample in samples[-_RECENT:])
        for (protocol, code), count in Counter((s.protocol, s.code) for s in samples).items():
            metrics.requests.labels(model, self._version, protocol, str(code)).inc(count)
        metrics.request_seconds.labels(model, self._version).observe_many([s.seconds for s in samples])
        executed = [s for s in samples if s.stages is not None]
        if not executed:
            return
        metrics.elements.labels(model, "useful").inc(sum(s.useful for s in executed))
        metrics.elements.labels(model, "padding").inc(sum(s.padding for s in executed))
        yield
        for start in range(0, len(executed), _STEP):
            stages = np.array([s.stages for s in executed[start : start + _STEP]])
            for column, stage in enumerate(STAGES):
                metrics.stage_seconds.labels(model, stage).observe_many(stages[:, column])
            yield
        by_shape: dict[str, list[float]] = {}
        for sample in executed:
            by_shape.setdefault(sample.shape, []).append(sample.seconds)
        for number, (shape, seconds) in enumerate(by_shape.items()):
            if number % _SHAPES == 0:
                yield
            metrics.shape_seconds.labels(model, shape).observe_many(seconds)
