from __future__ import annotations

import numpy as np
import pytest

from handlers.errors import InvalidInput
from handlers.values import require_finite


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_values_that_are_not_finite_are_refused(value: float, dtype: type) -> None:
    array = np.zeros((3, 32), dtype)
    require_finite({"x": array})
    array[1, 2] = value
    with pytest.raises(InvalidInput, match="input 'x' holds NaN or infinite values"):
        require_finite({"w": np.zeros(3, dtype), "x": array})


def test_infinities_that_cancel_are_refused() -> None:
    with pytest.raises(InvalidInput):
        require_finite({"x": np.array([np.inf, -np.inf], np.float32)})


@pytest.mark.parametrize("array", [np.full(1000, 3e38, np.float32), np.arange(5), np.array([True]), np.zeros(0)])
def test_everything_else_passes(array: np.ndarray) -> None:
    require_finite({"x": array})
