"""A convolution problem in MIOpen's sense, and the keys under which MIOpen's databases hold it.

Source of the grammar: MIOpen ``src/conv/problem_description.cpp`` (``Serialize``, ``Visit``) and
``src/convolution_api.cpp`` (roles in each direction), as of 2024-10; observed on MIOpen 3.4.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Literal

from warmup.miopen.keys import ProblemError, parse_key
from warmup.miopen.layouts import DEFAULT, joint_layouts, packed_strides

Direction = Literal["F", "B", "W"]
DIRECTIONS: tuple[Direction, ...] = ("F", "B", "W")


@dataclass(frozen=True)
class ConvProblem:
    """One convolution call, in the roles of the *caller*: x and y are its input and output whatever the direction.

    The key of a backward problem swaps these roles and a transposed convolution swaps its direction; that happens in
    ``find_db_key`` alone. Spatial tuples are (H, W) or (D, H, W). ``layouts``, ``dtypes`` and ``casts`` are of x, w and
    y in this order. ``direction`` is the caller's: F, B (gradient of x) or W (gradient of w). ``out_spatial`` is part
    of the problem, since a transposed convolution with output padding cannot be told by its other numbers.
    """

    batch: int
    in_channels: int
    in_spatial: tuple[int, ...]
    out_channels: int
    out_spatial: tuple[int, ...]
    filter: tuple[int, ...]
    pad: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    transposed: bool = False
    direction: Direction = "F"
    layouts: tuple[str, str, str] = ("NCHW", "NCHW", "NCHW")
    dtypes: tuple[str, str, str] = ("FP32", "FP32", "FP32")
    casts: tuple[str | None, str | None, str | None] = (None, None, None)
    bias: int = 0

    def __post_init__(self) -> None:
        rank = len(self.in_spatial)
        if rank not in (2, 3):
            raise ProblemError(f"a convolution has 2 or 3 spatial dims, not {rank}")
        spatial = (self.out_spatial, self.filter, self.pad, self.stride, self.dilation)
        if any(len(values) != rank for values in spatial):
            raise ProblemError(f"out, filter, pad, stride and dilation need {rank} numbers each, got {spatial}")
        counts = (self.batch, self.in_channels, self.out_channels, self.groups)
        sizes = (*counts, *self.in_spatial, *self.out_spatial, *self.filter, *self.stride, *self.dilation)
        if min(sizes) < 1 or min(self.pad) < 0:
            raise ProblemError("every size, stride, dilation and the number of groups must be at least 1, every pad 0")
        if self.in_channels % self.groups or self.out_channels % self.groups:
            raise ProblemError(
                f"{self.groups} groups do not divide {self.in_channels} in and {self.out_channels} out channels"
            )

    @classmethod
    def from_dims(
        cls,
        x: Sequence[int],
        w: Sequence[int],
        *,
        pad: Sequence[int],
        stride: Sequence[int],
        dilation: Sequence[int],
        groups: int = 1,
        transposed: bool = False,
        output_pad: Sequence[int] = (),
        direction: Direction = "F",
        dtypes: str | tuple[str, str, str] = "FP32",
        layouts: str | tuple[str, str, str] | None = None,
        strides: tuple[Sequence[int], Sequence[int], Sequence[int]] | None = None,
        casts: tuple[str | None, str | None, str | None] = (None, None, None),
    ) -> ConvProblem:
        """The problem of a call with these tensors, with the layouts that MIOpen would put into the key.

        ``x`` is (N, C, (D,) H, W) and ``w`` is (K, C/groups, (Z,) Y, X), or (C, K/groups, ...) when transposed, in this
        order whatever the layouts are. ``strides`` of x, w and y, in elements, where the tensors are not packed in
        ``layouts``. Raises ProblemError where the channels do not fit.
        """
        rank = len(x) - 2
        if rank not in (2, 3) or len(w) != len(x):
            raise ProblemError(f"x and w need 4 or 5 dims each, got {tuple(x)} and {tuple(w)}")
        channels = (w[0], w[1] * groups) if transposed else (w[1] * groups, w[0])
        if x[1] != channels[0]:
            raise ProblemError(
                f"x {tuple(x)} has {x[1]} channels, w {tuple(w)} with {groups} groups takes {channels[0]}"
            )
        sizes = zip(x[2:], w[2:], pad, stride, dilation, output_pad or (0,) * rank, strict=True)
        y = (x[0], channels[1], *(output_size(*size, transposed=transposed) for size in sizes))
        labels = layouts or DEFAULT[rank]
        labels = (labels, labels, labels) if isinstance(labels, str) else labels
        strides = strides or tuple(packed_strides(d, label) for d, label in zip((x, w, y), labels, strict=True))  # type: ignore[assignment]
        return cls(
            batch=x[0],
            in_channels=x[1],
            in_spatial=tuple(x[2:]),
            out_channels=y[1],
            out_spatial=tuple(y[2:]),
            filter=tuple(w[2:]),
            pad=tuple(pad),
            stride=tuple(stride),
            dilation=tuple(dilation),
            groups=groups,
            transposed=transposed,
            direction=direction,
            layouts=joint_layouts(strides, labels),  # type: ignore[arg-type]
            dtypes=(dtypes, dtypes, dtypes) if isinstance(dtypes, str) else dtypes,
            casts=casts,
        )

    @property
    def spatial_dims(self) -> int:
        """2 or 3."""
        return len(self.in_spatial)

    @property
    def x_dims(self) -> tuple[int, ...]:
        """Dims of x in the order N, C, (D,) H, W."""
        return (self.batch, self.in_channels, *self.in_spatial)

    @property
    def w_dims(self) -> tuple[int, ...]:
        """Dims of w: K, C/groups, (Z,) Y, X; C, K/groups, (Z,) Y, X for a transposed convolution."""
        outer, inner = self.out_channels, self.in_channels
        if self.transposed:
            outer, inner = inner, outer
        return (outer, inner // self.groups, *self.filter)

    @property
    def y_dims(self) -> tuple[int, ...]:
        """Dims of y in the order N, K, (D,) H, W."""
        return (self.batch, self.out_channels, *self.out_spatial)

    @property
    def output_pad(self) -> tuple[int, ...]:
        """What ``out_spatial`` has beyond the formula: 0s for a plain convolution that MIOpen would compute itself."""
        sizes = zip(self.in_spatial, self.filter, self.pad, self.stride, self.dilation, strict=True)
        formula = (output_size(*size, transposed=self.transposed) for size in sizes)
        return tuple(out - expected for out, expected in zip(self.out_spatial, formula, strict=True))

    @property
    def multiply_adds(self) -> int:
        """Multiply-add operations of the plain algorithm; the same in every direction."""
        pixels = prod(self.in_spatial if self.transposed else self.out_spatial)
        return self.batch * pixels * self.in_channels * self.out_channels * prod(self.filter) // self.groups

    @property
    def key_direction(self) -> Direction:
        """The direction as the databases name it: a transposed convolution is its twin's backward pass."""
        return {"F": "B", "B": "F", "W": "W"}[self.direction] if self.transposed else self.direction  # type: ignore[return-value]

    @property
    def _swapped(self) -> bool:
        """Whether the databases call the caller's y "in": the gradient is the input of a backward problem."""
        return self.direction == "B" or (self.direction == "W" and not self.transposed)

    def find_db_key(self) -> str:
        """The key of find-db, fusion and network records: ``64-56-56-3x3-64-56-56-16-1x1-1x1-1x1-0-NCHW-FP16-F_g2``."""
        sides = [(self.in_channels, self.in_spatial), (self.out_channels, self.out_spatial)]
        layouts, dtypes, casts = self.layouts, self.dtypes, self.casts
        if self._swapped:
            sides.reverse()
            layouts, dtypes, casts = layouts[::-1], dtypes[::-1], casts[::-1]
        (in_channels, in_spatial), (out_channels, out_spatial) = sides
        layout = "-".join(layouts)
        if layouts[0] == layouts[1] == layouts[2] and layouts[0] in ("NCHW", "NCDHW"):
            layout = layouts[0]
        key = (
            f"{in_channels}-{_join('-', in_spatial)}-{_join('x', self.filter)}-{out_channels}-{_join('-', out_spatial)}"
            f"-{self.batch}-{_join('x', self.pad)}-{_join('x', self.stride)}-{_join('x', self.dilation)}-{self.bias}"
            f"-{layout}-{_joint_dtype(dtypes)}-{self.key_direction}"
        )
        if self.groups != 1:
            key += f"_g{self.groups}"
        for tag, cast in zip(("_ci", "_cw", "_co"), casts, strict=True):
            if cast:
                key += tag + cast
        return key

    @classmethod
    def from_find_db_key(cls, key: str) -> ConvProblem:
        """The plain problem that MIOpen writes as ``key``; raises ProblemError naming the field that is wrong.

        A key does not tell a transposed convolution from the plain one whose backward pass it is, so the result is
        never transposed: equal work under an equal key.
        """
        fields = parse_key(key)
        sides = [(fields.in_channels, fields.in_spatial), (fields.out_channels, fields.out_spatial)]
        layouts, dtypes, casts = fields.layouts, fields.dtypes, fields.casts
        if fields.direction != "F":
            sides.reverse()
            layouts, dtypes, casts = layouts[::-1], dtypes[::-1], casts[::-1]
        (in_channels, in_spatial), (out_channels, out_spatial) = sides
        try:
            return cls(
                batch=fields.batch,
                in_channels=in_channels,
                in_spatial=in_spatial,
                out_channels=out_channels,
                out_spatial=out_spatial,
                filter=fields.filter,
                pad=fields.pad,
                stride=fields.stride,
                dilation=fields.dilation,
                groups=fields.groups,
                direction=fields.direction,  # type: ignore[arg-type]
                layouts=layouts,  # type: ignore[arg-type]
                dtypes=dtypes,  # type: ignore[arg-type]
                casts=casts,  # type: ignore[arg-type]
                bias=fields.bias,
            )
        except ProblemError as error:
            raise ProblemError(f"key {key!r}: {error}") from None

    def perf_db_key(self) -> str:
        """The key of a text perf-db: 24 values joined by ``x``, of which the last three are words."""
        return "x".join(map(str, self.perf_db_fields()))

    def perf_db_fields(self) -> tuple[int | str, ...]:
        """The 24 values of a perf-db key, in the order of ``perfdb.COLUMNS``.

        Out spatial dims and the layouts of w and of the problem's output are not among them.
        """
        in_channels, in_spatial, out_channels = self.in_channels, self.in_spatial, self.out_channels
        layouts, dtypes = self.layouts, self.dtypes
        if self._swapped:
            in_channels, in_spatial, out_channels = out_channels, self.out_spatial, in_channels
            layouts, dtypes = layouts[::-1], dtypes[::-1]
        return (
            self.spatial_dims,
            in_channels,
            *_height_first(in_spatial, 1),
            *_height_first(self.filter, 1),
            out_channels,
            self.batch,
            *_height_first(self.pad, 0),
            *_height_first(self.stride, 0),
            *_height_first(self.dilation, 0),
            self.bias,
            self.groups,
            layouts[0],
            _joint_dtype(dtypes),
            self.key_direction,
        )


def output_size(
    size: int, filter: int, pad: int, stride: int, dilation: int, output_pad: int = 0, *, transposed: bool = False
) -> int:
    """One spatial dim of y as MIOpen computes it (``GetForwardOutputTensorWithLayout``); never below 1."""
    reach = 1 + dilation * (filter - 1)
    if transposed:
        return max(1, stride * (size - 1) + reach - 2 * pad + output_pad)
    # C++ division truncates towards zero; for a filter beyond the padded input the clamp hides the difference.
    return max(1, (size - reach + 2 * pad) // stride + 1)


@lru_cache(maxsize=1 << 14)
def _join(separator: str, values: tuple[int, ...]) -> str:
    return separator.join(map(str, values))


def _joint_dtype(dtypes: Sequence[str]) -> str:
    return dtypes[0] if dtypes[0] == dtypes[1] == dtypes[2] else "".join(dtypes)


def _height_first(values: tuple[int, ...], missing: int) -> tuple[int, ...]:
    """(H, W, D) of (H, W) or (D, H, W)."""
    return (*values[-2:], values[0] if len(values) == 3 else missing)
