"""What the sweep and its worker processes say to each other: JSON objects, one a line.

The sweep writes one Job, then shapes one at a time, then ``close``; the worker answers with Loaded, and with one Ran
for every shape. A worker that cannot load its model, or not read a shape, says Failed and ends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from handlers.shapes import Shape
from warmup.proof import OutputsProof
from warmup.stores.store import Phase

Entries = Mapping[str, Mapping[str, str]]  # by store: key to value, as Store.entries


@dataclass(frozen=True)
class Job:
    """One model in one phase; every store is a directory below ``stores``. ``verify``: while proving, compare outputs
    with the reference's. ``tethered``: end when the thread that started this process ends, even while stopped."""

    folder: Path
    phase: Phase
    stores: Path
    verify: bool = True
    tethered: bool = False


@dataclass(frozen=True)
class Loaded:
    """The model is loaded, ``seconds`` after the process began."""

    seconds: float


@dataclass(frozen=True)
class Ran:
    """A shape was run: its first call and the median of further calls in seconds, the entries it added or changed (the
    first one also those of loading the model), what the frameworks counted as missed, how it runs where that is not
    what the model's description asks for or what it leaves open, and how right its outputs were; or the error it ended
    with.
    """

    shape: Shape
    first_seconds: float
    steady_seconds: float | None = None
    added: Entries = field(default_factory=dict)
    misses: Mapping[str, int] = field(default_factory=dict)
    error: str = ""
    note: str = ""
    outputs: OutputsProof | None = None


@dataclass(frozen=True)
class Failed:
    """The model cannot be loaded here, or a line is no shape; the worker ends."""

    reason: str


Message = Job | Loaded | Ran | Failed
_KINDS: dict[str, type] = {"job": Job, "loaded": Loaded, "ran": Ran, "failed": Failed}
CLOSE = "close"


def encode(message: Message) -> bytes:
    """A message as one line."""
    fields = {
        key: value.value if isinstance(value, Phase) else str(value) if isinstance(value, (Path, Shape)) else value
        for key, value in asdict(message).items()
    }
    if isinstance(message, Ran):
        fields["shape"] = message.shape.text
    kind = next(name for name, found in _KINDS.items() if isinstance(message, found))
    return json.dumps({"kind": kind, **fields}).encode() + b"\n"


def decode(line: bytes) -> Message:
    """The message in a line; raises ValueError on anything else."""
    fields = json.loads(line)
    kind = fields.pop("kind")
    if kind not in _KINDS:
        raise ValueError(f"no message is of kind {kind!r}")
    if kind == "job":
        places = Path(fields["folder"]), Phase(fields["phase"]), Path(fields["stores"])
        return Job(*places, bool(fields["verify"]), bool(fields["tethered"]))
    if kind == "ran":
        fields["shape"] = Shape.parse(fields["shape"])
        fields["outputs"] = OutputsProof.from_json(fields["outputs"]) if fields["outputs"] else None
    return _KINDS[kind](**fields)
