"""A model's description, ``model.yaml``: what it is, what runs it, which shapes it may be asked for, and its limits.

Every key is checked; an unknown key or a bad value is an error that names the file, the key and what is allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from handlers.document import quoted, read_mapping, shortened
from handlers.engine_spec import EngineSpec
from handlers.errors import ModelError
from handlers.fields import Axis, Dtype, Flag, Name, Part, Real, Size, Weight, Whole
from handlers.shapes import Shape, TensorShape

BATCH = "batch"  # the axis along which the server may join requests


class TensorSpec(Part):
    """One input or output: dims are sizes or names of axes (``[batch, 3, height, width]``)."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.\-/]*$")]
    dtype: Dtype
    dims: tuple[Size | Axis, ...]

    def shape(self, sizes: dict[str, int]) -> TensorShape:
        """The concrete shape where every axis has its size; raises KeyError on an axis without one."""
        return TensorShape(self.name, tuple(d if isinstance(d, int) else sizes[d] for d in self.dims), self.dtype)

    def sizes(self, dims: tuple[int, ...]) -> dict[str, int] | None:
        """The axis sizes that turn this description into ``dims``, or None where they do not fit."""
        if len(dims) != len(self.dims):
            return None
        found: dict[str, int] = {}
        for mine, theirs in zip(self.dims, dims, strict=True):
            if isinstance(mine, int):
                if mine != theirs:
                    return None
            elif found.setdefault(mine, theirs) != theirs:
                return None
        return found


class AxisRange(Part):
    """Sizes from ``from`` to ``to`` inclusive in steps of ``step``."""

    start: Size = Field(alias="from")
    stop: Size = Field(alias="to")
    step: Size

    @model_validator(mode="after")
    def _ordered(self) -> AxisRange:
        if self.stop < self.start:
            raise ValueError(f"'to' ({self.stop}) is below 'from' ({self.start})")
        return self

    def values(self) -> tuple[int, ...]:
        return tuple(range(self.start, self.stop + 1, self.step))


class WeightedShape(Part):
    """One shape of an explicit list, with the share of traffic that is expected to ask for it."""

    shape: str
    weight: Weight = 1.0

    @field_validator("shape")
    @classmethod
    def _canonical(cls, value: str) -> str:
        return Shape.parse(value).text


class ShapesSpec(Part):
    """The shapes of the plan, from exactly one of ``grid``, ``list`` and ``learned``.

    ``grid`` maps every axis to its sizes and takes their product; ``weights`` gives sizes of an axis a relative
    frequency (1 where absent). ``learned`` is a JSON file, relative to the model's folder, of shape text to count.
    ``pad`` names the axes along which an input may be padded up to a planned size.
    """

    grid: dict[Axis, tuple[Size, ...] | AxisRange] | None = None
    list: tuple[WeightedShape, ...] | None = None
    learned: str | None = None
    pad: tuple[Axis, ...] = ()
    weights: dict[Axis, dict[Size, Weight]] = {}

    @field_validator("list", mode="before")
    @classmethod
    def _plain_texts(cls, value: object) -> object:
        if isinstance(value, (list, tuple)):
            return [{"shape": item} if isinstance(item, str) else item for item in value]
        return value

    @model_validator(mode="after")
    def _one_source(self) -> ShapesSpec:
        given = [name for name in ("grid", "list", "learned") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"exactly one of grid, list, learned is needed, found {', '.join(given) or 'none'}")
        return self

    @model_validator(mode="after")
    def _each_once(self) -> ShapesSpec:
        seen: set[str] = set()
        for item in self.list or ():
            if item.shape in seen:
                raise ValueError(f"list has {item.shape} twice; give one of them the sum of the weights")
            seen.add(item.shape)
        return self

    @model_validator(mode="after")
    def _weighted_sizes_planned(self) -> ShapesSpec:
        if self.weights and self.grid is None:
            raise ValueError(f"weights are of the sizes of a grid; {'list' if self.list else 'learned'} has its own")
        for axis, sizes in (self.grid or {}).items():
            weights = self.weights.get(axis, {})
            unknown = sorted(weights.keys() - set(sizes.values() if isinstance(sizes, AxisRange) else sizes))
            if unknown:
                raise ValueError(f"weights.{axis} names {unknown}, which grid.{axis} does not have")
        return self


