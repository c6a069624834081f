"""What turns a request body into tensors and tensors into an answer. Methods are named as in TorchServe's handlers.

A handler holds no per-request state: what postprocessing needs to know of a request (the size of the image, say)
travels in ``Prepared.context``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from handlers.errors import InvalidInput
from handlers.shapes import Shape
from handlers.spec import ModelSpec

Tensors = dict[str, np.ndarray]


@dataclass(frozen=True)
class Payload:
    """A request body as it arrived. Of a multipart form, ``fields`` holds the parts by name, and ``body`` is the part
    named ``data`` or ``body``, or the only one, with its own content type.
    """

    body: bytes
    content_type: str = "application/octet-stream"
    fields: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Prepared:
    """The tensors of one request, and what postprocessing must know of it."""

    inputs: Tensors
    context: Any = None


class Handler:
    """The base of all handlers; on its own it takes tensors only (Open Inference Protocol) and refuses other bodies."""

    def initialize(self, spec: ModelSpec, folder: Path) -> None:
        """Called once, before any other method. The other methods may then be called from several threads at once."""
        self.spec = spec
        self.folder = folder

    def preprocess(self, payload: Payload) -> Prepared:
        """Tensors for one request (batch axis of size 1 or more); raises InvalidInput on a body that it cannot take."""
        raise InvalidInput(
            f"model {self.spec.name!r} takes tensors, not {payload.content_type}: use /v2/models/{self.spec.name}/infer"
        )

    def check(self, inputs: Tensors) -> None:
        """Looks at tensors that a client sent as tensors; raises InvalidInput on values that the model cannot take."""

    def postprocess(self, outputs: Tensors, context: Any) -> Any:
        """The answer to one request: something JSON can hold, or bytes."""
        return {name: array.tolist() for name, array in outputs.items()}

    def pad_value(self, name: str) -> float:
        """What fills the padding of input ``name`` (0 unless a handler knows better)."""
        return 0.0

    def crop(self, outputs: Tensors, asked: Shape, ran: Shape) -> Tensors:
        """The outputs of the shape ``asked``, cut from those of the larger shape ``ran`` (axes other than batch).

        The base cannot know how outputs follow inputs, so it refuses; a handler whose model.yaml says ``shapes.pad``
        must override it.
        """
        raise InvalidInput(f"model {self.spec.name!r} has no rule to cut outputs of {ran} to {asked}")
