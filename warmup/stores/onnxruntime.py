"""ONNX graphs that ONNX Runtime has optimised for this machine: what a start saves is optimising them again.

The engine writes them (``handlers/engines/onnx.py``), one file per graph, provider and version of ONNX Runtime, beside
their place and then renamed. The engine is told the directory by its option ``onnxruntime.optimized_dir``.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path, PurePosixPath

from handlers.spec import ModelSpec
from warmup.stores.store import Phase, Settings
from warmup.stores.tree import TreeStore

# Wire types of protobuf's encoding with the bytes that follow the tag; 0 is a varint, 2 has its length first.
# https://protobuf.dev/programming-guides/encoding/#structure
_FIXED = {1: 8, 5: 4}
_HEAD = 20  # bytes of a tag and a length, each a varint of at most 10


class OnnxRuntimeStore(TreeStore):
    """Filled and read by ONNX models."""

    name = "onnxruntime"

    def applies(self, spec: ModelSpec) -> bool:
        return spec.engine.kind == "onnx"

    def settings(self, phase: Phase, root: Path) -> Settings:
        return Settings(engine={"onnxruntime.optimized_dir": str(root.absolute())})

    def identity(self) -> dict[str, str]:
        return {}  # ONNX Runtime's version and the processor are facts of the node

    def counts(self, path: PurePosixPath) -> bool:
        return not path.name.startswith(".")

    def identical(self, path: Path) -> bytes | None:
        from warmup.stores.structure import structure  # onnx takes longer to import than most commands take

        return structure(path) if path.suffix == ".onnx" else None

    def damage(self, path: Path) -> str | None:
        size = path.stat().st_size
        if size == 0:
            return "empty"
        if path.suffix != ".onnx":
            return None
        with path.open("rb") as file:
            position = 0
            while position < size:
                file.seek(position)
                step = _field_size(file.read(_HEAD))
                if step is None:
                    return f"not an ONNX file: no field at byte {position}"
                position += step
        return f"cut short: {size} bytes, its fields tell of {position}" if position > size else None


def provider_library(provider: str) -> Path | None:
    """The library of a provider in the ONNX Runtime that is installed, None where it has none. Imports nothing."""
    package = importlib.util.find_spec("onnxruntime")
    if package is None or not package.submodule_search_locations:
        return None
    folder = Path(package.submodule_search_locations[0]) / "capi"
    library = folder / f"libonnxruntime_providers_{provider}.so"
    return library if library.exists() else None


def _field_size(head: bytes) -> int | None:
    """The bytes of the protobuf field that starts with ``head``, or None where no field does."""
    tag, at = _varint(head, 0)
    if not tag:
        return None
    kind = tag & 7
    if kind in _FIXED:
        return at + _FIXED[kind]
    value, end = _varint(head, at)
    if kind == 0:
        return end
    return end + value if kind == 2 else None


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A varint and where it ends; one that is cut short is what is there of it."""
    value = 0
    for shift, byte in enumerate(data[at : at + 10]):
        value |= (byte & 127) << (7 * shift)
        if byte < 128:
            return value, at + shift + 1
    return value, at + 10
