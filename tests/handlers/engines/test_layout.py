from __future__ import annotations

import math

import pytest

from handlers.engines.layout import quicker


@pytest.mark.parametrize(
    ("contiguous", "last", "refused", "expected"),
    [
        (2e-3, 1e-3, "", (True, "channels_last: 1.000 ms, contiguous: 2.000 ms")),
        (1e-3, 0.99e-3, "", (False, "contiguous: 1.000 ms, channels_last: 0.990 ms")),
        (math.inf, 1e-3, "", (True, "channels_last: 1.000 ms, contiguous: no graph")),
        (
            1e-3,
            math.inf,
            "it differs",
            (False, "contiguous: 1.000 ms, channels_last: no graph (it differs)"),
        ),
        (math.inf, math.inf, "", (False, "contiguous: no graph, channels_last: no graph")),
    ],
)
def test_the_quicker_layout_is_kept_and_a_tie_is_contiguous(
    contiguous: float, last: float, refused: str, expected: tuple[bool, str]
) -> None:
    assert quicker(contiguous, last, refused) == expected
