"""``preheat db``: MIOpen's databases shown, checked, mended, merged and compared."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.table import Column, Table
from rich.text import Text

from serving.cli.output import console, errors, fail, print_json, reported
from warmup.miopen import checkup, mending
from warmup.miopen.applicability import CannotAsk, check_on_device
from warmup.miopen.describe import describe
from warmup.miopen.diff import EntryDiff, FindDiff, diff_entries, diff_find
from warmup.miopen.files import databases_in, kind_of, read_database
from warmup.miopen.finddb import FindDb, NotADatabase
from warmup.miopen.kernelcache import digests
from warmup.miopen.merge import MergeRefused
from warmup.miopen.names import DbNameError, Device
from warmup.miopen.writing import DbLocked

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="MIOpen's databases: ls, show, check, repair, merge, diff."
)

_File = Annotated[Path, typer.Argument(help="A find-db, fusion find-db, perf-db or kernel cache; text also as .bz2.")]
_Json = Annotated[bool, typer.Option("--json", help="Facts as JSON.")]
_Out = Annotated[Path, typer.Option("--out", "-o", help="The file to write.")]
_SHOWN = 20
_failures = (NotADatabase, OSError, DbLocked)


@app.command()
def show(file: _File, json_output: _Json = False) -> None:
    """What a database is: kind, device, version, format, and how much is in it."""
    with reported(*_failures):
        facts = describe(file)
    if json_output:
        print_json(facts)
        return
    table = _table("fact", "value")
    for name, value in facts.items():
        table.add_row(name.replace("_", " "), Text(", ".join(value) if isinstance(value, list) else str(value)))
    console.print(table)


@app.command("ls")
def list_databases(
    directories: Annotated[
        list[Path] | None, typer.Argument(help="Where to look; by default where MIOpen keeps its own.")
    ] = None,
    json_output: _Json = False,
) -> None:
    """The databases in some directories, or in those that MIOpen uses on this machine."""
    with reported(*_failures):
        for directory in directories or []:
            if not directory.is_dir():
                raise NotADatabase(f"{directory} is not a directory")
        found = [path for directory in directories or _default_directories() for path in databases_in(directory)]
        rows = [_row(path) for path in found]
    if json_output:
        print_json(rows)
        return
    table = _table("file", "kind", "arch", "units", "version", "records", "bytes")
    for row in rows:
        names = ("file", "kind", "arch", "cu_count", "version", "records", "bytes")
        table.add_row(*(Text(str("" if row.get(name) is None else row[name])) for name in names))
    console.print(table if rows else "no databases of MIOpen")


@app.command()
def check(
    file: _File,
    device: Annotated[
        str, typer.Option(help="The device that it is meant for, as in gfx942/304 or gfx90a:xnack+/104.")
    ] = "",
    version: Annotated[str, typer.Option(help="The MIOpen that it is meant for, as in 3.4.0 or 3.4.0.76e3cde91.")] = "",
    on_device: Annotated[
        bool,
        typer.Option("--on-device", help="Also ask this machine's MIOpen which solvers it would not take."),
    ] = False,
    json_output: _Json = False,
) -> None:
    """What is wrong with a database: exit status 1 if anything is."""
    with reported(*_failures, DbNameError, CannotAsk):
        findings = checkup.check(file, _device(device) if device else None, version or None)
        if on_device:
            findings += _asked(file)
    if json_output:
        print_json({"file": str(file), "ok": not findings, "findings": [asdict(finding) for finding in findings]})
    elif not findings:
        _say(f"{file}: no findings")
    else:
        _print_findings(findings)
    if findings:
        raise typer.Exit(1)


@app.command()
def repair(file: _File, out: _Out, json_output: _Json = False) -> None:
    """Writes a mended copy: what is sound stays byte for byte, what cannot be saved goes into OUT.set-aside."""
    with reported(*_failures):
        report = mending.repair_file(file, out)
    if json_output:
        print_json({"out": str(out), **_plain(asdict(report))})
        return
    _say(f"{out}: {report.records} records, {report.saved} saved from damaged lines")
    if report.aside:
        _say(f"{report.aside}: {report.lost} parts set aside, with the reasons")


@app.command()
def merge(
    files: Annotated[list[Path], typer.Argument(help="Databases of one kind, device and version.")],
    out: _Out,
    force: Annotated[bool, typer.Option("--force", help="Also join databases of other devices or versions.")] = False,
    json_output: _Json = False,
) -> None:
    """Joins databases: for each key every solver with its fastest time. Conflicts are told, with what was kept."""
    with reported(*_failures, MergeRefused):
        report = mending.merge_files(out, files, force=force)
    if json_output:
        print_json({"out": str(out), **_plain(asdict(report))})
        return
    _say(f"{out}: {report.records} records; to {files[0].name}: {report.added} added, {report.improved} improved")
    _print_some("conflict", [f"{conflict.key}: {conflict.what}" for conflict in report.conflicts])
    for path in report.aside:
        _say(f"{path}: what was damaged in a source")


@app.command()
def diff(
    old: Annotated[Path, typer.Argument(help="The database to compare with.")],
    new: Annotated[Path, typer.Argument(help="The database to compare.")],
    json_output: _Json = False,
) -> None:
    """Compares two databases by key and by the solver that MIOpen would choose; exit status 1 if they differ."""
    with reported(*_failures):
        kinds = {kind_of(old), kind_of(new)}
        if len(kinds) > 1:
            _different_kinds(old, new)
        if kinds == {"kernels"}:
            found = diff_entries(_joined_keys(digests(old)), _joined_keys(digests(new)))
        else:
            first, second = read_database(old), read_database(new)
            if isinstance(first, FindDb) and isinstance(second, FindDb):
                found = diff_find(first, second)
            elif isinstance(first, FindDb) or isinstance(second, FindDb):
                _different_kinds(old, new)
            else:
                found = diff_entries(first.records, second.records)
    if json_output:
        document = asdict(found)
        if isinstance(found, FindDiff):
            document |= {"lost_ms": found.lost_ms, "won_ms": found.won_ms}
            document["changed"] = [{**asdict(change), "lost_ms": change.lost_ms} for change in found.changed]
        print_json({"old": str(old), "new": str(new), **document})
    else:
        _print_diff(old, new, found)
    if found.differs:
        raise typer.Exit(1)


def _asked(file: Path) -> list[checkup.DbFinding]:
    database = read_database(file)
    if not isinstance(database, FindDb):
        raise CannotAsk(f"{file}: a perf-db; only a find-db's solvers can be asked about")
    return check_on_device(file, database)


def _different_kinds(old: Path, new: Path) -> NoReturn:
    raise NotADatabase(f"{old} and {new} are databases of different kinds")


def _joined_keys(entries: dict[tuple[str, str], str]) -> dict[str, str]:
    return {f"{name} {arguments}": digest for (name, arguments), digest in entries.items()}


def _say(text: str) -> None:
    """A line of any length; file names and keys are never taken for markup."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _table(*names: str) -> Table:
    """A table that shows its texts whole: a key or a path cut short is of no use."""
    return Table(*(Column(name, overflow="fold") for name in names))


