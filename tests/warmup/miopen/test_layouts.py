from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmup.miopen.layouts import LayoutError, joint_layouts, layout_of, packed_strides, possible


@given(st.lists(st.integers(2, 9), min_size=4, max_size=5), st.booleans())
def test_a_packed_tensor_has_the_layout_that_it_was_packed_in(dims: list[int], last: bool) -> None:
    layout = {(4, False): "NCHW", (4, True): "NHWC", (5, False): "NCDHW", (5, True): "NDHWC"}[len(dims), last]
    assert layout_of(packed_strides(dims, layout)) == layout


def test_strides_are_in_elements_and_in_the_order_of_the_dims() -> None:
    assert packed_strides((2, 3, 4, 5), "NHWC") == (60, 1, 15, 3)


def test_a_single_channel_can_be_either() -> None:
    strides = packed_strides((2, 1, 1, 1), "NHWC")
    assert possible(strides, "NCHW")
    assert possible(strides, "NHWC")


def test_tensors_without_a_common_layout_keep_their_own() -> None:
    shape = (8, 64, 56, 56)
    tensors = (packed_strides(shape, "NHWC"), packed_strides((64, 64, 3, 3), "NCHW"), packed_strides(shape, "NHWC"))
    assert joint_layouts(tensors, ("NHWC", "NCHW", "NHWC")) == ("NHWC", "NCHW", "NHWC")


def test_three_dims_of_space_channels_last_are_no_common_layout_but_all_the_same() -> None:
    strides = packed_strides((2, 3, 4, 5, 6), "NDHWC")
    assert joint_layouts((strides,) * 3, ("NDHWC",) * 3) == ("NDHWC",) * 3


def test_a_wrong_layout_is_refused() -> None:
    with pytest.raises(LayoutError, match="the letters of NCHW"):
        packed_strides((1, 2, 3, 4), "NDHWC")
    with pytest.raises(LayoutError, match="of no layout"):
        layout_of((1, 2, 3, 4))
