"""What executes a model: the part ``engine`` of its description."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from handlers.fields import Flag, Part, Real, Space, Whole

_COMMON = {"kind", "source", "threads"}
_ENGINE_KEYS = {
    "torch": _COMMON
    | {"weights", "arguments", "precision", "execution", "dynamic_shapes", "channels_last"}
    | {"fold_batchnorm", "fuse_activations", "pointwise_as_matmul", "graph_memory", "search", "tf32"},
    "onnx": _COMMON | {"precision", "providers", "options", "min_placement"},
    "python": _COMMON | {"arguments"},
}


def _layout(value: object) -> object:
    if not isinstance(value, bool) and value != "auto":
        raise ValueError("expected true, false or auto")
    return value


class EngineSpec(Part):
    """What executes the model.

    ``source`` is a path relative to the model's folder, or ``package:NAME/PATH`` for a file that an installed package
    ships. Torch sources are ``.pt2`` (torch.export), ``.ts`` (TorchScript), or ``MODULE.py:CLASS`` in the folder with
    ``weights`` in safetensors format (or ``random:SEED``); ONNX sources are ``.onnx``. Pickles are refused.

    ``dynamic_shapes`` has torch.compile make code for all shapes at once, in place of some for each; a plan is proven
    as a whole then.

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
    dynamic_shapes: Flag = False
    channels_last: Annotated[bool | Literal["auto"], BeforeValidator(_layout)] = False
    fold_batchnorm: Flag = False
    fuse_activations: Flag = False
    pointwise_as_matmul: Flag = False
    providers: tuple[Literal["migraphx", "rocm", "cuda", "cpu"], ...] = ("cpu",)
    options: dict[str, dict[str, str]] = {}
    min_placement: Annotated[Real, Field(ge=0, le=1)] | None = None
    threads: Annotated[Whole, Field(ge=0, le=1024)] = 0
    graph_memory: Space | None = None
    search: Flag = False
    tf32: Flag = False

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
