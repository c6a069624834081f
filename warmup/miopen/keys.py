"""The grammar of a find-db key: which texts are keys, and which field of a text that is none is wrong.

``C-H-W-YxX-K-OH-OW-N-PxQ-UxV-LxJ-BIAS-LAYOUT-DTYPE-DIR[_gG][_ciT][_cwT][_coT]``, with a depth before every height for
3-D. The fields cannot be split on their separators alone: there are one or three layouts, and dtypes may be joined.
Source: MIOpen ``src/conv/problem_description.cpp`` (``Serialize``), as of 2024-10.
"""

from __future__ import annotations

import re

# MIOpen's names of dtypes (``GetDataTypeName``); FP8 and BF8 are the 8-bit floats.
DTYPES = ("FP32", "FP16", "BF16", "INT8", "INT32", "INT64", "FP64", "FP8", "BF8")

_N = r"(0|[1-9][0-9]*)"
_TYPE = "|".join(DTYPES)
_LAYOUT = r"[A-Z]{4,5}c?"


def _key_pattern(spatial: int) -> re.Pattern[str]:
    dashed, crossed = "-".join([_N] * spatial), "x".join([_N] * spatial)
    return re.compile(
        f"{_N}-{dashed}-{crossed}-{_N}-{dashed}-{_N}-{crossed}-{crossed}-{crossed}-{_N}"
        f"-({_LAYOUT})(?:-({_LAYOUT})-({_LAYOUT}))?-({_TYPE})(?:({_TYPE})({_TYPE}))?-([FBW])"
        f"(?:_g([2-9]|[1-9][0-9]+))?(?:_ci({_TYPE}))?(?:_cw({_TYPE}))?(?:_co({_TYPE}))?"
    )


_KEYS = {2: _key_pattern(2), 3: _key_pattern(3)}
# The shape of a key without its details, for telling a key from a damaged one: later versions may add options at its
# end, and a layout or dtype that is unknown here is no damage.
KEY_SHAPE = (
    r"[1-9][0-9]*(?:-[1-9][0-9]*){2,3}-[0-9]+(?:x[0-9]+){1,2}-[0-9]+(?:-[0-9]+){2,3}-[0-9]+-[0-9]+(?:x[0-9]+){1,2}-[0-9]+(?:x[0-9]+){1,2}"
    r"-[0-9]+(?:x[0-9]+){1,2}-[0-9]+-[A-Z]{4,5}c?(?:-[A-Z]{4,5}c?-[A-Z]{4,5}c?)?-[A-Z]+[0-9]+[A-Z0-9]*-[FBW](?:_[a-z]+[A-Z0-9]*)*"
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


def parse_dtypes(text: str) -> tuple[str, str, str]:
    """Dtypes of three tensors from ``FP16`` or ``INT8INT8INT32``; raises ProblemError on any other text."""
    match = re.fullmatch(f"({_TYPE})(?:({_TYPE})({_TYPE}))?", text.upper())
    if not match:
        raise ProblemError(
            f"dtype {text!r}: allowed are {', '.join(DTYPES)}, or three of them joined as in INT8INT8INT32"
        )
    first, second, third = match.groups()
    return first, second or first, third or first


def parse_key(key: str) -> tuple[int, tuple[str | None, ...]]:
    """The number of spatial dims and all fields as text, in the order of the key; raises ProblemError."""
    for rank, pattern in _KEYS.items():
        match = pattern.fullmatch(key)
        if match:
            return rank, match.groups()
    raise ProblemError(_diagnosis(key))


def _diagnosis(key: str) -> str:
    """Which field of a text that is no key is the first one to be wrong."""
    parts = key.split("-")
    rank = next((at - 1 for at, part in enumerate(parts) if "x" in part), 2)
    if rank not in _KEYS:
        return f"key {key!r}: {rank} spatial dims before the filter; allowed: 2 or 3"
    number, crossed = r"[0-9]+", r"[0-9]+" + r"x[0-9]+" * (rank - 1)
    second_layout = parts[2 * rank + 9 : 2 * rank + 10]
    layout_fields = 3 if second_layout and re.fullmatch(_LAYOUT, second_layout[0]) else 1
    expected = [(0, number), *[(1, number)] * rank, (2, crossed), (3, number), *[(4, number)] * rank, (5, number)]
    expected += [(6, crossed), (7, crossed), (8, crossed), (9, number), *[(10, _LAYOUT)] * layout_fields]
    expected += [(11, f"(?:{_TYPE}){{1,3}}"), (12, rf"[FBW](?:_g[0-9]+)?(?:_c[iwo](?:{_TYPE}))*")]
    for (field, pattern), part in zip(expected, parts, strict=False):
        if not re.fullmatch(pattern, part):
            return f"key {key!r}: {_FIELDS[field]} is {part!r}"
    if len(parts) < len(expected):
        return f"key {key!r} is cut short: no {_FIELDS[expected[len(parts)][0]]}"
    if len(parts) > len(expected):
        return f"key {key!r} goes on after its direction: {'-'.join(parts[len(expected) :])!r}"
    return f"key {key!r} has a number with a leading zero, or two layouts"
