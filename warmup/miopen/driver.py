"""MIOpenDriver's command line as MIOpen logs it and as its users type it, to and from convolution problems.

Source: MIOpen ``src/driver_arguments.cpp`` (what MIOPEN_ENABLE_LOGGING_CMD prints) and ``driver/conv_driver.hpp``
(flags and defaults), as of 2024-10. In a logged line ``-n -c -H -W -k`` are the caller's whatever the direction, and
for a transposed convolution ``-k`` is dim 1 of w, which is the out channels of *one* group.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from warmup.miopen.keys import DTYPES, ProblemError, shortened
from warmup.miopen.layouts import DEFAULT, LayoutError
from warmup.miopen.problem import ConvProblem, Direction

_BASES = {
    "conv": "FP32",
    "convfp16": "FP16",
    "convbfp16": "BF16",
    "convint8": "INT8",
    "convfp8": "FP8",
    "convbfp8": "BF8",
}
_FORWARD_BITS: dict[Direction, int] = {"F": 1, "B": 2, "W": 4}
_CASTS = {"fp32": "FP32", "fp16": "FP16", "bf16": "BF16", "fp8": "FP8", "bf8": "BF8"}

# Long name, short name and default of every flag of the driver's convolution; the driver gives some long names a
# short one that no shell takes without quotes, and takes it all the same.
_FLAGS: dict[str, tuple[str, str]] = {
    "in_layout": ("I", ""),
    "out_layout": ("O", ""),
    "fil_layout": ("f", ""),
    "spatial_dim": ("_", "2"),
    "forw": ("F", "0"),
    "batchsize": ("n", "100"),
    "in_channels": ("c", "3"),
    "in_d": ("!", "32"),
    "in_h": ("H", "32"),
    "in_w": ("W", "32"),
    "out_channels": ("k", "32"),
    "fil_d": ("@", "3"),
    "fil_h": ("y", "3"),
    "fil_w": ("x", "3"),
    "conv_stride_d": ("#", "1"),
    "conv_stride_h": ("u", "1"),
    "conv_stride_w": ("v", "1"),
    "pad_d": ("$", "0"),
    "pad_h": ("p", "0"),
    "pad_w": ("q", "0"),
    "trans_output_pad_d": ("%", "0"),
    "trans_output_pad_h": ("Y", "0"),
    "trans_output_pad_w": ("X", "0"),
    "dilation_d": ("^", "1"),
    "dilation_h": ("l", "1"),
    "dilation_w": ("j", "1"),
    "group_count": ("g", "1"),
    "mode": ("m", "conv"),
    "pad_mode": ("z", "default"),
    "tensor_vect": ("Z", "0"),
    "vector_length": ("L", "1"),
    "in_cast_type": ("U", "-1"),
    "wei_cast_type": ("R", "-1"),
    "out_cast_type": ("T", "-1"),
    # Known, and without effect on which problem is meant.
    "pad_val": ("r", "0"),
    "iter": ("i", "10"),
    "verify": ("V", "1"),
    "verification_cache": ("C", ""),
    "time": ("t", "0"),
    "wall": ("w", "0"),
    "search": ("s", "0"),
    "printconv": ("P", "1"),
    "dump_output": ("o", "0"),
    "in_data": ("d", ""),
    "weights": ("e", ""),
    "bias": ("b", ""),
    "in_bias": ("a", ""),
    "dout_data": ("D", ""),
    "solution": ("S", "-1"),
    "gpualloc": ("G", "0"),
}
_LONG_NAMES = {short: name for name, (short, _) in _FLAGS.items()}


@dataclass(frozen=True)
class DriverLine:
    """What a driver line asks for: one problem for each direction in ``-F``, and what the line leaves open.

    ``ambiguous`` says in words which of the problem's facts the line does not carry and how they were taken.
    """

    problems: tuple[ConvProblem, ...]
    ambiguous: tuple[str, ...]


def driver_line(problem: ConvProblem, *, as_logged: bool = False) -> str:
    """The driver command of the problem.

    With ``as_logged`` exactly what MIOpen logs, which is plain ``conv`` for FP8, BF8 and FP64 and names no casts and no
    output padding; otherwise with the driver's own words for these. Raises ProblemError where the driver has none:
    FP64, mixed types other than INT8 to INT32, or an output that is not what the convolution's numbers give.
    """
    rank, output_pad = problem.spatial_dims, problem.output_pad
    base = next((base for base, dtype in _BASES.items() if dtype == problem.dtypes[0]), None)
    if as_logged:
        base = base if base and base not in ("convfp8", "convbfp8") else "conv"
    elif base is None or (len(set(problem.dtypes)) > 1 and problem.dtypes != ("INT8", "INT8", "INT32")):
        raise ProblemError(f"MIOpenDriver cannot say dtypes {', '.join(problem.dtypes)}; it can {', '.join(_BASES)}")
    elif any(output_pad) and (not problem.transposed or min(output_pad) < 0):
        raise ProblemError(f"MIOpenDriver cannot say an output of {problem.y_dims}: it computes the output itself")
    k = problem.out_channels // problem.groups if problem.transposed else problem.out_channels
    words = ["./bin/MIOpenDriver", base, f"-n {problem.batch} -c {problem.in_channels}"]
    words += _spatial("--in_d -H -W", problem.in_spatial)
    words += [f"-k {k}"]
    words += _spatial("--fil_d -y -x", problem.filter)
    words += _spatial("--pad_d -p -q", problem.pad)
    words += _spatial("--conv_stride_d -u -v", problem.stride)
    words += _spatial("--dilation_d -l -j", problem.dilation)
    words += ["--spatial_dim 3"] if rank == 3 else []
    words += _spatial("--trans_output_pad_d -Y -X", output_pad) if any(output_pad) and not as_logged else []
    for flag, layout in zip(("--in_layout", "--fil_layout", "--out_layout"), problem.layouts, strict=True):
        words += [f"{flag} {layout}"] if layout != DEFAULT[rank] else []
    for flag, cast in zip(("-U", "-R", "-T"), problem.casts, strict=True):
        words += [f"{flag} {_cast_word(cast)}"] if cast and not as_logged else []
    mode = "trans" if problem.transposed else "conv"
    words += [f"-m {mode} -g {problem.groups} -F {_FORWARD_BITS[problem.direction]} -t 1"]
    return " ".join(words)


def from_driver_line(line: str, dtypes: tuple[str, str, str] | None = None) -> DriverLine:
    """The problems of a driver command, taken from a log or typed; what the line leaves out has the driver's default.

    ``dtypes`` of x, w and y decide where the line is ambiguous: ``conv`` is also logged for FP8, BF8 and FP64, and
    ``convint8`` names no output type. A line that says its dtype keeps it. Raises ProblemError naming the flag.
    """
    base, arguments = _split(line)
    flags = _flags(arguments)
    taken, ambiguous = _dtypes(base, dtypes)
    rank = _number(flags, "spatial_dim", minimum=2)
    if rank not in DEFAULT:
        raise ProblemError(f"--spatial_dim {rank}; allowed: 2 or 3")
    if flags["tensor_vect"] != "0" or flags["vector_length"] != "1":
        raise ProblemError("-Z and -L: vectorised tensors have no find-db key that the line could give")
    if flags["mode"] not in ("conv", "trans"):
        raise ProblemError(f"-m {flags['mode']!r}; allowed: conv or trans")
    transposed = flags["mode"] == "trans"
    x = (_number(flags, "batchsize"), _number(flags, "in_channels"), *_triple(flags, "in", rank))
    groups = _number(flags, "group_count")
    k, filter_ = _number(flags, "out_channels"), _triple(flags, "fil", rank)
    if x[1] % groups or (not transposed and k % groups):
        raise ProblemError(f"-g {groups} does not divide -c {x[1]} and -k {k}")
    stride, dilation = _triple(flags, "conv_stride", rank), _triple(flags, "dilation", rank)
    pad = _pad(flags, x[2:], filter_, stride, dilation, transposed)
    output_pad = _triple(flags, "trans_output_pad", rank, minimum=0)
    try:
        problem = ConvProblem.from_dims(
            x,
            (x[1], k, *filter_) if transposed else (k, x[1] // groups, *filter_),
            pad=pad,
            stride=stride,
            dilation=dilation,
            groups=groups,
            transposed=transposed,
            output_pad=output_pad if transposed else (),
            dtypes=taken,
            layouts=_layouts(flags, rank),
            casts=(_cast(flags, "in_cast_type"), _cast(flags, "wei_cast_type"), _cast(flags, "out_cast_type")),
        )
    except LayoutError as error:
        raise ProblemError(str(error)) from None
    bits = _number(flags, "forw", minimum=0)
    if bits > 7:
        raise ProblemError(
            f"-F {bits}; allowed: 0 (all) or a sum of 1 (forward), 2 (backward data), 4 (backward weights)"
        )
    directions = [direction for direction, bit in _FORWARD_BITS.items() if bits & bit or bits == 0]
    return DriverLine(tuple(replace(problem, direction=direction) for direction in directions), ambiguous)


def is_driver_line(text: str) -> bool:
    """Whether a text is meant as a driver command rather than as a key."""
    return "MIOpenDriver" in text or re.match(r"\s*[a-z]\w*\s+-", text) is not None


def _split(line: str) -> tuple[str, list[str]]:
    """The base argument and all words after it; a log's prefix and the path of the program are dropped."""
    words = line.split()
    for at, word in enumerate(words):
        if word.rsplit("/", 1)[-1] == "MIOpenDriver":
            words = words[at + 1 :]
            break
    if not words:
        raise ProblemError("no command after MIOpenDriver")
    if words[0] not in _BASES:
        raise ProblemError(f"{words[0]!r} is not a convolution of MIOpenDriver; allowed: {', '.join(_BASES)}")
    return words[0], words[1:]


