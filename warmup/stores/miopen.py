"""MIOpen's databases: the best solvers (find-db), their tuning (perf-db), and compiled code (kernel cache).

Why the phases differ, as the real library was seen to behave (docs/miopen.md): its NORMAL mode searches but never reads
its own records in a new process; FAST reads them, and on a miss neither searches nor writes, so it never makes a
request wait, and never tells of the miss either; DYNAMIC_HYBRID reads them on the same path as FAST, and on a miss
writes a record. So tuning is NORMAL, sealing and serving are FAST, and proving is DYNAMIC_HYBRID on a copy: only there
does a problem without a record show.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from handlers.spec import ModelSpec
from warmup.identity import LAYOUT_SWITCHES
from warmup.miopen import checkup, kernelcache
from warmup.miopen.contents import CACHE, DB, SCRATCH, database_files, entries, kernel_caches
from warmup.miopen.damage import DbFinding
from warmup.miopen.finddb import NotADatabase
from warmup.miopen.mending import merge_files, repair_file
from warmup.miopen.merge import one_target
from warmup.miopen.names import DbName, Device
from warmup.miopen.probe import ProbeError, database_stem
from warmup.stores.onnxruntime import provider_library
from warmup.stores.store import Finding, MergeReport, Phase, Settings, Store

# MIOPEN_FIND_MODE and MIOPEN_FIND_ENFORCE, as numbers: with a word that MIOpen does not know, every call fails.
NORMAL, FAST, HYBRID, DYNAMIC_HYBRID = "1", "2", "3", "5"
NO_ENFORCE, SEARCH = "1", "3"
_MODES = {Phase.TUNE: NORMAL, Phase.SEAL: FAST, Phase.PROVE: DYNAMIC_HYBRID, Phase.SERVE: FAST}
# Serving in another mode that reads records as FAST does: a miss is then searched and recorded, so that it has a name.
SERVE_MODE = "PREHEAT_MIOPEN_SERVE_MODE"
_SERVE_MODES = (FAST, HYBRID, DYNAMIC_HYBRID)
LOCKS = "miopen-lockfiles"  # beside the databases in some versions of MIOpen
_FIND_DB = ".ufdb.txt"


class MIOpenStore(Store):
    """Filled and read by torch models on PyTorch's ROCm build, and by ONNX models on AMD's providers."""

    name = "miopen"

    def applies(self, spec: ModelSpec) -> bool:
        if spec.engine.kind == "torch":
            return torch_is_for_hip()
        amd = {"rocm", "migraphx"} & set(spec.engine.providers)
        return spec.engine.kind == "onnx" and any(provider_library(name) for name in amd)

    def settings(self, phase: Phase, root: Path) -> Settings:
        """Makes the directories that MIOpen needs: without its temporary directory every call fails.

        Raises ValueError where $PREHEAT_MIOPEN_SERVE_MODE is none of 2, 3, 5.
        """
        root = root.absolute()
        for folder in (DB, CACHE, SCRATCH):
            (root / folder).mkdir(parents=True, exist_ok=True)
        tuning, proving = phase is Phase.TUNE, phase is Phase.PROVE
        environment = {
            "MIOPEN_USER_DB_PATH": str(root / DB),
            "MIOPEN_CUSTOM_CACHE_DIR": str(root / CACHE),
            # MIOpen's locks are in the temporary directory: with this one, all who share the store exclude each other.
            "TMPDIR": str(root / SCRATCH),
            "MIOPEN_FIND_MODE": _serve_mode() if phase is Phase.SERVE else _MODES[phase],
            # Tunes also where a caller does not ask for it, as ONNX Runtime never does.
            "MIOPEN_FIND_ENFORCE": SEARCH if tuning else NO_ENFORCE,
            # Where a solver was skipped for want of workspace, MIOpen writes no record unless told to.
            "MIOPEN_FIND_CONV_INSUFFICIENT_WORKSPACE_ALLOW_FINDDB_UPDATE": "1" if tuning or proving else "0",
            "MIOPEN_DISABLE_CACHE": "0",
            "MIOPEN_DEBUG_DISABLE_FIND_DB": "0",
        }
        return Settings(environment, framework={"torch.backends.cudnn.benchmark": tuning})

    def identity(self) -> dict[str, str]:
        """``arch``, ``units``, ``xnack``, ``version`` with the build's hash ("none" without MIOpen), and ``layout``."""
        layout = " ".join(f"{switch}={os.environ.get(switch) or '0'}" for switch in LAYOUT_SWITCHES)
        try:
            name = DbName.parse(database_stem() + _FIND_DB)
        except ProbeError:
            return {"arch": "none", "units": "none", "xnack": "none", "version": "none", "layout": layout}
        return {
            "arch": name.device.arch,
            "units": str(name.device.units),
            "xnack": "on" if name.device.xnack else "off",
            "version": str(name.version_text),
            "layout": layout,
        }

    def entries(self, root: Path) -> dict[str, str]:
        return entries(root)

    def merge(self, into: Path, sources: Iterable[Path]) -> MergeReport:
        """Joins find-dbs with the fastest time of each solver, and adds the parameters and kernels that are not there.

        What is damaged in a source is set aside in a file beside the database in ``into``. Raises MergeRefused where
        the stores are of different devices or versions of MIOpen, NotADatabase where a kernel cache is damaged.
        """
        sources = tuple(sources)
        _refuse_mixture([into, *sources])
        before = entries(into)
        offered = {entry for source in sources for entry in entries(source)}
        conflicts = []
        for source in sources:
            for path in (*database_files(source), *kernel_caches(source)):
                target = into / path.relative_to(source)
                target.parent.mkdir(parents=True, exist_ok=True)
                if path.suffix == ".ukdb":
                    told = _add_kernels(target, path)
                else:
                    present = [target] if target.exists() else []
                    told = [f"{c.key}: {c.what}" for c in merge_files(target, [*present, path]).conflicts]
                conflicts += [f"{path.name}: {text}" for text in told]
        added = entries(into).keys() - before.keys()
        return MergeReport(len(added), len(offered & before.keys()), tuple(conflicts))

    def check(self, root: Path) -> list[Finding]:
        """What is damaged, and which files are of another device or MIOpen than this machine has, where it has one."""
        try:
            name = DbName.parse(database_stem() + _FIND_DB)
        except ProbeError:
            name = None
        device, version = (name.device, name.version_text) if name else (None, None)
        findings = []
        for path in (*database_files(root), *kernel_caches(root)):
            for finding in _findings(path, device, version):
                findings.append(Finding(_within(root, finding.where), finding.what, finding.why, finding.repairable))
        return findings

    def tidy(self, root: Path) -> None:
        """Removes locks, scratch files, the clocks beside the databases and databases without a record.

        A ``.time`` holds the uptime of the host that wrote it: on a host that is up for less, MIOpen would read the
        whole database again at every lookup.
        """
        shutil.rmtree(root / SCRATCH, ignore_errors=True)
        for path in kernel_caches(root):
            _settle(path)
        for path in [path for path in root.rglob("*") if path.is_file()]:
            empty = not path.stat().st_size
            if path.name.endswith((".time", ".lock")) or empty:
                path.unlink()
        for folder in sorted((path for path in root.rglob("*") if path.is_dir()), reverse=True):
            if folder.name == LOCKS and not any(folder.iterdir()):
                folder.rmdir()

    def reclaim(self, root: Path, vouched: Mapping[str, str]) -> list[Finding]:
        """Mends what a killed process left half written. Records that are whole stay, vouched for or not: MIOpen writes
        a record when its search is over."""
        mended = []
        for path in (root / DB).glob("*.temp"):
            mended.append(_finish_rewrite(path))
        for path in (*database_files(root), *kernel_caches(root)):
            broken = [finding for finding in _findings(path, None, None) if finding.repairable]
            if broken:
                repair_file(path, path)
            mended += [Finding(_within(root, f.where), f.what, "its writer was killed", True) for f in broken]
        return mended

    def problem_keys(self, root: Path) -> set[str]:
        """The find-db keys that the store has a record for: what MIOpen will find there without searching."""
        return {entry.removeprefix("find:") for entry in entries(root) if entry.startswith("find:")}


