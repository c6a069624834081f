"""The models that are measured, as folders of a model store."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.variants import variant

_BENCHMARKS = Path(__file__).parent.parent
_STORE = _BENCHMARKS.parent / "model_store"


@dataclass(frozen=True)
class Subject:
    """One model, its shapes in the order of Zipf's law, and how many requests a measurement takes: ``first`` with one
    client, ``many`` from each of the client processes, ``full`` of them with the largest batch."""

    name: str
    source: Path
    precision: str
    batches: tuple[int, ...]
    sides: tuple[int, ...]
    first: int
    many: int
    full: int
    captured: str = "graph"  # the execution that is compared to ``eager``
    rewrites: tuple[str, ...] = ()  # keys of model.yaml: what is rewritten before it is captured
    together: bool = False  # servers take minutes to start (cuDNN's first calls), so they are started side by side

    @property
    def shapes(self) -> list[str]:
        dtype = self.precision
        return [f"images={batch}x3x{side}x{side}:{dtype}" for batch in self.batches for side in self.sides]

    @property
    def weights(self) -> list[float]:
        return [1 / rank for rank in range(1, len(self.shapes) + 1)]

    def executed(self, execution: str) -> Subject:
        """This model with its graphs made otherwise; the one for any machine has none."""
        return self if self.captured == "eager" else replace(self, captured=execution)

    def rewritten(self, execution: str) -> tuple[str, ...]:
        """Its rewrites; compilers fuse by themselves."""
        return tuple(key for key in self.rewrites if key != "fuse_activations" or execution == "graph")

    def store(self, folder: Path, execution: str) -> Path:
        """A model store with this model; only the execution differs from one to the other."""
        with variant(self.source, folder) as document:
            document["engine"] |= {"precision": self.precision, "channels_last": True, "execution": execution}
            if execution != "eager":
                document["engine"] |= dict.fromkeys(self.rewritten(execution), True)
            document["inputs"][0]["dtype"] = document["outputs"][0]["dtype"] = self.precision
            listed = zip(self.shapes, self.weights, strict=True)
            document["shapes"] = {"list": [{"shape": shape, "weight": weight} for shape, weight in listed]}
            document["batching"] = {"max_delay_ms": 2, "queue": 256}
        return folder


_GPU = {
    "precision": "fp16",
    "batches": (1, 2, 4, 8),
    "sides": (160, 192, 224, 256, 288, 320, 384, 448),
    "first": 1500,
    "many": 2000,
    "full": 700,
}
SUBJECTS = {
    "resnet50": Subject("resnet50", _STORE / "resnet50", **_GPU, rewrites=("fold_batchnorm", "fuse_activations")),
    "efficientnet-b0": Subject(
        "efficientnet-b0",
        _BENCHMARKS / "models" / "efficientnet-b0",
        **_GPU,
        rewrites=("fold_batchnorm", "pointwise_as_matmul"),
        together=True,
    ),
}
# The same steps on a CPU, where there are no graphs: whether they run, not how fast.
DRY = Subject("resnet18", _BENCHMARKS / "models" / "resnet18", "fp32", (1, 2), (32, 64), 60, 40, 20, captured="eager")