class BatchingSpec(Part):
    """How long a request may wait for company (``max_delay_ms``) and how many may wait (``queue``)."""

    max_delay_ms: Annotated[Real, Field(ge=0, le=10_000)] = 2.0
    queue: Annotated[Whole, Field(ge=1, le=1_000_000)] = 256


class LimitsSpec(Part):
    """The largest request body in bytes, and the longest a request may take in seconds."""

    request_bytes: Annotated[Whole, Field(ge=1, le=1 << 34)] = 16 << 20
    timeout_s: Annotated[Real, Field(gt=0, le=86_400)] = 30.0


class ModelSpec(Part):
    """The whole ``model.yaml``."""

    name: Name
    version: Name = "1"
    handler: str = "tensors"
    engine: EngineSpec
    inputs: tuple[TensorSpec, ...] = Field(min_length=1)
    outputs: tuple[TensorSpec, ...] = ()
    shapes: ShapesSpec
    cold: Literal["pad", "run", "reject"] = "run"
    batching: BatchingSpec = BatchingSpec()
    limits: LimitsSpec = LimitsSpec()
    ready_coverage: Annotated[Real, Field(ge=0, le=1)] = 1.0
    tolerance: Annotated[Real, Field(gt=0, le=1)] | None = None
    learn: Flag = False
    learn_shapes: Annotated[Whole, Field(ge=1, le=1024)] = 16

    @field_validator("inputs", "outputs")
    @classmethod
    def _names_differ(cls, tensors: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        names = [tensor.name for tensor in tensors]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"more than one is named {', '.join(twice)}")
        return tensors

    @model_validator(mode="after")
    def _axes_known(self) -> ModelSpec:
        axes = {dim for tensor in self.inputs for dim in tensor.dims if isinstance(dim, str)}
        for key, named in (
            ("shapes.grid", set(self.shapes.grid or {})),
            ("shapes.pad", set(self.shapes.pad)),
            ("shapes.weights", set(self.shapes.weights)),
        ):
            if named - axes:
                raise ValueError(f"{key} names {sorted(named - axes)}, but the inputs have the axes {sorted(axes)}")
        if self.shapes.grid is not None and axes - set(self.shapes.grid):
            raise ValueError(f"shapes.grid gives no sizes for {sorted(axes - set(self.shapes.grid))}")
        if self.cold == "pad" and not self.shapes.pad:
            raise ValueError("cold: pad needs shapes.pad, the axes along which padding is safe")
        if self.learn and self.cold != "run":
            raise ValueError(f"learn: true needs cold: run; with cold: {self.cold} no shape outside the plan is run")
        if self.learn and self.engine.dynamic_shapes:
            raise ValueError("learn: true needs engine.dynamic_shapes: false; else a plan is proven as a whole")
        return self

    @property
    def batched(self) -> bool:
        """Whether requests may be joined: every input's first axis is ``batch``."""
        return all(tensor.dims[:1] == (BATCH,) for tensor in self.inputs)


def load_spec(folder: Path) -> ModelSpec:
    """Reads ``folder/model.yaml``; raises ModelError naming the file and every key that is wrong."""
    path = folder / "model.yaml"
    document = read_mapping(path)
    try:
        return ModelSpec.model_validate(document)
    except ValidationError as error:
        raise ModelError("\n".join(_describe(path, document, problem) for problem in error.errors())) from error


def _describe(path: Path, document: dict[str, Any], problem: Mapping[str, Any]) -> str:
    key = ".".join(shortened(str(part), 80) for part in problem["loc"]) or "(top)"
    line = f"{path}: {key}: {shortened(problem['msg'].removeprefix('Value error, '))}"
    if problem["type"] == "extra_forbidden":
        line = f"{path}: {key}: unknown key; allowed here: {', '.join(_allowed(problem['loc']))}"
    elif not isinstance(problem.get("input"), (dict, list)):
        line += f" (found {quoted(problem.get('input'))})"
    return line


def _allowed(location: tuple[str | int, ...]) -> list[str]:
    model: type[Part] = ModelSpec
    for part in location[:-1]:
        field = model.model_fields.get(str(part))
        annotation = field.annotation if field else None
        if isinstance(annotation, type) and issubclass(annotation, Part):
            model = annotation
        elif part in ("inputs", "outputs"):
            model = TensorSpec
        elif part == "list":
            model = WeightedShape
    return sorted(field.alias or name for name, field in model.model_fields.items())
