"""The errors that a request or a start may end with; each carries what a client needs and nothing of the inside."""

from __future__ import annotations


class ModelError(Exception):
    """A model that cannot be loaded or started: a wrong description, a missing file, a missing execution provider."""


class InvalidInput(ValueError):
    """A request body or tensor that the model does not take; the message is shown to the client (HTTP 400)."""


class UnplannedShape(Exception):
    """A shape outside the warm set of a model whose cold policy is ``reject`` (HTTP 503 with the nearest shapes).

    ``shape`` is the canonical text that was asked for, ``nearest`` the planned ones that a client could send instead.
    """

    def __init__(self, shape: str, nearest: tuple[str, ...]) -> None:
        super().__init__(
            f"shape {shape} is not warm; shapes that would have been served: {', '.join(nearest) or 'none'}"
        )
        self.shape = shape
        self.nearest = nearest


class OutOfDeviceMemory(Exception):
    """The accelerator had no memory left for this request; others are served on (HTTP 503)."""
