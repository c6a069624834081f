"""The grammar of a find-db key: which texts are keys, and which field of a text that is none is wrong.

``C-H-W-YxX-K-OH-OW-N-PxQ-UxV-LxJ-BIAS-LAYOUT-DTYPE-DIR[_gG][_ciT][_cwT][_coT]``, with a depth before every height for
3-D. The fields cannot be split on their separators alone: there are one or three layouts, and dtypes may be joined.
Source: MIOpen ``src/conv/problem_description.cpp`` (``Serialize``), as of 2024-10.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

# MIOpen's names of dtypes (``GetDataTypeName``); FP8 and BF8 are the 8-bit floats.
DTYPES = ("FP32", "FP16", "BF16", "INT8", "INT32", "INT64", "FP64", "FP8", "BF8")

_N = r"(?:0|[1-9][0-9]{0,17})"  # what fits into MIOpen's 64 bits
_DASHED, _CROSSED = rf"({_N}(?:-{_N}){{1,2}})", rf"({_N}(?:x{_N}){{1,2}})"
_TYPE = "|".join(DTYPES)
_LAYOUT = r"[A-Z]{4,5}c?"
_KEY = re.compile(
    rf"({_N})-{_DASHED}-{_CROSSED}-({_N})-{_DASHED}-({_N})-{_CROSSED}-{_CROSSED}-{_CROSSED}-({_N})"
    rf"-({_LAYOUT}(?:-{_LAYOUT}-{_LAYOUT})?)-((?:{_TYPE})(?:(?:{_TYPE})(?:{_TYPE}))?)-([FBW])"
    rf"(?:_g([2-9]|[1-9][0-9]{{1,17}}))?(?:_ci({_TYPE}))?(?:_cw({_TYPE}))?(?:_co({_TYPE}))?"
)
# The shape of a key without its details, for telling a key from a damaged one: later versions may add options at its
# end, and a layout or dtype that is unknown here is no damage.
_D, _X = "[0-9]+", "[0-9]+(?:x[0-9]+){1,2}"
KEY_SHAPE = (
    rf"[1-9][0-9]*(?:-[1-9][0-9]*){{2,3}}-{_X}-{_D}(?:-{_D}){{2,3}}-{_D}-{_X}-{_X}-{_X}-{_D}"
    rf"-{_LAYOUT}(?:-{_LAYOUT}-{_LAYOUT})?-[A-Z]+[0-9]+[A-Z0-9]*-[FBW](?:_[a-z]+[A-Z0-9]*)*"
)
_FIELDS = (
    "in channels",
    "in spatial",
    "filter",
    "out channels",
    "out spatial",
    "batch",
    "pad",
    "stride",
    "dilation",
    "bias",
    "layout",
    "dtype",
    "direction",
)


class ProblemError(ValueError):
    """A text or dims that are no convolution problem; the message names the field and what is allowed."""


@lru_cache(maxsize=1 << 10)
def parse_dtypes(text: str) -> tuple[str, str, str]:
    """Dtypes of three tensors from ``FP16`` or ``INT8INT8INT32``; raises ProblemError on any other text."""
    match = re.fullmatch(f"({_TYPE})(?:({_TYPE})({_TYPE}))?", text.upper())
    if not match:
        raise ProblemError(
            f"dtype {text!r}: allowed are {', '.join(DTYPES)}, or three of them joined as in INT8INT8INT32"
        )
    first, second, third = match.groups()
    return first, second or first, third or first


class KeyFields(NamedTuple):
    """The fields of a key, in its own roles: "in" is the gradient in a backward key."""

    in_channels: int
    in_spatial: tuple[int, ...]
    filter: tuple[int, ...]
    out_channels: int
    out_spatial: tuple[int, ...]
    batch: int
    pad: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    bias: int
    layouts: tuple[str, str, str]
    dtypes: tuple[str, str, str]
    direction: str
    groups: int
    casts: tuple[str | None, str | None, str | None]


def parse_key(key: str) -> KeyFields:
    """Takes a key apart; raises ProblemError naming the first field that is wrong."""
    match = _KEY.fullmatch(key)
    if not match:
        raise ProblemError(_diagnosis(key))
    c, in_, filter_, k, out, n, pad, stride, dilation, bias, layout, dtype, direction, groups, *casts = match.groups()
    layouts, dtypes = _layouts(layout), parse_dtypes(dtype)
    if layouts is None:
        raise ProblemError(
            f"key {shortened(key)}: NCHW and NCDHW stand alone for three equal layouts, others are written three times"
        )
    if len(dtype) > 5 and dtypes[0] == dtypes[1] == dtypes[2]:
        raise ProblemError(f"key {shortened(key)}: three equal dtypes are written as one, {dtypes[0]}")
    blocks = [_numbers(block) for block in (in_, filter_, out, pad, stride, dilation)]
    if len(set(map(len, blocks))) > 1:
        raise ProblemError(_diagnosis(key))
    in_spatial, filter_size, out_spatial, pads, strides, dilations = blocks
    return KeyFields(
        int(c),
        in_spatial,
        filter_size,
        int(k),
        out_spatial,
        int(n),
        pads,
        strides,
        dilations,
        int(bias),
        layouts,
        dtypes,
        direction,
        int(groups or 1),
        tuple(casts),  # type: ignore[arg-type]
    )


# Large databases repeat the same few sizes.
@lru_cache(maxsize=1 << 14)
def _numbers(block: str) -> tuple[int, ...]:
    return tuple(map(int, block.replace("x", "-").split("-")))


@lru_cache(maxsize=1 << 10)
def _layouts(text: str) -> tuple[str, str, str] | None:
    """The three layouts, None where MIOpen would have written them another way."""
    first, *others = text.split("-")
    alone = first in ("NCHW", "NCDHW")
    if not others:
        return (first, first, first) if alone else None
    second, third = others
    return None if alone and first == second == third else (first, second, third)


def _diagnosis(key: str) -> str:
    """Which field of a text that is no key is the first one to be wrong."""
    parts, shown = key.split("-"), shortened(key)
    rank = next((at - 1 for at, part in enumerate(parts) if "x" in part), 2)
    if rank not in (2, 3):
        return f"key {shown}: {rank} spatial dims before the filter; allowed: 2 or 3"
    number, crossed = _N, _N + f"x{_N}" * (rank - 1)
    second_layout = parts[2 * rank + 9 : 2 * rank + 10]
    layout_fields = 3 if second_layout and re.fullmatch(_LAYOUT, second_layout[0]) else 1
    expected = [(0, number), *[(1, number)] * rank, (2, crossed), (3, number), *[(4, number)] * rank, (5, number)]
    expected += [(6, crossed), (7, crossed), (8, crossed), (9, number), *[(10, _LAYOUT)] * layout_fields]
    expected += [(11, f"(?:{_TYPE}){{1,3}}"), (12, rf"[FBW](?:_g[0-9]+)?(?:_c[iwo](?:{_TYPE}))*")]
    for (field, pattern), part in zip(expected, parts, strict=False):
        if not re.fullmatch(pattern, part):
            return f"key {shown}: {_FIELDS[field]} is {shortened(part)}"
    if len(parts) < len(expected):
        return f"key {shown} is cut short: no {_FIELDS[expected[len(parts)][0]]}"
    if len(parts) > len(expected):
        return f"key {shown} goes on after its direction: {shortened('-'.join(parts[len(expected) :]))}"
    return f"key {shown} is not as MIOpen writes it: it has two layouts, or one group"


def shortened(text: str) -> str:
    """A text as it may stand in a message: quoted, and not longer than a line."""
    return repr(text if len(text) <= 120 else f"{text[:117]}...")
