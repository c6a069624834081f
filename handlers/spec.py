"""A model's description, ``model.yaml``: what it is, what runs it, which shapes it may be asked for, and its limits.

Every key is checked; an unknown key or a bad value is an error that names the file, the key and what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from handlers.document import quoted, read_mapping, shortened
from handlers.errors import ModelError
from handlers.shapes import Shape, TensorShape, dtype_name

BATCH = "batch"  # the axis along which the server may join requests


def _short_dtype(name: str) -> str:
    return dtype_name(name)


_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


def _bytes(value: object) -> object:
    """Bytes of ``2.5GB`` or ``512 MiB``; anything else is left for pydantic to judge."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,15})?)\s*([A-Za-z]+)", value.strip())
    if not match or match[2].upper() not in _UNITS:
        raise ValueError("expected bytes, or a number with B, KB, MB, GB, KiB, MiB or GiB, such as 2.5GB")
    return round(float(match[1]) * _UNITS[match[2].upper()])


def _number(value: object) -> object:
    """Refuses true and false, which Python would take for 1 and 0."""
    if isinstance(value, bool):
        raise ValueError("expected a number")
    return value


Dtype = Annotated[str, AfterValidator(_short_dtype)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
Axis = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")]
Whole = Annotated[int, BeforeValidator(_number)]
Real = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]
Size = Annotated[Whole, Field(ge=1, le=1 << 31)]
Weight = Annotated[Real, Field(gt=0, le=1e12)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TensorSpec(_Strict):
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


_COMMON = {"kind", "source", "threads"}
_ENGINE_KEYS = {
    "torch": _COMMON
    | {"weights", "arguments", "precision", "execution", "dynamic_shapes", "channels_last"}
    | {"fold_batchnorm", "fuse_activations", "pointwise_as_matmul", "graph_memory", "search", "tf32"},
    "onnx": _COMMON | {"precision", "providers", "options", "min_placement"},
    "python": _COMMON | {"arguments"},
}


class EngineSpec(_Strict):
    """What executes the model.

    ``source`` is a path relative to the model's folder, or ``package:NAME/PATH`` for a file that an installed package
    ships. Torch sources are ``.pt2`` (torch.export), ``.ts`` (TorchScript), or ``MODULE.py:CLASS`` in the folder with
    ``weights`` in safetensors format (or ``random:SEED``); ONNX sources are ``.onnx``. Pickles are refused.

    ``dynamic_shapes`` has torch.compile make code for all shapes at once, in place of some for each.

    ``channels_last`` puts weights and images into that layout; ``auto`` captures every shape in both and keeps the
    quicker graph.

    On a GPU: ``fold_batchnorm`` folds normalisations into the layers before them where graphs are captured, and
    ``fuse_activations`` has cuDNN's convolutions compute the ReLU behind them (``graph`` on NVIDIA);
    ``pointwise_as_matmul`` computes convolutions of one pixel as matrix products there;
    ``graph_memory`` bounds what captured graphs may take (bytes, or as ``2.5GB`` or ``2GiB``); ``search`` makes cuDNN
    try its algorithms whenever a shape is captured, and a sweep on AMD tune matrix products; ``tf32`` lets fp32 models
    multiply in TF32.

    ``min_placement`` is the least share of an ONNX graph's nodes that a provider other than the CPU's must take. Not
    given, it is all of them, but for those that compute shapes, which the provider's own rules send to the CPU.
    """

    kind: Literal["torch", "onnx", "python"]
    source: str
    weights: str | None = None
    arguments: dict[str, int | float | str | bool] = {}
    precision: Literal["fp32", "fp16", "bf16"] = "fp32"
    execution: Literal["eager", "compile", "graph", "compile+graph"] = "eager"
    dynamic_shapes: bool = False
    channels_last: bool | Literal["auto"] = False
    fold_batchnorm: bool = False
    fuse_activations: bool = False
    pointwise_as_matmul: bool = False
    providers: tuple[Literal["migraphx", "rocm", "cuda", "cpu"], ...] = ("cpu",)
    options: dict[str, dict[str, str]] = {}
    min_placement: Annotated[Real, Field(ge=0, le=1)] | None = None
    threads: Annotated[Whole, Field(ge=0, le=1024)] = 0
    graph_memory: Annotated[Whole, BeforeValidator(_bytes), Field(ge=1)] | None = None
    search: bool = False
    tf32: bool = False

    @property
    def layouts(self) -> tuple[bool, ...]:
        """Whether weights and images are in ``channels_last``; both, where the quicker is to be found out."""
        return (False, True) if self.channels_last == "auto" else (bool(self.channels_last),)

    @property
    def rewritten(self) -> bool:
        """Whether what is captured is not the model as it is written."""
        return self.fold_batchnorm or self.fuse_activations or self.pointwise_as_matmul

    @property
    def compiles(self) -> bool:
        """Whether torch.compile makes the code of planned shapes."""
        return self.execution in ("compile", "compile+graph")

    @property
    def captures(self) -> bool:
        """Whether planned shapes get a captured graph."""
        return self.execution in ("graph", "compile+graph")

    @field_validator("source", "weights")
    @classmethod
    def _never_a_pickle(cls, value: str | None) -> str | None:
        if value is not None and Path(value).suffix in {".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt"}:
            raise ValueError(f"{value!r} may hold a pickle; use .pt2, .ts, .onnx or safetensors weights")
        return value

    @model_validator(mode="after")
    def _keys_of_its_kind(self) -> EngineSpec:
        allowed = _ENGINE_KEYS[self.kind]
        foreign = sorted(self.model_fields_set - allowed)
        if foreign:
            raise ValueError(f"{', '.join(foreign)}: not of kind {self.kind}, which has {', '.join(sorted(allowed))}")
        return self

    @model_validator(mode="after")
    def _compiles_for_all_shapes(self) -> EngineSpec:
        if self.dynamic_shapes and not self.compiles:
            raise ValueError("dynamic_shapes needs execution compile or compile+graph")
        return self

    @model_validator(mode="after")
    def _measures_layouts_of_graphs(self) -> EngineSpec:
        if self.channels_last == "auto" and self.execution != "graph":
            raise ValueError("channels_last: auto needs execution graph, for which both layouts are measured")
        return self

    @model_validator(mode="after")
    def _rewrites_what_is_checked(self) -> EngineSpec:
        if self.rewritten and self.source.endswith((".pt2", ".ts")):
            raise ValueError(f"{self.source} is no module of layers: fold and fuse before it is exported")
        for key in ("fold_batchnorm", "pointwise_as_matmul"):
            if getattr(self, key) and not self.captures:
                raise ValueError(f"{key} needs execution graph or compile+graph, where its outputs are checked")
        if self.pointwise_as_matmul and self.channels_last is not True:
            raise ValueError("pointwise_as_matmul needs channels_last: true, where pixels are the rows of a matrix")
        if self.fuse_activations and self.execution != "graph":
            raise ValueError(
                "fuse_activations needs execution graph, where its outputs are checked; compilers fuse anyway"
            )
        return self


class AxisRange(_Strict):
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


class WeightedShape(_Strict):
    """One shape of an explicit list, with the share of traffic that is expected to ask for it."""

    shape: str
    weight: Weight = 1.0

    @field_validator("shape")
    @classmethod
    def _canonical(cls, value: str) -> str:
        return Shape.parse(value).text


class ShapesSpec(_Strict):
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


class BatchingSpec(_Strict):
    """How long a request may wait for company (``max_delay_ms``) and how many may wait (``queue``)."""

    max_delay_ms: Annotated[Real, Field(ge=0, le=10_000)] = 2.0
    queue: Annotated[Whole, Field(ge=1, le=1_000_000)] = 256


class LimitsSpec(_Strict):
    """The largest request body in bytes, and the longest a request may take in seconds."""

    request_bytes: Annotated[Whole, Field(ge=1, le=1 << 34)] = 16 << 20
    timeout_s: Annotated[Real, Field(gt=0, le=86_400)] = 30.0


class ModelSpec(_Strict):
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
    learn: bool = False
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
    model: type[BaseModel] = ModelSpec
    for part in location[:-1]:
        field = model.model_fields.get(str(part))
        annotation = field.annotation if field else None
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            model = annotation
        elif part in ("inputs", "outputs"):
            model = TensorSpec
        elif part == "list":
            model = WeightedShape
    return sorted(field.alias or name for name, field in model.model_fields.items())
