"""``preheat key``: MIOpenDriver lines and find-db keys to find-db keys."""

from __future__ import annotations

import sys
from collections import Counter
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from serving.cli.output import errors, reported
from warmup.miopen.driver import driver_line, from_driver_line, is_driver_line
from warmup.miopen.finddb import FindDb, NotADatabase
from warmup.miopen.keys import ProblemError, parse_dtypes
from warmup.miopen.problem import ConvProblem

app = typer.Typer(add_completion=False)


@app.command()
def key(
    dtype: Annotated[
        str, typer.Option(help="What an ambiguous line means: FP64, FP8, BF8, or as in INT8INT8INT32 for x, w and y.")
    ] = "",
    missing_from: Annotated[
        list[Path] | None,
        typer.Option(help="Print only keys without a record in this find-db, each once; may be repeated."),
    ] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="One JSON object a line, with the parsed fields.")
    ] = False,
) -> None:
    """Reads MIOpenDriver lines or find-db keys on standard input, one a line, and prints one find-db key a line.

    A line of a log may keep its prefix. -F 0 and sums of directions give one key each. Lines that are no problem are
    reported with their number, and the exit status is 1.
    """
    with reported(ProblemError, NotADatabase, OSError):
        dtypes = parse_dtypes(dtype) if dtype else None
        databases = [FindDb.read(path) for path in missing_from or ()]
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # a line that is no text is one line that is no problem
    told: set[str] = set()
    open_questions: Counter[str] = Counter()
    failed = False
    for number, line in enumerate(sys.stdin, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        try:
            problems, ambiguous = _problems(text, dtypes)
        except ProblemError as error:
            errors.print(f"preheat: line {number}: {error}", markup=False, soft_wrap=True)
            failed = True
            continue
        open_questions.update(ambiguous)
        for problem in problems:
            name = problem.find_db_key()
            if databases and (name in told or any(name in database for database in databases)):
                continue
            told.add(name)
            typer.echo(orjson.dumps(_facts(problem, ambiguous, number)).decode() if json_output else name)
    for question, count in open_questions.items():
        errors.print(f"preheat: {count} ambiguous: {question}; say it with --dtype", markup=False, soft_wrap=True)
    if failed:
        raise typer.Exit(1)


def _problems(text: str, dtypes: tuple[str, str, str] | None) -> tuple[tuple[ConvProblem, ...], tuple[str, ...]]:
    if not is_driver_line(text):
        return (ConvProblem.from_find_db_key(text),), ()
    line = from_driver_line(text, dtypes)
    return line.problems, line.ambiguous


def _facts(problem: ConvProblem, ambiguous: tuple[str, ...], number: int) -> dict[str, Any]:
    try:
        command = driver_line(problem)
    except ProblemError:
        command = None  # some problems have keys, but no words in the driver's language
    return {
        "key": problem.find_db_key(),
        "line": number,
        "direction": problem.direction,
        "transposed": problem.transposed,
        "spatial_dims": problem.spatial_dims,
        "batch": problem.batch,
        "in_channels": problem.in_channels,
        "in_spatial": problem.in_spatial,
        "out_channels": problem.out_channels,
        "out_spatial": problem.out_spatial,
        "filter": problem.filter,
        "pad": problem.pad,
        "stride": problem.stride,
        "dilation": problem.dilation,
        "groups": problem.groups,
        "layouts": problem.layouts,
        "dtypes": problem.dtypes,
        "casts": problem.casts,
        "multiply_adds": problem.multiply_adds,
        "perf_db_key": problem.perf_db_key(),
        "driver": command,
        "ambiguous": ambiguous,
    }