def _serve_mode() -> str:
    mode = os.environ.get(SERVE_MODE) or _MODES[Phase.SERVE]
    if mode not in _SERVE_MODES:
        raise ValueError(f"${SERVE_MODE} is {mode!r}; allowed: {', '.join(_SERVE_MODES)}")
    return mode


def torch_is_for_hip() -> bool:
    """Read from the package's own version file, since importing PyTorch takes seconds."""
    package = importlib.util.find_spec("torch")
    if package is None or not package.submodule_search_locations:
        return False
    version = Path(package.submodule_search_locations[0]) / "version.py"
    return version.exists() and re.search(r"^hip\b[^=]*= '", version.read_text(), re.M) is not None


def _refuse_mixture(roots: Sequence[Path]) -> None:
    """MIOpen would read the files of its own device only, and nobody would know which part of a bundle is in use."""
    names: dict[str, list[DbName]] = {}
    for root in roots:
        for path in (*database_files(root), *kernel_caches(root)):
            name = DbName.parse(path.name)
            names.setdefault(name.kind, []).append(name)
    for group in names.values():
        one_target(group)


def _add_kernels(target: Path, source: Path) -> list[str]:
    """Adds the kernels that the target lacks; returns in words where both have another one of the same name."""
    if not source.stat().st_size:
        return []
    if not target.exists():
        kernelcache.write(target, ())
    mine, theirs = kernelcache.digests(target), kernelcache.digests(source)
    missing = theirs.keys() - mine.keys()
    if missing:
        kernelcache.add(target, (_sound(row, source) for row in kernelcache.kernels(source) if row.key in missing))
    different = sorted(key for key in theirs.keys() & mine.keys() if theirs[key] != mine[key])
    return [f"{name} {arguments}: compiled to other code; kept the first" for name, arguments in different]


