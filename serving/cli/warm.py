"""``preheat warm``: tune, seal and prove every planned shape of the models, and make a bundle of what is left."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as Remaining
from rich.table import Table
from rich.text import Text

from handlers.errors import ModelError
from handlers.loading import check_parts, find_models
from serving.cli.output import console, errors, fail, print_json, reported
from serving.places import default_bundle, default_models
from warmup.accelerators import NoSuchAccelerator, accelerators, chosen, pinned
from warmup.bundle.files import BundleError
from warmup.plan import expand
from warmup.proof import Proof, ShapeProof
from warmup.sweep.journal import JournalError
from warmup.sweep.progress import Advanced, Note, Started
from warmup.sweep.progress import Progress as Event
from warmup.sweep.sweep import Outcome, Request, sweep
from warmup.sweep.workspace import SweepRunning, WorkspaceError

app = typer.Typer(add_completion=False)

_NARROW = 100  # columns of a terminal in which the whole table does not fit
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}


def parse_duration(text: str) -> float:
    """Seconds of ``90``, ``90s``, ``1.5m`` or ``2h``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if not match or not float(match[1]):
        raise typer.BadParameter(f"{text!r} is not a duration such as 90s, 10m or 2h")
    return float(match[1]) * _SECONDS[match[2]]


def parse_shard(text: str) -> tuple[int, int]:
    """``(1, 4)`` for ``1/4``."""
    match = re.fullmatch(r"(\d+)/(\d+)", text.strip())
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise typer.BadParameter(f"{text!r} is not I/N with I from 1 to N, such as 1/4")
    return int(match[1]), int(match[2])


@app.command()
def warm(
    models: Annotated[
        list[str] | None, typer.Argument(metavar="[MODEL]...", help="Folders in the model store; its defaults if none.")
    ] = None,
    model_store: Annotated[Path, typer.Option(help="The folder of model folders.")] = default_models(),
    out: Annotated[
        Path, typer.Option(help="Where the bundle goes; one that is there is built upon.")
    ] = default_bundle(),
    budget: Annotated[
        float | None,
        typer.Option(
            parser=parse_duration,
            metavar="DURATION",
            help="Spend no more than this (90s, 10m, 2h), on what saves most.",
        ),
    ] = None,
    shard: Annotated[
        tuple | None,
        typer.Option(parser=parse_shard, metavar="I/N", help="Warm part I of N only; join with: preheat bundle merge."),
    ] = None,
    devices: Annotated[
        str, typer.Option(help="Share the work out over accelerators: all, or numbers such as 0,1; needs a new --out.")
    ] = "",
    fresh: Annotated[bool, typer.Option("--fresh", help="Start with empty stores.")] = False,
    verify: Annotated[
        bool,
        typer.Option("--verify/--no-verify", help="Whether a shape whose outputs are not the CPU's is unproven."),
    ] = True,
    problems: Annotated[
        Path | None,
        typer.Option(
            help="Tune MIOpen for the convolutions in this file (driver lines or find-db keys; - for standard input) "
            "instead of models; needs an --out of its own."
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=256, help="With --problems: processes at once.")] = 1,
    json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> None:
    """Make every planned shape of the models warm, prove it in a fresh process, and leave a bundle.

    A sweep that was killed is taken up where it was; what is proven already is not done again.

    Exit status: 0 all proven, or left out by --budget or --shard alone; 1 a shape is not proven; 2 could not run.
    """
    if problems is not None:
        if models or fresh or out == default_bundle():
            fail("--problems takes an --out of its own, and neither models nor --fresh")
        from serving.cli.warm_problems import warm_problems

        warm_problems(problems, out, workers=workers, budget=budget, shard=shard, as_json=json)
    with reported(ModelError, BundleError, SweepRunning, WorkspaceError, JournalError, NoSuchAccelerator):
        found = find_models(model_store, models or ())
        for model in found:
            check_parts(model)
        if devices:
            if budget or shard:
                fail("--devices takes neither --budget nor --shard")
            widest = max(len(expand(model.spec, model.folder)) for model in find_models(model_store, models or ()))
            listed = chosen(devices, accelerators())[:widest]  # more of them would have nothing to do
            if len(listed) > 1:
                from serving.cli.warm_devices import warm_devices

                raise typer.Exit(warm_devices(listed, models or (), model_store, out, verify, json))
            os.environ.update(pinned(*listed))
        request = Request(found, out, budget, shard, fresh, verify)
        view = _View()
        try:
            with view.bars:
                outcome = sweep(request, view.show)
        except KeyboardInterrupt:
            fail("interrupted; the same command takes the sweep up again", 130)
    if json:
        print_json(_document(request, outcome))
    else:
        _print(request, outcome)
    raise typer.Exit(0 if outcome.holds else 1)


class _View:
    """On a terminal progress bars, one per model and phase, with the time that is left; elsewhere a line per shape. All
    on standard error."""

    def __init__(self) -> None:
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            Remaining(),
            TextColumn("{task.fields[shape]}", style="dim"),
            console=errors,
            disable=not errors.is_terminal,
        )
        self._tasks: dict[tuple[str, str], TaskID] = {}

    def show(self, event: Event) -> None:
        if isinstance(event, Note):
            self._say(event.text)
            return
        key = (event.phase.value, event.model)
        if isinstance(event, Started):
            if key in self._tasks:
                self.bars.update(self._tasks[key], total=event.shapes, completed=0)
            else:
                self._tasks[key] = self.bars.add_task(
                    f"{event.phase.value:<5} {event.model}", total=event.shapes, shape=""
                )
            return
        assert isinstance(event, Advanced)
        self.bars.update(self._tasks[key], advance=1, shape=event.shape.text)
        done = f"{event.phase.value} {event.model} {event.shape}"
        if event.trouble:
            self._say(f"{done}: {event.trouble}")
        elif self.bars.disable:
            task = self.bars.tasks[self._tasks[key]]
            self._say(f"{done}: {_time(event.seconds)} ({task.completed:.0f} of {task.total:.0f})")

    def _say(self, text: str) -> None:
        self.bars.console.print(f"preheat: {text}", markup=False, soft_wrap=True)


