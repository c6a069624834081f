"""A small real bundle, in a state directory of the test's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from handlers.shapes import Shape
from handlers.spec import ModelSpec
from warmup.bundle.build import build
from warmup.bundle.manifest import Bundle, BundledModel
from warmup.plan import Plan, PlannedShape
from warmup.proof import Proof, ShapeProof
from warmup.stores.store import Finding, MergeReport, Phase, Settings, Store

IDENTITY = {"gpu_arch": "gfx942", "gpu_compute_units": "304", "rocm": "7.0"}
FILES = {
    "kernels/ab.o": b"\x7fELF" + bytes(range(256)) * 8,
    "kernels/cd.o": b"code",
    "empty": b"",
    "deep/er/ü.db": b"x",
}
SHAPES = ("images=1x3x32x32:fp32", "images=2x3x32x32:fp32")


class FileStore(Store):
    """A store whose entries are its files."""

    def __init__(self, name: str = "kernels") -> None:
        self.name = name

    def applies(self, spec: ModelSpec) -> bool:
        return True

    def settings(self, phase: Phase, root: Path) -> Settings:
        return Settings()

    def identity(self) -> dict[str, str]:
        return {}

    def entries(self, root: Path) -> dict[str, str]:
        return {p.relative_to(root).as_posix(): p.read_bytes().hex() for p in root.rglob("*") if p.is_file()}

    def merge(self, into: Path, sources: Iterable[Path]) -> MergeReport:
        added, present, conflicts = 0, 0, []
        for source in sources:
            for key in self.entries(source):
                target = into / key
                if not target.exists():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes((source / key).read_bytes())
                    added += 1
                elif target.read_bytes() == (source / key).read_bytes():
                    present += 1
                else:
                    conflicts.append(f"{key}: kept the first")
        return MergeReport(added, present, tuple(conflicts))

    def check(self, root: Path) -> list[Finding]:
        return []


def _model(shapes: Iterable[str] = SHAPES, proven: bool = True, digest: str = "0" * 64) -> BundledModel:
    """A model whose shapes have equal weights and are all proven or all not."""
    parsed = tuple(map(Shape.parse, shapes))
    return BundledModel(
        version="1",
        digest=f"sha256:{digest}",
        plan=Plan("digits", tuple(PlannedShape(shape, 0.25) for shape in parsed)),
        proof=Proof(
            "digits",
            tuple(
                ShapeProof(shape, 0.25, proven, 2.0, 0.01, 0.005, {"kernels": 0 if proven else 3}, "")
                for shape in parsed
            ),
        ),
    )


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("PREHEAT_TRUSTED_KEYS", raising=False)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Bundle]:
    """Builds a bundle under a name from files of its one store."""

    def _make(name: str = "made", files: dict[str, bytes] = FILES, **changes: object) -> Bundle:
        root = tmp_path / name
        for path, content in files.items():
            target = root / "stores" / "kernels" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        root.mkdir(exist_ok=True)
        facts: dict = {"identity": IDENTITY, "models": {"digits": _model()}, "stores": [FileStore()], **changes}
        return build(root, **facts)

    return _make


@pytest.fixture
def store() -> Store:
    """The one store of these bundles."""
    return FileStore()


@pytest.fixture
def model() -> Callable[..., BundledModel]:
    """Makes a model whose shapes have equal weights and are all proven or all not."""
    return _model


@pytest.fixture
def bundle(make: Callable[..., Bundle]) -> Bundle:
    return make()
