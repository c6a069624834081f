"""The report's page: tables and plots in one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import resources

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from serving.bench.machine import Machine
from serving.bench.result import BenchResult, comparison, seconds
from serving.report import figures
from serving.report.evidence import Evidence
from warmup.proof import Proof


@dataclass(frozen=True)
class ModelSection:
    """What the page shows of one model."""

    name: str
    proof: Proof | None
    plots: tuple[figures.Plot, ...]
    runs: tuple[BenchResult, ...]
    comparison: Sequence[tuple[str, Sequence[str]]]
    firsts: Sequence[tuple[str, Sequence[str]]]


def render(evidence: Evidence, command: str) -> str:
    """The whole page."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["time"] = lambda value: "-" if value is None else seconds(value)
    environment.filters["ms"] = lambda value: "-" if value is None else seconds(value / 1e3)
    environment.filters["svg"] = Markup
    template = environment.from_string(resources.files("serving.report").joinpath("page.html.jinja").read_text("utf-8"))
    return template.render(
        made=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        command=command,
        evidence=evidence,
        sections=[_section(evidence, model) for model in evidence.models()],
        predicted=figures.predicted_times(evidence.coverage) if evidence.coverage else None,
        machines=_machines(evidence.runs),
    )


def _section(evidence: Evidence, model: str) -> ModelSection:
    proof, runs = evidence.proof(model), evidence.runs_of(model)
    plots = [figures.latency_by_number(runs), figures.first_requests(runs)] if runs else []
    plots += [figures.proof_times(proof), figures.heat_map(proof)] if proof else []
    return ModelSection(
        name=model,
        proof=proof,
        plots=tuple(plot for plot in plots if plot),
        runs=runs,
        comparison=comparison(runs),
        firsts=_firsts(runs),
    )


def _firsts(runs: Sequence[BenchResult]) -> list[tuple[str, list[str]]]:
    """For each distinct request, the time of its first answer in every run."""
    found = [figures.first_by_ask(run) for run in runs]
    asks = dict.fromkeys(ask for first in found for ask in first)
    return [(ask, [seconds(first[ask]) if ask in first else "-" for first in found]) for ask in asks]


def _machines(runs: Sequence[BenchResult]) -> list[tuple[str, Machine]]:
    """The machines that the runs were made on, each once, with the runs' labels."""
    labels: dict[str, list[str]] = {}
    machines: dict[str, Machine] = {}
    for run in runs:
        labels.setdefault(str(run.machine), []).append(run.label or run.model)
        machines[str(run.machine)] = run.machine
    return [(", ".join(dict.fromkeys(labels[text])), machine) for text, machine in machines.items()]