def _sound(kernel: kernelcache.Kernel, source: Path) -> kernelcache.Kernel:
    fault = kernel.fault()
    if fault:
        raise NotADatabase(f"{source}: {fault}; repair it first")
    return kernel


def _findings(path: Path, device: Device | None, version: str | None) -> list[DbFinding]:
    """All that is wrong with a file; one without a byte is what a failed Find leaves, and hurts nobody."""
    if not path.stat().st_size:
        return []
    try:
        return checkup.check(path, device, version)
    except NotADatabase as error:
        return [DbFinding("not-a-database", str(path), str(error), "MIOpen finds nothing in it", repairable=False)]


def _within(root: Path, where: str) -> str:
    """A place in a file, named from the store's root."""
    return where.removeprefix(f"{root}/")


def _finish_rewrite(temporary: Path) -> Finding:
    """MIOpen rewrites a database by copying it to ``.temp``, removing it, and renaming the copy."""
    database = temporary.with_name(temporary.name.removesuffix(".temp"))
    if database.exists():
        temporary.unlink()
        return Finding(temporary.name, "an unfinished copy, removed", "its writer was killed", repairable=True)
    temporary.rename(database)
    return Finding(database.name, "had only been renamed halfway", "its writer was killed", repairable=True)


def _settle(cache: Path) -> None:
    """Moves what is still in SQLite's log into the file, and the log away."""
    log, index = (cache.with_name(f"{cache.name}-{ending}") for ending in ("wal", "shm"))
    if log.exists():
        with closing(sqlite3.connect(cache)) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for path in (log, index):
        path.unlink(missing_ok=True)
