"""Which solvers of a find-db this machine's MIOpen would not take: the library alone knows which apply to a problem.

MIOpen skips them without a word, and a record in which none is left is a miss. So a fresh process gets the records in
a database of its own, each solver with its place in the record for its time, and asks immediate mode without its
fallback: what does not come back is not taken. Nothing is compiled, timed or written.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from warmup.miopen.damage import DbFinding
from warmup.miopen.finddb import FindDb
from warmup.miopen.library import Library, LibraryError, MIOpenError
from warmup.miopen.names import DbName
from warmup.miopen.probe import ProbeError, database_stem, private_environment
from warmup.miopen.problem import ConvProblem
from warmup.miopen.solvers import is_known

_WHY = "MIOpen skips it without a word, and takes a slower solver"
_WHY_NONE = "MIOpen skips them without a word: every call of this problem is a miss"


class CannotAsk(Exception):
    """Why no MIOpen can be asked about a database here."""


@dataclass(frozen=True)
class Refusal:
    """The solvers of one record that MIOpen does not take; ``left`` is how many it does. ``error`` is MIOpen's word
    where it takes the whole problem for wrong."""

    key: str
    solvers: tuple[str, ...]
    left: int
    error: str = ""


def check_on_device(path: Path, database: FindDb) -> list[DbFinding]:
    """What ``refusals`` finds, as findings; solvers that no MIOpen has are for ``damage`` to tell.

    Raises CannotAsk where the database is of another device than this machine has, or there is no MIOpen to ask.
    """
    findings = []
    for refusal in refusals(path, database):
        if refusal.error:
            why = "every call of this problem fails"
            findings.append(DbFinding("refused-problem", str(path), refusal.error, why, False, key=refusal.key))
            continue
        known = [solver for solver in refusal.solvers if is_known(solver)]
        if known:
            what = f"this machine's MIOpen does not take {', '.join(known)} for {refusal.key}"
            why = _WHY if refusal.left else _WHY_NONE
            findings.append(DbFinding("inapplicable-solver", str(path), what, why, False, key=refusal.key))
    return findings


def refusals(path: Path, database: FindDb) -> Iterator[Refusal]:
    """Every record of which MIOpen would not take all solvers, in the order of the file.

    Raises CannotAsk as ``check_on_device`` does. Takes a second, and well under a millisecond for each record.
    """
    if database.kind != "find":
        raise CannotAsk(f"{path}: a {database.kind} database; only a find-db's solvers can be asked about")
    try:
        stem = database_stem()
    except ProbeError as error:
        raise CannotAsk(f"no MIOpen can be asked here: {error}") from error
    mine = DbName.parse(f"{stem}.ufdb.txt").device
    if database.name and database.name.device != mine:
        raise CannotAsk(f"{path}: it is of {database.name.device.base}, this machine's device is {mine.base}")
    solvers = {key: [solution.solver for solution in found] for key, found in database.items()}
    with tempfile.TemporaryDirectory(prefix="preheat-ask-") as scratch:
        for folder in ("db", "cache"):
            Path(scratch, folder).mkdir()
        with Path(scratch, "db", f"{stem}.ufdb.txt").open("w") as copy:
            for key, found in database.items():
                items = (f"{s.solver}:{place},{s.workspace},{s.algorithm}" for place, s in enumerate(found, start=1))
                copy.write(f"{key}={';'.join(items)}\n")
        for line in _ask(scratch, solvers):
            answer = json.loads(line)
            names = solvers[answer["key"]]
            if "error" in answer:
                yield Refusal(answer["key"], tuple(names), 0, answer["error"])
                continue
            taken = {round(place) for place in answer["taken"]}
            refused = tuple(name for place, name in enumerate(names, start=1) if place not in taken)
            if refused:
                yield Refusal(answer["key"], refused, len(taken))


def _ask(scratch: str, keys: Iterable[str]) -> list[str]:
    environment = {
        **private_environment(scratch),
        "MIOPEN_DEBUG_CONV_IMMED_FALLBACK": "0",
        "MIOPEN_DEBUG_DISABLE_FIND_DB": "0",
    }
    command = [sys.executable, "-m", "warmup.miopen.applicability"]
    done = subprocess.run(command, env=environment, input="\n".join(keys), capture_output=True, text=True)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or [f"the process ended with status {done.returncode}"]
        raise CannotAsk(f"MIOpen could not be asked: {reason[0]}")
    return done.stdout.splitlines()


def main() -> None:
    """What the fresh process does: the places of the solvers that are taken, a line for each key."""
    with Library().handle() as handle:
        for key in sys.stdin.read().splitlines():
            try:
                with handle.convolution(ConvProblem.from_find_db_key(key)) as convolution:
                    answer = {"taken": [solution.milliseconds for solution in convolution.solutions()]}
            except MIOpenError as error:
                answer = {"error": str(error)}
            print(json.dumps({"key": key, **answer}), flush=True)


if __name__ == "__main__":
    try:
        main()
    except (LibraryError, MIOpenError) as error:
        sys.exit(str(error))
