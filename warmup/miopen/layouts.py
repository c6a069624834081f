"""Which layout MIOpen says a tensor has. It looks at strides, not at what a framework calls the tensor.

Source: MIOpen ``src/tensor.cpp`` (``IsPossibleLayout``, ``GetLayoutEnum``) and ``src/conv/problem_description.cpp``
(``HeuristicUpdateLayouts``), as of 2024-10. A layout is possible where the strides, taken in the layout's order, never
grow; so a 1x1 filter is NCHW and NHWC at once, and the other two tensors decide.
"""

from __future__ import annotations

from collections.abc import Sequence

DEFAULT = {2: "NCHW", 3: "NCDHW"}
CHANNELS_LAST = {2: "NHWC", 3: "NDHWC"}
# In the order in which MIOpen tries them: for one tensor by itself, and for the three of a convolution together.
_ALONE = ("NCHW", "NHWC", "NCDHW", "NDHWC", "CHWN")
_TOGETHER = ("NCHW", "NHWC", "CHWN", "NCDHW")


class LayoutError(ValueError):
    """A layout that does not fit the number of dims, or strides that are no layout's."""


def packed_strides(dims: Sequence[int], layout: str) -> tuple[int, ...]:
    """Strides, in elements, of a packed tensor; ``dims`` are in the order N, C, (D,) H, W whatever the layout."""
    order = DEFAULT[len(dims) - 2]
    if sorted(layout) != sorted(order):
        raise LayoutError(f"layout {layout!r} of {len(dims)} dims; allowed: the letters of {order} in any order")
    strides, step = {}, 1
    for letter in reversed(layout):
        strides[letter] = step
        step *= dims[order.index(letter)]
    return tuple(strides[letter] for letter in order)


def possible(strides: Sequence[int], layout: str) -> bool:
    """Whether MIOpen may take a tensor of these strides, given in the order N, C, (D,) H, W, for one of ``layout``."""
    order = DEFAULT[len(strides) - 2]
    if len(layout) != len(order):
        return False
    steps = [strides[order.index(letter)] for letter in layout]
    return all(outer >= inner for outer, inner in zip(steps, steps[1:], strict=False))


def layout_of(strides: Sequence[int]) -> str:
    """The layout that MIOpen prints for one tensor; raises LayoutError where it knows none."""
    for layout in _ALONE:
        if possible(strides, layout):
            return layout
    raise LayoutError(f"strides {tuple(strides)} are of no layout that MIOpen knows: {', '.join(_ALONE)}")


def joint_layouts(tensors: Sequence[Sequence[int]], labels: Sequence[str]) -> tuple[str, str, str]:
    """The layouts that a convolution's key names, from the strides of its three tensors.

    The first layout that is possible for all three; otherwise each tensor keeps its own, given by ``labels``.
    """
    for layout in _TOGETHER:
        if all(possible(strides, layout) for strides in tensors):
            return layout, layout, layout
    first, second, third = labels
    return first, second, third
