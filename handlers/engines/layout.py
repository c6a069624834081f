"""Which of two layouts a shape is captured in, where a model leaves that open (``channels_last: auto``)."""

from __future__ import annotations

import math

_QUICKER = 0.98  # of the contiguous graph's time: what is no quicker than that may be so by chance


def quicker(contiguous: float, last: float, refused: str) -> tuple[bool, str]:
    """Whether channels_last is the better layout by the seconds of both, and why in words. A graph that there is not
    takes infinitely long; ``refused`` says why there is none in channels_last, if there is none."""
    if last < _QUICKER * contiguous:
        return True, f"channels_last: {_told(last)}, contiguous: {_told(contiguous)}"
    why = f" ({refused})" if refused else ""
    return False, f"contiguous: {_told(contiguous)}, channels_last: {_told(last)}{why}"


def _told(seconds: float) -> str:
    return "no graph" if seconds == math.inf else f"{1e3 * seconds:.3f} ms"
