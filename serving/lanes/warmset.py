"""The warm set: which shapes were replayed in this process, and where a request of any shape will run.

Shapes that differ only in the batch axis form a group: requests of one group can share an execution. A request whose
own shape is warm is ``warm``; one that a larger warm shape can hold is ``padded``; any other is ``cold``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from handlers.errors import UnplannedShape
from handlers.handler import Tensors
from handlers.shapes import Shape, TensorShape
from handlers.spec import ModelSpec

Dims = tuple[tuple[int, ...], ...]  # the dims of every input, in the model's order
_ROUTES_REMEMBERED = 4096  # distinct dims whose routes are kept; clients choose the dims, so there must be a bound


class Outcome(str, Enum):
    """What the warm set made of a request."""

    WARM = "warm"
    PADDED = "padded"
    COLD = "cold"


@dataclass(frozen=True)
class Group:
    """Warm shapes that differ only in the batch axis. ``tails`` are the dims of every input without it."""

    tails: Dims
    batches: tuple[int, ...]  # ascending

    @property
    def largest(self) -> int:
        return self.batches[-1]


@dataclass(frozen=True)
class Route:
    """Where a request runs: its group (None when cold), its rows along the batch axis, and the outcome."""

    outcome: Outcome
    tails: Dims | None
    rows: int


class WarmSet:
    """The warm shapes of one model. Grown by ``admit`` on the event loop, read there and on the lane's thread."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._pad = frozenset(spec.shapes.pad) if spec.cold == "pad" else frozenset()
        self._seconds: dict[Dims, dict[int, float]] = {}
        self._routes: dict[Dims, Route] = {}
        self._shapes: dict[Shape, float] = {}
        self._made: dict[tuple[Dims, int], Shape] = {}
        self._labels: dict[tuple[Dims, int], str] = {}
        self.version = 0  # grows with every admission

    def __len__(self) -> int:
        return len(self._shapes)

    def __contains__(self, shape: Shape) -> bool:
        return shape in self._shapes

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return tuple(self._shapes)

    def admit(self, shape: Shape, seconds: float) -> None:
        """Adds a shape that has been replayed; ``seconds`` is what one execution of it takes."""
        rows, tails = self.split(shape.dims)
        self._seconds.setdefault(tails, {})[rows] = seconds
        self._shapes[shape] = seconds
        self._routes.clear()
        self._labels.clear()
        self.version += 1

    def group(self, tails: Dims) -> Group:
        """The group with these dims; raises KeyError where none is warm."""
        return Group(tails, tuple(sorted(self._seconds[tails])))

    def groups(self) -> Iterable[Group]:
        return (self.group(tails) for tails in self._seconds)

    def seconds(self, tails: Dims) -> dict[int, float]:
        """The execution time of each batch size of a group."""
        return dict(self._seconds[tails])

    def split(self, dims: Dims) -> tuple[int, Dims]:
        """Rows and tails of concrete dims; a model without a batch axis always has one row."""
        if not self._spec.batched:
            return 1, dims
        return dims[0][0], tuple(tensor[1:] for tensor in dims)

    def find(self, dims: Dims) -> Route:
        """The route of a request whose inputs have these dims."""
        route = self._routes.get(dims)
        if route is None:
            route = self._find(dims)
            if len(self._routes) >= _ROUTES_REMEMBERED:
                self._routes.clear()
            self._routes[dims] = route
        return route

    def _find(self, dims: Dims) -> Route:
        rows, tails = self.split(dims)
        batches = self._seconds.get(tails)
        if batches and rows <= max(batches):
            return Route(Outcome.WARM if rows in batches else Outcome.PADDED, tails, rows)
        fitting = []
        for candidate, times in self._seconds.items():
            enough = [seconds for batch, seconds in times.items() if batch >= rows]
            if enough and self.holds(candidate, tails):
                fitting.append((min(enough), candidate))
        if fitting:
            return Route(Outcome.PADDED, min(fitting)[1], rows)
        return Route(Outcome.COLD, None, rows)

    def holds(self, larger: Dims, smaller: Dims) -> bool:
        """Whether tensors with the tails ``smaller`` may be padded to ``larger``: only along axes that allow it."""
        offset = 1 if self._spec.batched else 0
        for declared, large, small in zip(self._spec.inputs, larger, smaller, strict=True):
            if len(large) != len(small):
                return False
            for axis, mine, theirs in zip(declared.dims[offset:], large, small, strict=True):
                if mine != theirs and (axis not in self._pad or mine < theirs):
                    return False
        return True

    def shape(self, tails: Dims, rows: int) -> Shape:
        """The full shape of ``rows`` rows of a group; ``rows`` is a planned batch size."""
        shape = self._made.get((tails, rows))
        if shape is None:
            shape = self._made[tails, rows] = Shape(
                tuple(
                    TensorShape(declared.name, (rows, *tail) if self._spec.batched else tail, declared.dtype)
                    for declared, tail in zip(self._spec.inputs, tails, strict=True)
                )
            )
        return shape

    def label(self, tails: Dims, rows: int) -> str:
        """The text of the smallest warm shape of a group that holds ``rows`` rows."""
        text = self._labels.get((tails, rows))
        if text is None:
            batch = min(batch for batch in self._seconds[tails] if batch >= rows)
            text = self._labels[tails, rows] = self.shape(tails, batch).text
        return text

    def unplanned(self, inputs: Tensors) -> UnplannedShape:
        """The refusal of a request that no warm shape holds: it names its shape and the nearest ones."""
        asked = Shape.of(inputs, {tensor.name: tensor.dtype for tensor in self._spec.inputs})
        return UnplannedShape(asked.text, self.nearest(tuple(array.shape for array in inputs.values())))

    def nearest(self, dims: Dims, count: int = 3) -> tuple[str, ...]:
        """The warm shapes closest to dims by the sum of relative differences along each axis."""

        def distance(shape: Shape) -> float:
            total = 0.0
            for tensor, asked in zip(shape, dims, strict=True):
                for mine, theirs in zip(tensor.dims, asked, strict=True):
                    total += abs(mine - theirs) / max(mine, theirs, 1)
            return total

        return tuple(shape.text for shape in sorted(self._shapes, key=lambda s: (distance(s), s.text))[:count])
