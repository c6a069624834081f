"""What the doctor reports: one thing that is wrong or worth knowing, why it hurts, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Severity(str, Enum):
    """``error``: the node cannot serve, or not as it was warmed. ``warning``: it may hurt. ``note``: good to know."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True)
class Finding:
    """One finding. ``topic`` is stable for scripts, ``where`` is the file, variable or package that is concerned."""

    severity: Severity
    topic: str
    where: str
    what: str
    why: str
    do: str

    def to_json(self) -> dict[str, str]:
        return {
            "severity": self.severity.value,
            "topic": self.topic,
            "where": self.where,
            "what": self.what,
            "why": self.why,
            "do": self.do,
        }


def error(topic: str, where: object, what: str, why: str, do: str) -> Finding:
    return Finding(Severity.ERROR, topic, str(where), what, why, do)


def warning(topic: str, where: object, what: str, why: str, do: str) -> Finding:
    return Finding(Severity.WARNING, topic, str(where), what, why, do)


def note(topic: str, where: object, what: str, why: str, do: str) -> Finding:
    return Finding(Severity.NOTE, topic, str(where), what, why, do)
