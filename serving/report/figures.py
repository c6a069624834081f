"""The plots of the report. Times are in seconds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator

from serving.bench.result import BenchResult
from serving.bench.result import seconds as readable
from serving.report.evidence import Coverage
from serving.report.grid import Grid, arrange
from serving.report.svg import GRID, drawing, inline
from warmup.proof import Proof, ShapeProof

COLD, WARM, STEADY = "#d64f5c", "#2a9d8f", "#8a8f98"
OTHERS = ("#4f86c6", "#e09f3e", "#9b6fc3", "#7cb518")

MAX_ROWS = 40  # shapes in one plot; the tables have them all
MAX_PANELS = 6
MAX_MARKS = 4000  # more points than this are drawn as a picture within the SVG


@dataclass(frozen=True)
class Plot:
    """An ``<svg>`` and the line under it."""

    svg: str
    caption: str


def proof_times(proof: Proof) -> Plot | None:
    """For each shape its first call while tuning, its first call in a fresh process afterwards, and a later one."""
    shapes = [shape for shape in proof if shape.first_seconds is not None]
    series = {
        "first call, nothing tuned": (COLD, [shape.cold_seconds for shape in shapes]),
        "first call in a fresh process, warmed": (WARM, [shape.first_seconds for shape in shapes]),
        "later calls": (STEADY, [shape.steady_seconds for shape in shapes]),
    }
    return _dumbbells(
        f"proof-{proof.model}",
        [shape.shape.text for shape in shapes],
        series,
        f"What each shape of {proof.model} pays, outside a server: its first call before and after warming",
    )


def first_requests(runs: Sequence[BenchResult]) -> Plot | None:
    """For each shape (or file) that every run asked for, what the first request for it took in each run."""
    firsts = [first_by_ask(run) for run in runs]
    common = [ask for ask in (firsts[0] if firsts else {}) if all(ask in first for first in firsts)]
    colors = _colors(runs)
    series = {
        _label(run, number): (colors[number], [first[ask] for ask in common])
        for number, (run, first) in enumerate(zip(runs, firsts, strict=True))
    }
    model = runs[0].model if runs else ""
    return _dumbbells(
        f"first-{model}", common, series, f"The first request for each shape of {model}, as the client waited for it"
    )


def first_by_ask(run: BenchResult) -> dict[str, float]:
    """What the first good answer to each distinct request took, slowest kind first."""
    found: dict[str, float] = {}
    for sample in run.samples:
        if sample.ok:
            found.setdefault(run.asks[sample.ask], sample.seconds)
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def latency_by_number(runs: Sequence[BenchResult]) -> Plot | None:
    """Time against request number, cold and warm in one plot; the dashed line is where the first requests end."""
    if not any(sample.ok for run in runs for sample in run.samples):
        return None
    colors = _colors(runs)
    with drawing():
        figure = Figure(figsize=(9, 3.8))
        axes = figure.subplots()
        for number, run in enumerate(runs):
            numbers = np.arange(1, len(run.samples) + 1)
            times = np.array([sample.seconds for sample in run.samples])
            good = np.array([sample.ok for sample in run.samples])
            drawn = {"color": colors[number], "rasterized": len(times) > MAX_MARKS, "linewidths": 0.8}
            axes.scatter(numbers[good], times[good], s=9, alpha=0.8, label=_label(run, number), **drawn)
            if not good.all():
                label = f"{_label(run, number)}, not answered well"
                axes.scatter(numbers[~good], times[~good], s=24, marker="x", label=label, **drawn)
        for first in {run.first for run in runs if run.first < len(run.samples)}:
            axes.axvline(first + 0.5, color=GRID, linestyle="--", linewidth=1)
        axes.set_yscale("log")
        _seconds_axis(axes.yaxis)
        axes.set_xlabel("request")
        axes.set_ylabel("time")
        axes.margins(x=0.01)
        figure.legend(loc="outside upper left", ncols=4)
        figure.set_layout_engine("constrained")
        caption = f"Every request for {runs[0].model} in the order of sending"
        return Plot(inline(figure, f"latency-{_slug(runs[0].model)}", caption), caption + ".")


def heat_map(proof: Proof) -> Plot | None:
    """The planned shapes on two axes: the colour is how much longer a first call took before warming than after it."""
    grid = arrange([shape.shape for shape in proof.shapes])
    if grid is None or not (grid.x.label or grid.y.label):
        return None
    shown = grid.panels[:MAX_PANELS]
    gains = [gain for shape in proof if (gain := _gain(shape)) is not None]
    norm = LogNorm(1, max(2.0, *gains)) if gains else None
    rows, columns = len(grid.y.ticks), len(grid.x.ticks)
    across = min(len(shown), max(1, 12 // max(columns, 3)))
    down = math.ceil(len(shown) / across)
    with drawing():
        size = (min(14.0, across * (columns * 0.85 + 1.4)), down * (rows * 0.5 + 1.1))
        figure = Figure(figsize=size, layout="constrained")
        all_axes = np.atleast_1d(figure.subplots(down, across, squeeze=False)).ravel()
        for axes, panel in zip(all_axes, shown, strict=False):
            _frame(axes, grid, panel.title)
            for (row, column), index in panel.cells.items():
                _cell(axes, column, row, proof.shapes[index], norm)
        for axes in all_axes[len(shown) :]:
            axes.set_axis_off()
        caption = f"Planned shapes of {proof.model}"
        more = f" {len(grid.panels) - len(shown)} more panels are left out." if len(grid.panels) > len(shown) else ""
        svg = inline(figure, f"heat-{_slug(proof.model)}", caption)
    return Plot(
        svg,
        f"{caption}. In each cell the time of a later call, and how many times longer the first call took before "
        f"warming than after it; the darker, the more. Hatched: not proven.{more}",
    )


def predicted_times(coverage: Coverage) -> Plot | None:
    """For each shape the convolution time that the database's own records predict, by how the solvers are chosen."""
    timed = [shape for shape in coverage.shapes if shape.best_ms is not None]
    if not timed:
        return None
    order = sorted(timed, key=lambda shape: shape.best_ms or 0.0)[-MAX_ROWS:]
    choices = {
        "default-like: the fastest dynamic solver": (OTHERS[1], [shape.default for shape in order]),
        "naive solver": (COLD, [shape.naive for shape in order]),
    }
    with drawing():
        figure = Figure(figsize=(11, 0.26 * len(order) + 1.5), layout="constrained")
        times, ratios = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
        places = range(len(order))
        best = [(shape.best_ms or 0.0) / 1e3 for shape in order]
        times.scatter(best, places, s=34, color=WARM, label="best solver", zorder=2)
        for label, (color, compared) in choices.items():
            for whole in (True, False):  # a time that leaves problems out is drawn hollow, and only its ratio compares
                points = [
                    (found.ms / 1e3, found.ratio, place)
                    for place, (shape, found) in enumerate(zip(order, compared, strict=True))
                    if found and (found.problems == shape.covered) is whole
                ]
                if points:
                    x, ratio, y = zip(*points, strict=True)
                    drawn = {"s": 34, "facecolors": color if whole else "none", "edgecolors": color, "zorder": 2}
                    times.scatter(x, y, label=label if whole else f"{label}, for some problems only", **drawn)
                    ratios.scatter(ratio, y, **drawn)
        times.set_yticks(places, [shape.shape.text for shape in order], fontsize=9)
        times.set_ylim(-0.7, len(order) - 0.3)
        times.set_xscale("log")
        times.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        _seconds_axis(times.xaxis)
        times.set_xlabel("convolution time")
        ratios.axvline(1, color=WARM, linewidth=1.5)
        if ratios.get_xlim()[1] > 10:
            ratios.set_xscale("log")
            ratios.xaxis.set_minor_formatter(FuncFormatter(lambda value, _: ""))
        ratios.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
        ratios.set_xlabel("times longer than the best solvers, for the same problems")
        ratios.tick_params(axis="y", length=0)
        figure.legend(loc="outside upper left", ncols=3)
        device = f" on {coverage.device}" if coverage.device else ""
        what = f"Predicted convolution time of each shape of {coverage.model}{device}, from the database's own times"
        more = f" The {len(order)} slowest of {len(timed)}." if len(timed) > len(order) else ""
        return Plot(inline(figure, f"predicted-{_slug(coverage.model)}", what), f"{what}.{more}")