def _flags(words: Sequence[str]) -> dict[str, str]:
    """Every flag by its long name; defaults where the line has none."""
    values = {name: default for name, (_, default) in _FLAGS.items()}
    for at in range(0, len(words), 2):
        flag = words[at]
        name = flag[2:] if flag.startswith("--") else _LONG_NAMES.get(flag[1:]) if flag.startswith("-") else None
        if name not in _FLAGS:
            raise ProblemError(f"unknown flag {flag!r} of MIOpenDriver's convolution")
        if at + 1 == len(words):
            raise ProblemError(f"flag {flag!r} has no value")
        values[name] = words[at + 1]
    return values


def _number(flags: dict[str, str], name: str, minimum: int = 1) -> int:
    text = flags[name]
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) < minimum:
        raise ProblemError(f"--{name} (-{_FLAGS[name][0]}) is {shortened(text)}; allowed: whole numbers from {minimum}")
    return int(text)


def _triple(flags: dict[str, str], stem: str, rank: int, minimum: int = 1) -> tuple[int, ...]:
    return tuple(_number(flags, f"{stem}_{axis}", minimum) for axis in "dhw"[3 - rank :])


def _layouts(flags: dict[str, str], rank: int) -> tuple[str, str, str]:
    names = ("in_layout", "fil_layout", "out_layout")
    first, second, third = (flags[name].upper() or DEFAULT[rank] for name in names)
    return first, second, third


