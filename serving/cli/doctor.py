"""``preheat doctor``: is this node able to serve, and if not, what spoils it, why that hurts and what to do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from serving.cli.output import console, fail, print_json
from warmup.doctor.examination import Diagnosis, examine
from warmup.doctor.finding import Severity

app = typer.Typer()

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}


@app.command()
def doctor(
    root: Annotated[
        Path, typer.Option(help="Where sys, proc, opt and var are; another root than / is another machine's.")
    ] = Path("/"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Examine this node: GPUs, driver, ROCm, MIOpen, frameworks, environment, databases.

    Exit status 1 where something keeps the node from serving what was warmed, 0 where it can serve.
    """
    if not root.is_dir():
        fail(f"{root}: no such directory")
    diagnosis = examine(root, os.environ)
    if as_json:
        print_json(diagnosis.to_json())
    else:
        _show(diagnosis)
    if not diagnosis.able:
        raise typer.Exit(1)


def _show(diagnosis: Diagnosis) -> None:
    table = Table(show_header=False, box=None)
    for gpu in diagnosis.gpus:
        partition = f", {gpu.partition}" if gpu.partition else ""
        table.add_row("gpu", f"{gpu.name}: {gpu.arch}, {gpu.compute_units} compute units{partition}")
    for name, value in diagnosis.facts.items():
        table.add_row(name.replace("_", " "), escape(_text(value)) or "-")
    console.print(table)
    for finding in diagnosis.findings:
        style = _STYLES[finding.severity]
        console.print(f"\n[{style}]{finding.severity.value}[/] {escape(f'{finding.where}: {finding.what}')}")
        console.print(f"  why: {finding.why}\n  do:  {finding.do}", markup=False, highlight=False)
    counts = {s: sum(f.severity is s for f in diagnosis.findings) for s in Severity}
    listed = ", ".join(f"{count} {severity.value}{'s' * (count != 1)}" for severity, count in counts.items())
    verdict = "able to serve" if diagnosis.able else "not able to serve what was warmed"
    if diagnosis.able and not diagnosis.gpus:
        verdict = "able to serve without an AMD GPU"
    console.print(f"\n{verdict}: {listed}")


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(item)}" for key, item in value.items() if item != "")
    if isinstance(value, (list, tuple)):
        return "; ".join(map(_text, value))
    return str(value)
