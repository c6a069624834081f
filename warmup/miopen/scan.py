"""The fast reading of a find-db: whole chunks at once, with the values in columns instead of an object each.

A chunk's separators are found with NumPy. A line whose separators follow the grammar, whose numbers are made of the
characters of numbers and whose algorithms are known is *clean* and goes into the columns; every other line is given
back by its place, for ``records.inspect`` to say what is wrong with it. So a clean file costs no Python code per line
beyond one slice per text, and no line is taken for clean in which the slow reading finds a fault, except those that
take more than the line's own grammar to see: its key, its direction and whether the solver exists.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from warmup.miopen.fields import Names, decimals, integers, known, numbered
from warmup.miopen.records import ALGORITHMS

CHUNK = 4 << 20
ALGORITHM_NAMES = tuple(ALGORITHMS)
_ALGORITHM_NUMBERS = {name: number for number, name in enumerate(ALGORITHM_NAMES)}
_NEWLINE, _EQUALS, _COLON, _COMMA, _SEMICOLON, _OTHER = 1, 2, 3, 4, 5, 6
_SEPARATORS = {"\n": _NEWLINE, "=": _EQUALS, ":": _COLON, ",": _COMMA, ";": _SEMICOLON}
# What each byte is: a separator, a character of texts (format 1.0 may say "not used", so blanks are), or neither.
_KINDS = bytes(_SEPARATORS.get(chr(byte), 0 if 0x20 <= byte < 0x7F else _OTHER) for byte in range(256))


@dataclass(frozen=True)
class Columns:
    """The clean lines of one chunk; offsets are into the whole data.

    ``row_start``, ``row_end``: a line without its newline. ``row_items``: how many items it has. The other arrays have
    one value for each item, of which ``legacy_items`` are of format 1.0. ``dirty`` are the (start, end) of the lines
    that are not clean; empty lines are in neither.
    """

    keys: list[str]
    row_start: np.ndarray
    row_end: np.ndarray
    row_items: np.ndarray
    solver: np.ndarray
    time_ms: np.ndarray
    workspace: np.ndarray
    algorithm: np.ndarray
    legacy_items: int
    dirty: list[tuple[int, int]]


def chunks(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The data in pieces of about ``CHUNK`` bytes that end with a newline, each with its offset."""
    start = 0
    while start < len(data):
        end = start + CHUNK
        if end < len(data):
            found = data.rfind(b"\n", start, end)
            end = (found if found >= 0 else data.find(b"\n", end)) + 1 or len(data)
        yield start, data[start:end]
        start = end


def scan(chunk: bytes, offset: int, solvers: Names) -> Columns:
    """Reads one chunk; ``solvers`` numbers the names over all chunks, also those of lines that turn out not clean."""
    if not chunk.endswith(b"\n"):
        chunk += b"\n"
    kinds = np.frombuffer(chunk.translate(_KINDS), np.uint8)
    at = np.flatnonzero(kinds != 0)
    kind = kinds[at]
    # Six newlines before the chunk, so that looking back needs no special case.
    kind = np.concatenate((np.full(6, _NEWLINE, np.uint8), kind))
    at = np.concatenate((np.full(6, -1), at))
    line = np.cumsum(kind == _NEWLINE) - (kind == _NEWLINE) - 6
    line_ends = at[6:][kind[6:] == _NEWLINE]
    line_starts = np.concatenate(([0], line_ends[:-1] + 1))

    back = [kind[6 - step : len(kind) - step] for step in range(7)]
    place = [at[6 - step : len(at) - step] for step in range(7)]
    ends = (back[0] == _SEMICOLON) | (back[0] == _NEWLINE)
    commas = ends & (back[1] == _COMMA) & (back[2] == _COMMA)
    new = commas & (back[3] == _COLON) & ((back[4] == _EQUALS) | (back[4] == _SEMICOLON))
    old = commas & (back[3] == _COMMA) & (back[4] == _COMMA) & (back[5] == _COLON)
    old &= (back[6] == _EQUALS) | (back[6] == _SEMICOLON)
    keyed = (back[0] == _EQUALS) & (back[1] == _NEWLINE) & (place[0] > place[1] + 1)

    accounted = np.zeros(len(kind), bool)
    accounted[6:] = new | old | keyed
    for step in (1, 2, 3):
        accounted[6 - step : len(kind) - step] |= new | old
    for step in (4, 5):
        accounted[6 - step : len(kind) - step] |= old
    clean = np.ones(len(line_ends), bool)
    clean[line[6:][~accounted[6:]]] = False

    item = np.flatnonzero(new | old)
    is_old = old[item]
    name_at = np.where(is_old, place[5][item], place[4][item]) + 1
    name_end = np.where(is_old, place[4][item], place[3][item])
    algorithm_at = np.where(is_old, place[6][item], place[1][item]) + 1
    algorithm_end = np.where(is_old, place[5][item], place[0][item])
    time_at = np.where(is_old, place[4][item], place[3][item]) + 1
    time_end = np.where(is_old, place[3][item], place[2][item])
    space_at = np.where(is_old, place[3][item], place[2][item]) + 1
    space_end = np.where(is_old, place[2][item], place[1][item])
    item_line = line[6:][item]

    algorithm = known(chunk, algorithm_at, algorithm_end, _ALGORITHM_NUMBERS)
    solver = numbered(chunk, name_at, name_end, solvers)
    time_ms = decimals(chunk, time_at, time_end)
    workspace = integers(chunk, space_at, space_end)
    misnamed = [number for name, number in solvers.items() if not name or name in ALGORITHMS]
    fine = np.isfinite(time_ms) & (time_ms >= 0) & (workspace >= 0) & (algorithm >= 0) & ~np.isin(solver, misnamed)
    clean[item_line[~fine]] = False
    # Twice the same solver in one line: only the first counts, which is for the slow reading to say.
    pairs = np.sort(item_line * (len(solvers) + 1) + solver)
    clean[pairs[1:][pairs[1:] == pairs[:-1]] // (len(solvers) + 1)] = False

    kept = np.flatnonzero(clean[item_line])
    text = chunk.decode("latin-1")
    rows = np.flatnonzero(clean)
    key_ends = at[6:][keyed]
    key_lines = line[6:][keyed]
    key_ends = key_ends[clean[key_lines]]
    dirty = np.flatnonzero(~clean & (line_ends > line_starts))
    return Columns(
        keys=_slices(text, line_starts[rows], key_ends),
        row_start=line_starts[rows] + offset,
        row_end=line_ends[rows] + offset,
        row_items=np.bincount(item_line[kept], minlength=len(clean))[rows].astype(np.int32),
        solver=solver[kept],
        time_ms=time_ms[kept],
        workspace=workspace[kept],
        algorithm=algorithm[kept].astype(np.int8),
        legacy_items=int(is_old[kept].sum()),
        dirty=[(int(line_starts[row]) + offset, int(line_ends[row]) + offset) for row in dirty],
    )


def _slices(text: str, starts: np.ndarray, ends: np.ndarray) -> list[str]:
    return [text[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
