"""A Prometheus histogram that takes many observations at once.

``prometheus_client`` walks the buckets in Python for each observation. A server that makes ten observations a request
spends more on that than on the request, so observations are kept and counted together. This is the one place that knows
how ``prometheus_client`` keeps a histogram's values (``_buckets``, one non-cumulative count per upper bound, and
``_sum``), which is the same with and without its multiprocess mode, and how it is collected.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np
from prometheus_client import Histogram
from prometheus_client.metrics_core import Metric

_PIECE = 36  # samples, of about two series: whose text takes some 0.2 ms to make


def log_buckets(low: float, high: float, count: int) -> tuple[float, ...]:
    """``count`` upper bounds from ``low`` to ``high``, evenly spaced in log scale, rounded to 3 significant digits."""
    return tuple(float(f"{bound:.3g}") for bound in np.geomspace(low, high, count))


class BulkHistogram(Histogram):
    """``observe_many`` counts a whole array of observations. ``collect`` gives a histogram of many series in pieces,
    each a metric of its own, so that whoever makes text of them can do something else in between.

    >>> BulkHistogram("wait_seconds", "Time in the queue.", buckets=(0.1, 1.0), registry=None).observe_many([0.05, 0.5])
    """

    def observe_many(self, values: Sequence[float] | np.ndarray) -> None:
        """Counts every value; raises ValueError where the histogram has labels and none were given."""
        self._raise_if_not_observable()
        array = np.asarray(values, dtype=np.float64)
        if not array.size:
            return
        counts = np.bincount(np.searchsorted(self._upper_bounds, array, side="left"), minlength=len(self._buckets))
        self._sum.inc(float(array.sum()))
        for index in np.flatnonzero(counts):
            self._buckets[index].inc(int(counts[index]))

    def collect(self) -> Iterable[Metric]:
        samples = iter(self._samples())
        piece = list(islice(samples, _PIECE))
        while True:
            metric = self._get_metric()
            for suffix, labels, value, timestamp, exemplar, native in piece:
                metric.add_sample(self._name + suffix, labels, value, timestamp, exemplar, native)
            yield metric
            if not (piece := list(islice(samples, _PIECE))):
                return
