"""``preheat report``: one HTML page about what was warmed and what it bought."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from serving.bench.machine import command_line
from serving.bench.result import ResultError
from serving.cli.output import console, fail, print_json, reported

app = typer.Typer()


@app.command()
def report(
    warm: Annotated[Path | None, typer.Option(help="A bundle's folder, or what preheat warm --json printed.")] = None,
    bench: Annotated[list[Path] | None, typer.Option(help="A result of preheat bench (may be given again).")] = None,
    db_coverage: Annotated[Path | None, typer.Option(help="What preheat plan MODEL --db FILE --json printed.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("report.html"),
    made_by: Annotated[str, typer.Option(hidden=True, help="The command that the page names.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Write one self-contained HTML page: cold against warm by shape, times by request number, tables, the machine."""
    if not (warm or bench or db_coverage):
        fail("nothing to report on: give --warm, --bench or --db-coverage")
    missing = [name for name in ("matplotlib", "jinja2") if importlib.util.find_spec(name) is None]
    if missing:
        fail(f"{' and '.join(missing)} not installed; they come with: pip install 'preheat[report]'")
    from serving.report.evidence import EvidenceError, gather
    from serving.report.page import render

    with reported(EvidenceError, ResultError):
        evidence = gather(warm, bench or (), db_coverage)
    page = render(evidence, made_by or command_line())
    try:
        out.write_text(page, encoding="utf-8")
    except OSError as error:
        fail(f"{out}: {error.strerror}")
    if as_json:
        print_json({"page": str(out), "bytes": len(page.encode()), "models": evidence.models()})
    else:
        console.print(f"{out}: {', '.join(evidence.models()) or 'database coverage'}", soft_wrap=True, highlight=False)