def _frame(axes: Axes, grid: Grid, title: str) -> None:
    rows, columns = len(grid.y.ticks), len(grid.x.ticks)
    axes.grid(False)
    axes.set_xlim(-0.5, columns - 0.5)
    axes.set_ylim(-0.5, rows - 0.5)
    axes.set_xticks(range(columns), map(str, grid.x.ticks))
    axes.set_yticks(range(rows), map(str, grid.y.ticks) if grid.y.label else [""])
    axes.tick_params(length=0)
    axes.set_xlabel(grid.x.label)
    axes.set_ylabel(grid.y.label)
    axes.set_title(title, fontsize=10)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _cell(axes: Axes, x: int, y: int, shape: ShapeProof, norm: LogNorm | None) -> None:
    gain = _gain(shape)
    if not shape.proven:
        axes.add_patch(Rectangle((x - 0.46, y - 0.46), 0.92, 0.92, fill=False, edgecolor=GRID, hatch="////", lw=0.8))
        return
    fill = to_hex(colormaps["Blues"](0.15 + 0.8 * float(norm(gain)))) if norm and gain is not None else "#c9d1da"
    axes.add_patch(Rectangle((x - 0.46, y - 0.46), 0.92, 0.92, facecolor=fill, edgecolor="none"))
    lines = [readable(shape.steady_seconds)] if shape.steady_seconds is not None else []
    lines += [f"{gain:,.0f}x" if gain >= 10 else f"{gain:.1f}x"] if gain is not None else []
    axes.text(x, y, "\n".join(lines), ha="center", va="center", fontsize=8, color=_on(fill))


