"""What a fresh process found out about each planned shape. Times are in seconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field

from handlers.shapes import Shape


@dataclass(frozen=True)
class OutputsProof:
    """That a shape's outputs were right: ``against`` says what gave the outputs that they were compared with.

    ``absolute`` and ``relative`` (to the output's largest value) are the largest errors of the output that was farthest
    off, ``cosine`` is its angle; ``tolerance`` is what ``relative`` and 1 - ``cosine`` were allowed to be.
    """

    against: str
    tolerance: float
    absolute: float
    relative: float
    cosine: float

    @classmethod
    def from_json(cls, document: Mapping) -> OutputsProof:  # type: ignore[type-arg]
        numbers = {name: float(document[name]) for name in ("tolerance", "absolute", "relative", "cosine")}
        return cls(str(document["against"]), **numbers)


@dataclass(frozen=True)
class ShapeProof:
    """One shape: proven only if its run in a fresh process added no entry to any store.

    ``cold_seconds`` is the first call while tuning, ``first_seconds`` the first call in the proving process,
    ``steady_seconds`` the median of further calls there; None where the shape was not run. ``added`` counts the entries
    that the proving run added, by store. ``reason`` says why a shape is unproven (``budget``, an error, new entries),
    or how a proven one runs where that is not what the model's description asks for (eagerly, without a graph), or what
    it leaves open (``channels_last: auto``).
    ``outputs`` is None where the outputs were not compared with anything.
    """

    shape: Shape
    weight: float
    proven: bool
    cold_seconds: float | None = None
    first_seconds: float | None = None
    steady_seconds: float | None = None
    added: Mapping[str, int] = field(default_factory=dict)
    reason: str = ""
    outputs: OutputsProof | None = None

    def to_json(self) -> dict[str, object]:
        return {
            "shape": self.shape.text,
            "weight": self.weight,
            "proven": self.proven,
            "cold_seconds": self.cold_seconds,
            "first_seconds": self.first_seconds,
            "steady_seconds": self.steady_seconds,
            "added": dict(self.added),
            "reason": self.reason,
            "outputs": asdict(self.outputs) if self.outputs else None,
        }

    @classmethod
    def from_json(cls, document: Mapping) -> ShapeProof:  # type: ignore[type-arg]
        return cls(
            shape=Shape.parse(document["shape"]),
            weight=float(document["weight"]),
            proven=bool(document["proven"]),
            cold_seconds=document["cold_seconds"],
            first_seconds=document["first_seconds"],
            steady_seconds=document["steady_seconds"],
            added={str(k): int(v) for k, v in document["added"].items()},
            reason=str(document["reason"]),
            outputs=OutputsProof.from_json(document["outputs"]) if document.get("outputs") else None,
        )


@dataclass(frozen=True)
class Proof:
    """The proofs of all planned shapes of one model."""

    model: str
    shapes: tuple[ShapeProof, ...]

    def __iter__(self) -> Iterator[ShapeProof]:
        return iter(self.shapes)

    def proven(self) -> tuple[ShapeProof, ...]:
        return tuple(shape for shape in self.shapes if shape.proven)

    @property
    def coverage(self) -> float:
        """The share of the expected traffic that the proven shapes answer, from 0 to 1."""
        total = sum(shape.weight for shape in self.shapes)
        return sum(shape.weight for shape in self.proven()) / total if total else 0.0
