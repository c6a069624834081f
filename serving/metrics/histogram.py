"""A Prometheus histogram that takes many observations at once.

``prometheus_client`` walks the buckets in Python for each observation. A server that makes ten observations a request
spends more on that than on the request, so observations are kept and counted together. This is the one place that knows
how ``prometheus_client`` keeps a histogram's values (``_buckets``, one non-cumulative count per upper bound, and
``_sum``), which is the same with and without its multiprocess mode.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from prometheus_client import Histogram


def log_buckets(low: float, high: float, count: int) -> tuple[float, ...]:
    """``count`` upper bounds from ``low`` to ``high``, evenly spaced in log scale, rounded to 3 significant digits."""
    return tuple(float(f"{bound:.3g}") for bound in np.geomspace(low, high, count))


class BulkHistogram(Histogram):
    """``observe_many`` counts a whole array of observations.

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
