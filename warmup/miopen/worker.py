"""A process that runs convolutions on MIOpen, one at a time, and says what each one took.

    python -m warmup.miopen.worker

Standard input: one line of JSON with the fields of ``Job``, then find-db keys, one a line; the end of input ends the
process. Standard output: for each line one of JSON, ``{}`` once MIOpen is ready and the fields of ``Outcome`` for each
key. MIOpen's log, and all that it prints, goes to standard error. The environment that steers MIOpen comes from the
parent.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from warmup.miopen.contents import Watch
from warmup.miopen.library import Convolution, Found, Handle, Library, LibraryError, MIOpenError
from warmup.miopen.problem import ConvProblem


@dataclass(frozen=True)
class Job:
    """How the problems are run.

    ``search`` asks every Find for tuning; it needs the environment of the tune phase. ``repeats`` further executions
    of each problem are timed. With a ``root``, the entries that each problem added to the store there are named.
    """

    search: bool = False
    repeats: int = 0
    root: str | None = None
    library: str | None = None


@dataclass(frozen=True)
class Outcome:
    """One problem: the seconds of its first Find and execution, and the median seconds of further executions.

    ``algorithm`` is the one that was run, ``milliseconds`` the time that MIOpen has for it; ``added`` the entries that
    are new or changed in the store; ``error`` says what failed, and is empty where nothing did.
    """

    key: str
    first_seconds: float | None = None
    steady_seconds: float | None = None
    algorithm: str = ""
    milliseconds: float | None = None
    added: tuple[str, ...] = ()
    error: str = ""

    @classmethod
    def from_json(cls, text: str) -> Outcome:
        fields: dict[str, Any] = json.loads(text)
        return cls(**{**fields, "added": tuple(fields["added"])})


def outcome(job: Job, handle: Handle, key: str) -> Outcome:
    """Runs one problem; a failure of MIOpen is part of the outcome. Raises ProblemError where the key is none."""
    problem = ConvProblem.from_find_db_key(key)
    started = time.perf_counter()  # the whole of a first call, as a caller feels it: workspace query, Find, execution
    try:
        with handle.convolution(problem) as convolution:
            found = convolution.find(
                search=job.search, workspace=convolution.search_workspace() if job.search else None
            )
            if not found:
                return Outcome(key, error="MIOpen found no algorithm")
            best = found[0]
            convolution.run(best)
            first = time.perf_counter() - started
            steady = statistics.median(_seconds(convolution, best, job.repeats)) if job.repeats else None
            return Outcome(key, first, steady, best.name, best.milliseconds)
    except MIOpenError as error:
        return Outcome(key, error=str(error))


def _seconds(convolution: Convolution, chosen: Found, repeats: int) -> Iterator[float]:
    for _ in range(repeats):
        started = time.perf_counter()
        convolution.run(chosen)
        yield time.perf_counter() - started


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answers the keys of ``requests`` until it ends."""
    job = Job(**json.loads(requests.readline()))
    watch = Watch(Path(job.root)) if job.root else None
    with Library(job.library).handle() as handle:
        print("{}", file=answers, flush=True)
        for line in requests:
            answer = outcome(job, handle, line.strip())
            if watch:
                answer = replace(answer, added=tuple(watch.added()))
            print(json.dumps(asdict(answer)), file=answers, flush=True)


if __name__ == "__main__":
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing that a library prints may get between the answers
    try:
        serve(sys.stdin, out)
    except (LibraryError, MIOpenError) as failure:
        sys.exit(str(failure))
