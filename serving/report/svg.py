"""A matplotlib figure as SVG to stand inside an HTML page, in whatever colours the page has."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

INK = "#0b0c0d"  # stands for the page's own text colour; no figure uses it for anything else
GRID = "#808080"  # readable on white and on black

_STYLE: dict[Any, Any] = {  # keys are a literal type that only matplotlib's stubs have
    "svg.fonttype": "none",  # text stays text: it can be searched, and the page's font draws it
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.labelcolor": INK,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID,
    "grid.alpha": 0.25,
    "figure.facecolor": "none",
    "legend.frameon": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "savefig.facecolor": "none",
}


@contextmanager
def drawing() -> Iterator[None]:
    """The style in which figures must be made and drawn."""
    with mpl.rc_context(_STYLE):
        yield


def inline(figure: Figure, name: str, description: str) -> str:
    """The figure as an ``<svg>`` element. ``name`` keeps its ids apart from those of other figures on the page;
    ``description`` is what a screen reader says."""
    buffer = io.StringIO()
    with mpl.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'id="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'(href="#|url\(#)', rf"\1{name}-", text)
    text = text.replace(INK, "currentColor")
    return text.replace("<svg", f'<svg role="img" aria-label="{_attribute(description)}"', 1)


def _attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
