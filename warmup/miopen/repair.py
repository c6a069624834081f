"""Mending a text database: what is sound stays byte for byte, what can be saved is saved, the rest is set aside."""

from __future__ import annotations

from dataclasses import dataclass

from warmup.miopen.damage import Suspect, TextDb, suspects
from warmup.miopen.records import NOT_REPAIRABLE, Fault


@dataclass(frozen=True)
class Aside:
    """A part of a file that is in no record of the mended one, and why; ``text`` is byte for byte (latin-1)."""

    number: int
    faults: tuple[Fault, ...]
    text: str


@dataclass(frozen=True)
class Mended:
    """A mended database: its text, what was set aside, and how many records were saved from damaged lines."""

    data: bytes
    aside: tuple[Aside, ...]
    saved: int

    @property
    def aside_text(self) -> bytes:
        """The text of the file that keeps what was set aside; each part after a line that says where it was and why."""
        parts = []
        for aside in self.aside:
            reasons = "; ".join(f"{fault.code}: {fault.what}" for fault in aside.faults)
            parts.append(f"# line {aside.number}: {reasons}\n".encode("utf-8", "backslashreplace"))
            parts.append(aside.text.encode("latin-1") + b"\n")
        return b"".join(parts)


def mend(database: TextDb) -> Mended:
    """Mends every fault of the file that can be mended; a sound file comes back byte for byte.

    Of several records with one key the first sound one stays, else the first of which something can be saved.
    """
    data, faulty = database.data, {suspect.start: suspect for suspect in suspects(database, judge_solvers=False)}
    if not faulty and (not data or data.endswith(b"\n")):
        return Mended(data, (), 0)
    parts: list[bytes] = []
    aside: list[Aside] = []
    taken = _sound_keys(database, faulty)
    saved, copied = 0, 0
    for start, suspect in faulty.items():
        parts.append(data[copied:start])
        copied = min(suspect.end + 1, len(data))
        lost = list(suspect.line.aside)
        for record in suspect.line.records:
            first = taken.setdefault(record.key, start)
            if first == start:
                parts.append(record.line.encode("latin-1") + b"\n")
                saved += 1
            else:
                lost.append(record.line)
        faults = tuple(fault for fault in suspect.faults if fault.code not in NOT_REPAIRABLE)
        aside += [Aside(suspect.number, faults, text) for text in lost]
    parts.append(data[copied:])
    mended = b"".join(parts)
    if mended and not mended.endswith(b"\n"):
        mended += b"\n"
    return Mended(mended, tuple(aside), saved)


def _sound_keys(database: TextDb, faulty: dict[int, Suspect]) -> dict[str, int]:
    """The first sound line of each key, by its start: no record saved from a damaged line may take its place."""
    sound: dict[str, int] = {}
    for key, start, _ in database.rows():
        if start not in faulty or all(fault.code == "duplicate-key" for fault in faulty[start].faults):
            sound.setdefault(key, start)
    return sound