def _print_findings(findings: Iterable[checkup.DbFinding]) -> None:
    findings = list(findings)
    table = _table("where", "what", "why it hurts", "repair")
    for finding in findings[:_SHOWN]:
        what, repairable = f"{finding.code}: {finding.what}", "yes" if finding.repairable else "no"
        table.add_row(Text(finding.where), Text(what), Text(finding.why), repairable)
    console.print(table)
    if len(findings) > _SHOWN:
        _say(f"and {len(findings) - _SHOWN} more; --json gives all")


def _print_diff(old: Path, new: Path, found: FindDiff | EntryDiff) -> None:
    _say(f"only in {old}: {len(found.only_old)}; only in {new}: {len(found.only_new)}")
    if isinstance(found, EntryDiff):
        _say(f"{len(found.changed)} with other content, {found.same} the same")
        _print_some("changed", found.changed)
        return
    _say(
        f"{len(found.changed)} choose another solver ({found.lost_ms:g} ms lost, {found.won_ms:g} ms won), "
        f"{found.same} the same (their times differ by {found.drift_ms:+g} ms)"
    )
    for change in found.changed[:_SHOWN]:
        _say(
            f"{change.lost_ms:+g} ms  {change.key}: {change.old} ({change.old_ms:g} ms) -> "
            f"{change.new} ({change.new_ms:g} ms)"
        )
    if len(found.changed) > _SHOWN:
        _say(f"and {len(found.changed) - _SHOWN} more; --json gives all")


def _print_some(label: str, texts: Iterable[str]) -> None:
    texts = list(texts)
    for text in texts[:_SHOWN]:
        errors.print(f"{label}: {text}", markup=False, soft_wrap=True)
    if len(texts) > _SHOWN:
        errors.print(f"{label}: {len(texts) - _SHOWN} more; --json gives all", markup=False)


def _plain(document: dict[str, Any]) -> dict[str, Any]:
    """Paths as text."""
    plain = {}
    for name, value in document.items():
        if isinstance(value, tuple):
            value = [str(item) if isinstance(item, Path) else item for item in value]
        plain[name] = str(value) if isinstance(value, Path) else value
    return plain


def _row(path: Path) -> dict[str, Any]:
    try:
        return describe(path)
    except NotADatabase as error:
        return {"file": str(path), "kind": "damaged", "error": str(error), "bytes": path.stat().st_size}


def _device(text: str) -> Device:
    match = re.fullmatch(r"(.+)/(\d+)", text)
    if not match:
        fail(f"--device {text!r}; expected arch and compute units, as in gfx942/304")
    return Device.of(match[1], int(match[2]))


def _default_directories() -> list[Path]:
    """Where MIOpen's own variables, or its defaults, put the databases of this user and of this system."""
    home = Path(os.environ.get("HOME") or "/tmp")
    candidates = [
        Path(os.environ.get("MIOPEN_USER_DB_PATH") or home / ".config" / "miopen").expanduser(),
        Path(os.environ.get("MIOPEN_CUSTOM_CACHE_DIR") or home / ".cache" / "miopen").expanduser(),
        Path(os.environ.get("MIOPEN_SYSTEM_DB_PATH") or "/opt/rocm/share/miopen/db"),
    ]
    return [directory for directory in candidates if directory.is_dir()]