def _gain(shape: ShapeProof) -> float | None:
    if not shape.proven or not shape.cold_seconds or not shape.first_seconds:
        return None
    return max(1.0, shape.cold_seconds / shape.first_seconds)


def _on(fill: str) -> str:
    """Black or white, whichever can be read on ``fill`` (luma of ITU-R BT.601)."""
    red, green, blue = (int(fill[place : place + 2], 16) for place in (1, 3, 5))
    return "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "#ffffff"


def _dumbbells(
    name: str, rows: Sequence[str], series: Mapping[str, tuple[str, Sequence[float | None]]], what: str
) -> Plot | None:
    """A row for each shape, a dot for each series, and a line between them; longest first series first."""
    if not rows:
        return None
    leading = next(iter(series.values()))[1]
    order = sorted(range(len(rows)), key=lambda row: leading[row] or 0.0)[-MAX_ROWS:]
    with drawing():
        figure = Figure(figsize=(9, 0.24 * len(order) + 1.2))
        axes = figure.subplots()
        for place, row in enumerate(order):
            times = [time for _, column in series.values() if (time := column[row])]
            if times:
                axes.plot([min(times), max(times)], [place, place], color=GRID, alpha=0.5, linewidth=1.5, zorder=1)
        for label, (color, column) in series.items():
            points = [(time, place) for place, row in enumerate(order) if (time := column[row])]
            if points:
                axes.scatter(*zip(*points, strict=True), s=34, color=color, label=label, zorder=2)
        axes.set_yticks(range(len(order)), [rows[row] for row in order], fontsize=9)
        axes.set_ylim(-0.7, len(order) - 0.3)
        axes.grid(axis="y", visible=False)
        axes.set_xscale("log")
        _seconds_axis(axes.xaxis)
        figure.legend(loc="outside upper left", ncols=3)
        figure.set_layout_engine("constrained")
        more = f" The {len(order)} slowest of {len(rows)}." if len(rows) > len(order) else ""
        return Plot(inline(figure, _slug(name), what), f"{what}.{more}")


def _seconds_axis(axis) -> None:  # type: ignore[no-untyped-def]
    axis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axis.set_minor_formatter(FuncFormatter(lambda value, _: ""))


def _short(value: float) -> str:
    if value >= 1:
        return f"{value:g} s"
    return f"{value * 1e3:g} ms" if value >= 1e-3 else f"{value * 1e6:g} µs"


def _colors(runs: Sequence[BenchResult]) -> list[str]:
    named = {"cold": COLD, "warm": WARM}
    others = iter(OTHERS * (len(runs) // len(OTHERS) + 1))
    return [named.pop(run.label, None) or next(others) for run in runs]


def _label(run: BenchResult, number: int) -> str:
    return run.label or f"run {number + 1}"


def _slug(text: str) -> str:
    """A text as part of an id."""
    return "".join(letter if letter.isalnum() else "-" for letter in text)
