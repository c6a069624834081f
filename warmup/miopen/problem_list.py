"""A file of convolution problems, one a line: what a log, a database or a plan has to say, in any mixture.

A line is a driver command (also with a log's prefix), a find-db key, or a whole record ``KEY=...`` of a find-db, so
that a database that a new version ignores can be tuned again. Empty lines and ``#`` comments are skipped.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from warmup.miopen.driver import from_driver_line, is_driver_line
from warmup.miopen.keys import ProblemError
from warmup.miopen.problem import ConvProblem


@dataclass(frozen=True)
class ProblemList:
    """The problems, each key once, in the order of the lines; and what the lines left open, in words."""

    problems: tuple[ConvProblem, ...]
    ambiguous: tuple[str, ...]


def read_problems(lines: Iterable[str]) -> ProblemList:
    """Reads every line; raises ProblemError with the number of the first that is no problem, or if all are empty."""
    problems: dict[str, ConvProblem] = {}
    ambiguous: dict[str, None] = {}
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        try:
            found, open_questions = _problems(text)
        except ProblemError as error:
            raise ProblemError(f"line {number}: {error}") from None
        for problem in found:
            problems.setdefault(problem.find_db_key(), problem)
        ambiguous.update(dict.fromkeys(open_questions))
    if not problems:
        raise ProblemError("no problem in it; expected driver lines or find-db keys, one a line")
    return ProblemList(tuple(problems.values()), tuple(ambiguous))


def _problems(text: str) -> tuple[tuple[ConvProblem, ...], tuple[str, ...]]:
    if is_driver_line(text):
        line = from_driver_line(text)
        return line.problems, line.ambiguous
    return (ConvProblem.from_find_db_key(text.partition("=")[0]),), ()
