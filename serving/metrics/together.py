"""The metrics of several server processes together, read in a process beside them: see ``serving.beside``.

``python -m serving.metrics.together FOLDER`` answers every line with the text that Prometheus scrapes.
"""

from __future__ import annotations

import sys

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from serving.beside import serve


def together(folder: str) -> str:
    """What the processes have counted that keep their metrics in this folder."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=folder)
    return generate_latest(registry).decode()


if __name__ == "__main__":
    serve(lambda line: together(sys.argv[1]))
