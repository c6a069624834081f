"""One line of a text database, read as MIOpen reads it, and everything that can be wrong with it.

``KEY=ID:VALUES;ID:VALUES...``. In a find-db an item is ``solver:time,workspace,algorithm`` (format 2.0) or
``algorithm:solver,time,workspace,algorithm,unused`` (1.0); in a perf-db it is ``solver:parameters``. Source: MIOpen
``src/db_record.cpp``, ``src/ramdb.cpp`` and ``src/conv_algo_name.cpp``, as of 2024-10; what MIOpen does with a damaged
line was observed on MIOpen 3.4.0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from warmup.miopen.keys import KEY_SHAPE, shortened
from warmup.miopen.names import Kind

_METHODS = ("GEMM", "Direct", "FFT", "Winograd", "ImplicitGEMM")
ALGORITHMS: dict[str, str] = {
    **{f"miopenConvolutionFwdAlgo{method}": "F" for method in _METHODS},
    **{f"miopenConvolutionBwdDataAlgo{method}": "B" for method in _METHODS},
    **{f"miopenConvolutionBwdWeightsAlgo{method}": "W" for method in _METHODS if method != "FFT"},
    "miopenTransposeBwdDataAlgoGEMM": "B",
}
MAX_WORKSPACE = 2**63 - 1

# Why each fault hurts: what MIOpen makes of it.
FAULTS: dict[str, str] = {
    "ill-formed": "MIOpen reports 'Ill-formed record: key not found' and skips the line",
    "leading-junk": "MIOpen does not find the key, tunes again and appends a second record",
    "crlf": "MIOpen reads it, but writes lines without the carriage return: the file becomes mixed",
    "bad-key": "no problem has this key, so MIOpen never looks it up",
    "empty-record": "a permanent miss: MIOpen reads this line first and rewrites another",
    "glued-lines": "something was appended to a line without a newline: MIOpen loses both records",
    "cut-record": "MIOpen fails with 'Bad algorithm' (status 5) and does not mend it",
    "bad-algorithm": "MIOpen fails with 'Bad algorithm' (status 5) and does not mend it",
    "bad-time": "MIOpen takes it for 0 or less, so that this solver always wins",
    "bad-workspace": "MIOpen asks for 16 EiB of workspace: the record is unusable",
    "bad-item": "MIOpen reports an ill-formed item and skips it",
    "duplicate-solver": "MIOpen ignores all but the first",
    "duplicate-key": "MIOpen uses the first and never the others",
    "unknown-solver": "MIOpen skips it; a record with no other solver is a miss",
}
# What no repair can mend; all other faults are mended by keeping what is sound.
NOT_REPAIRABLE = frozenset({"unknown-solver"})

_GLUED_FIND = re.compile(rf"(?:(?<=[A-Za-z])|(?<=>))(?=(?:{KEY_SHAPE})=)")
_BEFORE_GLUE = re.compile(r"(?:miopen[A-Za-z]+|<unused>|not used)$")
PERF_KEY = r"[23](?:x[0-9]+){20}x[A-Z]{4,5}c?x[A-Z0-9]+x[FBW]"
_GLUED_PERF = re.compile(f"(?={PERF_KEY}=)")
_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_JUNK = "\ufeff\xef\xbb\xbf \t\0"
_KEYS = {"find": re.compile(KEY_SHAPE), "perf": re.compile(PERF_KEY)}


@dataclass(frozen=True, slots=True)
class Solution:
    """One solver of a find-db record: its time in ms as MIOpen measured it, and the workspace in bytes it needs."""

    solver: str
    time_ms: float
    workspace: int
    algorithm: str


@dataclass(frozen=True)
class Fault:
    """One thing wrong with a line: a code of ``FAULTS``, and the part of the line that it is about."""

    code: str
    what: str


@dataclass(frozen=True)
class Item:
    """One sound ``ID:VALUES`` of a record: its text as found, the solver, and its values if it is of a find-db."""

    text: str
    solver: str
    solution: Solution | None = None


@dataclass(frozen=True)
class Record:
    """What is sound in one record: its key and items, in the order of the line."""

    key: str
    items: tuple[Item, ...]

    @property
    def line(self) -> str:
        """The record as a line of the database, without its newline."""
        return f"{self.key}={';'.join(item.text for item in self.items)}"


@dataclass(frozen=True)
class Line:
    """A line as inspected: the records that can be saved (two of a glued line), and its faults.

    ``aside`` are the parts that are in no record; ``usable`` is whether MIOpen itself can use the line's first record.
    """

    records: tuple[Record, ...]
    faults: tuple[Fault, ...]
    aside: tuple[str, ...]

    @property
    def usable(self) -> bool:
        return not any(fault.code in _FATAL for fault in self.faults)


_FATAL = frozenset({"ill-formed", "leading-junk", "glued-lines", "cut-record", "bad-algorithm", "bad-workspace"})


def inspect(text: str, kind: Kind) -> Line:
    """Everything about one line, given without its newline; ``kind`` is find, fusion or perf."""
    faults, aside = [], []
    whole = text
    if text.endswith("\r"):
        faults.append(Fault("crlf", "ends in a carriage return"))
        text = text.rstrip("\r")
    stripped = text.lstrip(_JUNK)
    if stripped != text:
        faults.append(Fault("leading-junk", f"begins with {text[: len(text) - len(stripped)]!r}"))
        text = stripped
    records = []
    pieces = list(_pieces(text, kind))
    if len(pieces) > 1:
        faults.append(Fault("glued-lines", f"holds {len(pieces)} records"))
    for piece in pieces:
        record, found, lost = _record(piece, kind)
        records += [record] if record else []
        faults += found
        aside += lost
    return Line(tuple(records), tuple(faults), tuple(aside if records else [whole]))


def parse_item(text: str) -> Item | Fault:
    """One item of a find-db record, of either format."""
    name, colon, values = text.partition(":")
    if not colon or not name:
        return Fault("bad-item", f"item {shortened(text)} has no solver and values")
    parts = values.split(",")
    if name in ALGORITHMS:
        if len(parts) < 4:
            return Fault(
                "cut-record",
                f"item {shortened(text)} is cut short; format 1.0 has solver,time,workspace,algorithm,unused",
            )
        solver, time, workspace, algorithm = parts[0], parts[1], parts[2], name
    elif len(parts) < 3:
        return Fault("cut-record", f"item {shortened(text)} is cut short; expected time,workspace,algorithm")
    elif len(parts) > 3:
        return Fault("bad-item", f"item {shortened(text)} has {len(parts)} values; expected time,workspace,algorithm")
    else:
        solver, time, workspace, algorithm = name, *parts
    if algorithm not in ALGORITHMS:
        return Fault("bad-algorithm", f"solver {solver!r} has algorithm {shortened(algorithm)}")
    milliseconds = float(time) if _NUMBER.fullmatch(time) else math.nan
    if not (math.isfinite(milliseconds) and milliseconds >= 0):
        return Fault("bad-time", f"solver {solver!r} has time {shortened(time)}")
    if not re.fullmatch(r"[0-9]{1,19}", workspace) or int(workspace) > MAX_WORKSPACE:
        return Fault("bad-workspace", f"solver {solver!r} has workspace {shortened(workspace)}")
    if not solver:
        return Fault("bad-item", f"item {shortened(text)} names no solver")
    return Item(text, solver, Solution(solver, milliseconds, int(workspace), algorithm))


def _pieces(text: str, kind: Kind) -> Iterator[str]:
    """The line's records: more than one where another was appended to it without a newline."""
    start = 0
    key, _, values = text.partition("=")
    if "=" in values and kind == "perf":
        for match in _GLUED_PERF.finditer(text, len(key) + 1):
            yield text[start : match.start()]
            start = match.start()
    elif "=" in values and kind == "find":
        for match in _GLUED_FIND.finditer(text, len(key) + 1):
            if _BEFORE_GLUE.search(text, start, match.start()):
                yield text[start : match.start()]
                start = match.start()
    yield text[start:]


