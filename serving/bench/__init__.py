"""The load generator: mixed shapes by weight, closed or open loop, percentiles of the first requests and of the rest.

cold = run("http://127.0.0.1:8080", "digits", label="cold")
warm = run("http://127.0.0.1:8081", "digits", label="warm")
Console().print(compare([cold, warm]))
"""

from __future__ import annotations

from serving.bench.result import BenchResult, ResultError, compare, read_result
from serving.bench.runner import BenchError, run

__all__ = ["BenchError", "BenchResult", "ResultError", "compare", "read_result", "run"]
