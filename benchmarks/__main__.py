"""Runs every benchmark that the README quotes, one after the other: ``python -m benchmarks``. See README.md here."""

from __future__ import annotations

import subprocess
import sys

ALL = ("warming", "overhead", "throughput", "onnx_throughput", "disconnect", "scrapes", "memory", "dynamic")


def main() -> int:
    """0 where every goal was reached, 1 where one was missed, 2 where a benchmark could not run."""
    worst = 0
    for name in ALL:
        print(f"== {name}", file=sys.stderr, flush=True)
        status = subprocess.run([sys.executable, "-m", f"benchmarks.{name}"]).returncode
        worst = max(worst, min(abs(status), 2))
    return worst


if __name__ == "__main__":
    sys.exit(main())
