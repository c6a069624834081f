from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmup.miopen.fields import Names, decimals, integers, known, numbered


def _placed(texts: list[str]) -> tuple[bytes, np.ndarray, np.ndarray]:
    lengths = np.array([len(text) for text in texts], np.int64)
    ends = np.cumsum(lengths + 1) - 1
    return (",".join(texts) + ",").encode(), ends - lengths, ends


@given(
    st.lists(
        st.from_regex(r"[0-9]{1,9}(\.[0-9]{0,8})?|\.[0-9]{1,9}|[0-9]\.[0-9]{1,5}e[-+]?[0-9]{1,2}", fullmatch=True),
        max_size=30,
    )
)
def test_decimals_are_those_of_float(texts: list[str]) -> None:
    assert decimals(*_placed(texts)).tolist() == [float(text) for text in texts]


@given(st.floats(0, 1e9).map(lambda value: f"{value:.6g}"))
def test_times_as_miopen_prints_them_are_exact(text: str) -> None:
    assert decimals(*_placed([text, "1", text])).tolist() == [float(text), 1.0, float(text)]


@pytest.mark.parametrize("text", ["", ".", "1.2.3", "nan", "inf", "abc", "1_0", " 1", "1e", "0x1", "-", "1-2"])
def test_what_is_no_decimal_is_nan(text: str) -> None:
    values = decimals(*_placed(["2.5", text]))
    assert values[0] == 2.5
    assert math.isnan(values[1])


@given(st.lists(st.integers(0, 2**63 - 1), max_size=30))
def test_integers_are_those_of_int(values: list[int]) -> None:
    assert integers(*_placed([str(value) for value in values])).tolist() == values


@pytest.mark.parametrize(
    "text", ["", "-1", "+1", "1.0", "9223372036854775808", "9" * 9999, "18446744073709551615", "1e3", "x"]
)
def test_what_is_no_integer_is_told(text: str) -> None:
    assert integers(*_placed([text, "7"])).tolist() == [-1, 7]


@given(st.lists(st.sampled_from(["a", "b", "ab", "ba", "abc", "GemmFwdRest", "GemmBwdRest", ""]), max_size=40))
def test_names_are_numbered_in_the_order_of_their_coming(texts: list[str]) -> None:
    names = Names()
    found = numbered(*_placed(texts), names).tolist()
    back = list(names)
    assert [back[number] for number in found] == texts
    assert back == list(dict.fromkeys(texts))
    assert known(*_placed([*texts, "other"]), names).tolist() == [*found, -1]