def _record(text: str, kind: Kind) -> tuple[Record | None, list[Fault], list[str]]:
    key, equals, values = text.partition("=")
    if not equals or not key:
        return None, [Fault("ill-formed", f"has no key: {shortened(text)}")], [text]
    if kind in _KEYS and not _KEYS[kind].fullmatch(key):
        return None, [Fault("bad-key", f"key {shortened(key)} is not of a convolution")], [text]
    if not values:
        return None, [Fault("empty-record", f"key {key!r} has no values")], [text]
    items: dict[str, Item] = {}
    faults, lost = [], []
    for item_text in values.split(";"):
        item = parse_item(item_text) if kind != "perf" else _perf_item(item_text)
        if isinstance(item, Item) and item.solver in items:
            item = Fault("duplicate-solver", f"solver {item.solver!r} is there twice")
        if isinstance(item, Item) and item.solution and kind == "find":
            item = _of_direction(item, key)
        if isinstance(item, Item):
            items[item.solver] = item
        else:
            faults.append(item)
            lost.append(f"{key}={item_text}")
    return (Record(key, tuple(items.values())) if items else None), faults, lost


def _of_direction(item: Item, key: str) -> Item | Fault:
    """MIOpen knows an algorithm only under the direction of the key."""
    direction = key.rpartition("-")[2][:1]
    if item.solution and ALGORITHMS[item.solution.algorithm] != direction:
        return Fault(
            "bad-algorithm", f"solver {item.solver!r} has {item.solution.algorithm} under a key of {direction}"
        )
    return item


def _perf_item(text: str) -> Item | Fault:
    solver, colon, parameters = text.partition(":")
    if not colon or not solver or not parameters:
        return Fault("cut-record", f"item {shortened(text)} has no solver and parameters")
    if "\0" in text or "=" in text:
        return Fault("bad-item", f"item {shortened(text)} has bytes that MIOpen never writes")
    return Item(text, solver)
