"""``preheat warm --problems``: tune, seal and prove a list of convolutions with MIOpen alone."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from threading import Lock
from typing import NoReturn

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as Remaining
from rich.table import Table

from serving.cli.output import console, errors, fail, print_json, reported
from warmup.miopen.keys import ProblemError
from warmup.miopen.problem import ConvProblem
from warmup.miopen.problem_list import read_problems
from warmup.miopen.runner import RunnerError
from warmup.miopen.sweep import BUDGET, ProblemReport, sweep
from warmup.miopen.worker import Outcome
from warmup.stores.store import Phase


def warm_problems(
    source: Path, out: Path, *, workers: int, budget: float | None, shard: tuple[int, int] | None, as_json: bool
) -> NoReturn:
    """Reads ``source`` (``-`` is standard input), fills ``out/stores/miopen``, prints what is proven, and exits.

    Exit status: 0 all proven, or left out by the budget alone; 1 a problem is not proven; 2 could not run.
    """
    with reported(ProblemError, RunnerError, OSError):
        problems = _read(source)
        if shard:
            problems = problems[shard[0] - 1 :: shard[1]]
        view = _View(len(problems))
        try:
            with view.bars:
                report = sweep(problems, out, workers=workers, budget_s=budget, progress=view.show)
        except KeyboardInterrupt:
            fail("interrupted; the same command takes the sweep up again", 130)
    if as_json:
        print_json(report.to_json())
    else:
        _print(report)
    raise typer.Exit(0 if all(problem.reason == BUDGET for problem in report.unproven) else 1)


def _read(source: Path) -> tuple[ConvProblem, ...]:
    try:
        lines = sys.stdin.readlines() if str(source) == "-" else source.read_text(encoding="utf-8").splitlines()
        found = read_problems(lines)
    except OSError as error:
        raise ProblemError(f"{source}: {error.strerror}") from None
    except (ProblemError, UnicodeDecodeError) as error:
        raise ProblemError(f"{source}: {error}") from None
    for question in found.ambiguous:
        errors.print(f"preheat: {source}: {question}", markup=False, soft_wrap=True)
    return found.problems


class _View:
    """One bar per phase on standard error."""

    def __init__(self, problems: int) -> None:
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            Remaining(),
            console=errors,
        )
        self._problems = problems
        self._tasks: dict[Phase, TaskID] = {}
        self._done: Counter[Phase] = Counter()
        self._lock = Lock()

    def show(self, phase: Phase, outcome: Outcome) -> None:
        with self._lock:
            done = self._done[phase]
            if done % self._problems == 0:  # sealing takes several passes
                self._tasks[phase] = self.bars.add_task(f"{phase.value:<5}", total=self._problems)
            self._done[phase] += 1
            self.bars.advance(self._tasks[phase])
            if outcome.error:
                text = f"preheat: {phase.value} {outcome.key}: {outcome.error}"
                self.bars.console.print(text, markup=False, soft_wrap=True)


def _print(report: ProblemReport) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("problem", overflow="fold")
    table.add_column("best", no_wrap=True)
    for column in ("its ms", "cold", "first", "steady"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("state", overflow="fold")
    for problem in report.problems:
        table.add_row(
            problem.key,
            problem.algorithm,
            "-" if problem.milliseconds is None else f"{problem.milliseconds:.4g}",
            _time(problem.cold_seconds),
            _time(problem.first_seconds),
            _time(problem.steady_seconds),
            "proven" if problem.proven else f"unproven: {problem.reason}",
        )
    console.print(table)
    proven = len(report.problems) - len(report.unproven)
    told = f"{proven} of {len(report.problems)} problems proven in {report.seconds:.1f} s; {report.store}"
    console.print(told, soft_wrap=True, highlight=False)


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"