def _document(request: Request, outcome: Outcome) -> dict[str, Any]:
    made = outcome.bundle
    return {
        "out": str(request.out),
        "bundle": made.digest if made else None,
        "proven": outcome.holds,
        "seconds": round(outcome.seconds, 3),
        "shapes_run": outcome.ran,
        "models": {
            proof.model: {"coverage": proof.coverage, "shapes": [shape.to_json() for shape in proof]}
            for proof in outcome.proofs
        },
        "stores": {
            name: {"entries": store.entries, "bytes": store.bytes}
            for name, store in (made.manifest.stores.items() if made else ())
        },
    }


def _print(request: Request, outcome: Outcome) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("model", "shape"):
        table.add_column(column, no_wrap=True)
    narrow = console.is_terminal and console.width < _NARROW  # what matters most has to fit
    left_out = ("weight", "added") if narrow else ()
    for column in ("weight", "cold", "first", "steady", "added"):
        if column not in left_out:
            table.add_column(column, justify="right", no_wrap=True)
    table.add_column("state", overflow="fold", min_width=8)
    for proof in outcome.proofs:
        for shape in proof:
            cells = {
                "model": proof.model,
                "shape": shape.shape.text,
                "weight": f"{shape.weight:.3f}",
                "cold": _time(shape.cold_seconds),
                "first": _time(shape.first_seconds),
                "steady": _time(shape.steady_seconds),
                "added": "-" if shape.first_seconds is None else str(sum(shape.added.values())),
                "state": _state(shape),
            }
            # Not as markup: what an error says may hold brackets.
            table.add_row(*(Text(cell) for column, cell in cells.items() if column not in left_out))
    if not console.is_terminal:  # a file or a pipe has no width that shapes would have to be cut for
        wide = console.options.update(max_width=10_000)
        console.width = max(console.width, console.measure(table, options=wide).maximum)
    console.print(table)
    for proof in outcome.proofs:
        done = len(proof.proven())
        console.print(
            f"{proof.model}: {done} of {len(proof.shapes)} shapes proven, {proof.coverage:.1%} of the expected traffic"
            f"{_outputs(proof)}"
        )
    made = outcome.bundle
    if made is None:
        console.print(f"Nothing is proven; {request.out} is as it was.", markup=False, soft_wrap=True)
    elif outcome.ran:
        console.print(f"{request.out}: {made.digest}, in {outcome.seconds:.1f} s", markup=False, soft_wrap=True)
    else:
        console.print(f"{request.out}: {made.digest}, nothing to do", markup=False, soft_wrap=True)


def _outputs(proof: Proof) -> str:
    """How right the outputs were at worst, empty where they were not compared."""
    compared = [shape.outputs for shape in proof if shape.outputs]
    if not compared:
        return ""
    far = max(compared, key=lambda outputs: outputs.relative)
    return f"; outputs of {len(compared)} at most {far.relative:.1g} from {far.against} (allowed {far.tolerance:g})"


def _state(shape: ShapeProof) -> str:
    if shape.proven:
        return f"proven; {shape.reason}" if shape.reason else "proven"
    return f"unproven: {shape.reason}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"