def _cast(flags: dict[str, str], name: str) -> str | None:
    word = flags[name]
    if word == "-1":
        return None
    if word not in _CASTS:
        raise ProblemError(f"--{name} is {word!r}; allowed: {', '.join(_CASTS)}")
    return _CASTS[word]


def _cast_word(cast: str) -> str:
    word = next((word for word, name in _CASTS.items() if name == cast), None)
    if word is None:
        raise ProblemError(f"MIOpenDriver cannot say a cast to {cast}; it can {', '.join(_CASTS)}")
    return word


def _pad(
    flags: dict[str, str],
    size: tuple[int, ...],
    filter: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    transposed: bool,
) -> tuple[int, ...]:
    """Pads after ``--pad_mode``, which the driver obeys for plain convolutions without dilation or with 1x1 filters."""
    pad = _triple(flags, "pad", len(size), minimum=0)
    mode = flags["pad_mode"]
    if mode not in ("default", "same", "valid"):
        raise ProblemError(f"--pad_mode (-z) is {mode!r}; allowed: default, same, valid")
    if mode == "default" or transposed or (max(dilation) > 1 and max(filter) > 1):
        return pad
    if mode == "valid":
        return (0,) * len(size)
    missing = (f - (s if n % s == 0 else n % s) for n, f, s in zip(size, filter, stride, strict=True))
    return tuple(max(pixels, 0) // 2 for pixels in missing)


def _dtypes(base: str, wanted: tuple[str, str, str] | None) -> tuple[tuple[str, str, str], tuple[str, ...]]:
    """Dtypes of x, w and y, and what was open about them."""
    dtype = _BASES[base]
    if base == "conv":
        logged_alike = [name for name in DTYPES if name not in _BASES.values() or name in ("FP32", "FP8", "BF8")]
        if wanted and wanted[0] in logged_alike:
            return wanted, ()
        return (dtype, dtype, dtype), ("conv is logged for FP32, FP8, BF8 and FP64 alike; taken as FP32",)
    if base == "convint8":
        if wanted and wanted[0] == dtype:
            return wanted, ()
        return (dtype, dtype, "INT32"), ("convint8 does not name the output's dtype; taken as INT32, not INT8 or FP32",)
    return (dtype, dtype, dtype), ()


def _spatial(names: str, values: tuple[int, ...]) -> list[str]:
    return [f"{name} {value}" for name, value in zip(names.split()[3 - len(values) :], values, strict=True)]
