"""Server processes that share a port wait for each other before any of them says that it is ready.

A client cannot choose the process that answers it, so one that is ready must not speak for one that is not. What has
arrived is a file in a directory that the processes share; a process that is replaced later finds the barrier open.
"""

from __future__ import annotations

import os
from pathlib import Path

DIRECTORY = "PREHEAT_WORKERS_DIR"  # set by the supervisor for its processes
COUNT = "PREHEAT_WORKERS"
INDEX = "PREHEAT_WORKER"


class Barrier:
    """Open once every one of ``count`` processes has arrived."""

    def __init__(self, directory: Path | None = None, index: int = 0, count: int = 1) -> None:
        self._directory = directory
        self._index = index
        self._count = count
        self._open = directory is None

    @classmethod
    def of_this_process(cls) -> Barrier:
        """The barrier that the supervisor has put up, or one that is always open."""
        if DIRECTORY not in os.environ:
            return cls()
        return cls(Path(os.environ[DIRECTORY]), int(os.environ[INDEX]), int(os.environ[COUNT]))

    def arrive(self) -> bool:
        """Says that this process is ready; True if all are."""
        if not self._open and self._directory is not None:
            (self._directory / f"arrived-{self._index}").touch()
            self._open = all((self._directory / f"arrived-{index}").exists() for index in range(self._count))
        return self._open
