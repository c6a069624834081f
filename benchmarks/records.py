"""Results as they are kept in ``results/``: one JSON file with every number, one Markdown page with the tables."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import typer
from rich.console import Console

from serving.bench.machine import this_machine

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Check:
    """Something that a benchmark must reach, what was found, and whether it was reached."""

    wanted: str
    found: str
    holds: bool


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first column is left, the rest right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def command(module: str, arguments: Sequence[str]) -> str:
    """The command line of a benchmark, without what only this machine has: ``--out``, and where files lie."""
    kept: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument == "--out":
            next(rest, None)
        elif not argument.startswith("--out="):
            kept.append(Path(argument).name if Path(argument).is_absolute() else argument)
    return shlex.join(["python", "-m", f"benchmarks.{module}", *kept])


def conclude(checks: Sequence[Check], console: Console) -> None:
    """Says of each goal whether it was reached; raises typer.Exit with status 1 where one was missed."""
    for check in checks:
        console.print(f"{'reached' if check.holds else 'MISSED '} {check.wanted}: {check.found}", highlight=False)
    if not all(check.holds for check in checks):
        raise typer.Exit(1)


def write(
    name: str,
    title: str,
    how: str,
    sections: Mapping[str, str],
    checks: Sequence[Check],
    data: object,
    folder: Path,
    module: str = "",
) -> None:
    """Writes ``name.json`` and ``name.md``, both with the machine, the time and the command line; ``name`` is that of
    the module that measured, unless ``module`` is."""
    machine, when = this_machine(), datetime.now(timezone.utc).isoformat(timespec="seconds")
    document = {
        "benchmark": name,
        "when": when,
        "command": command(module or name, sys.argv[1:]),
        "machine": machine.to_json(),
        "checks": [vars(check) for check in checks],
        "data": data,
    }
    versions = ", ".join(f"{package} {version}" for package, version in machine.packages.items())
    page = [f"# {title}", how, f"Machine: {machine}. Versions: {versions}.", f"`{document['command']}`, {when}."]
    for heading, text in sections.items():
        page += [f"## {heading}", text]
    if checks:
        rows = [[check.wanted, check.found, "yes" if check.holds else "**no**"] for check in checks]
        page += ["## What had to be reached", table(["wanted", "found", "reached"], rows)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    (folder / f"{name}.md").write_text("\n\n".join(page) + "\n", encoding="utf-8")
