"""How long reading and checking a find-db takes, and how much memory: CPU seconds of one core, in fresh processes.

    python -m benchmarks.finddb ../shared/data/miopen/gfx90a68.HIP.fdb.txt.bz2

The largest database that MIOpen ships: 60 MB, 193,590 keys. A compressed file is decompressed first, outside the clock.
The whole file and its first half and quarter are read, so that the cost is seen to be linear. CPU seconds and not those
of the clock, so that what else the machine does counts little; the peak of memory has Python and NumPy in it.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks import records
from benchmarks.records import Check
from warmup.miopen.damage import check_text
from warmup.miopen.finddb import FindDb, read_bytes

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
console = Console(stderr=True)
PARTS = {"whole": 1.0, "half": 0.5, "quarter": 0.25}
READ_S, CHECK_S, PEAK_MB = 2.5, 3.0, 400


@app.command()
def main(
    file: Annotated[Path, typer.Argument(help="A find-db, compressed or not.")],
    rounds: Annotated[int, typer.Option(min=1)] = 5,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = records.RESULTS,
    one: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Measure; exit status 1 where the goal is missed."""
    if one:
        print(json.dumps(measure(file)))
        return
    rows = {}
    with tempfile.TemporaryDirectory(prefix="preheat-benchmark-") as folder:
        for name, part in parts(file, Path(folder)):
            command = [sys.executable, "-m", "benchmarks.finddb", str(part), "--one"]
            runs = [json.loads(subprocess.check_output(command)) for _ in range(rounds)]
            rows[name] = {field: statistics.median(run[field] for run in runs) for field in runs[0]}
    checks = list(goals(rows))
    head = ["part", "MB", "records", "solvers timed", "read s", "read and check s", "peak MB"]
    table = records.table(head, [[name, *cells(row)] for name, row in rows.items()])
    title = "Reading MIOpen's largest shipped database"
    how = (__doc__ or "").partition("\n\n    ")[0]
    records.write("finddb", title, how, {file.name: table}, checks, rows, out)
    console.print((out / "finddb.md").read_text(encoding="utf-8"), markup=False, highlight=False)
    if not all(check.holds for check in checks):
        raise typer.Exit(1)


def measure(path: Path) -> dict[str, float]:
    """CPU seconds of reading with all values, and of that and checking; the peak memory in MB; of this process."""
    start = time.process_time()
    database = FindDb.read(path, "find")
    read = time.process_time()
    findings = check_text(database, path.name)
    checked = time.process_time()
    return {
        "bytes": len(database.data),
        "records": len(database),
        "solutions": database.solutions,
        "findings": len(findings),
        "read_s": read - start,
        "check_s": checked - start,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def parts(path: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    """The file, plain, and its beginnings up to the end of a line."""
    data = read_bytes(path)
    for name, share in PARTS.items():
        part = folder / f"{name}.txt"
        part.write_bytes(data[: data.rfind(b"\n", 0, int(len(data) * share)) + 1])
        yield name, part


def cells(row: Mapping[str, float]) -> list[str]:
    """One row of the table."""
    numbers = [f"{row['bytes'] / 1e6:.1f}", f"{row['records']:.0f}", f"{row['solutions']:.0f}"]
    return [*numbers, f"{row['read_s']:.2f}", f"{row['check_s']:.2f}", f"{row['peak_mb']:.0f}"]


def goals(rows: Mapping[str, Mapping[str, float]]) -> Iterator[Check]:
    """What reading must reach."""
    whole, quarter = rows["whole"], rows["quarter"]
    yield Check(f"all values read in under {READ_S} s", f"{whole['read_s']:.2f} s", whole["read_s"] < READ_S)
    yield Check(f"checked in under {CHECK_S} s", f"{whole['check_s']:.2f} s", whole["check_s"] < CHECK_S)
    yield Check(f"in under {PEAK_MB} MB", f"{whole['peak_mb']:.0f} MB", whole["peak_mb"] < PEAK_MB)
    slope = whole["read_s"] / quarter["read_s"] / (whole["bytes"] / quarter["bytes"])
    yield Check("linear: the whole costs no more per byte than its quarter", f"{slope:.2f} times", slope < 1.25)


if __name__ == "__main__":
    app()
