"""Damaged databases: found before the library meets them, as bad as docs/miopen.md says, and hits once repaired."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from warmup.miopen.checkup import check
from warmup.miopen.mending import repair_file
from warmup.miopen.problem import ConvProblem
from warmup.stores.miopen import MIOpenStore

pytestmark = pytest.mark.miopen
DRIVE = Path(__file__).with_name("drive.py")
FACTS = {"arch": "gfx942:sramecc+:xnack-", "cu": 304}
PROBLEMS = [
    ConvProblem.from_dims((batch, 8, 14, 14), (8, 8, 3, 3), pad=(1, 1), stride=(1, 1), dilation=(1, 1))
    for batch in (1, 2, 3)
]
OTHER = ConvProblem.from_dims((9, 8, 14, 14), (8, 8, 3, 3), pad=(1, 1), stride=(1, 1), dilation=(1, 1))
FIRST, SECOND, THIRD = (problem.find_db_key() for problem in PROBLEMS)
HIT, MISS, FAILS = "hit", "miss", "fails"


@dataclass(frozen=True)
class Damage:
    """What is done to the first problem's ``line`` or to the ``whole`` text, and what comes of it.

    ``code`` are the findings, separated by spaces. ``before`` and ``after`` the repair are of the first problem; the
    others are hits after it.
    """

    code: str
    before: str
    after: str = HIT
    line: Callable[[str], str] | None = None
    whole: Callable[[str], str] | None = None

    def apply(self, text: str) -> str:
        if self.whole:
            return self.whole(text)
        assert self.line is not None
        return "".join(
            self.line(line) + "\n" if line.startswith(FIRST + "=") else line + "\n" for line in text.splitlines()
        )


def items(line: str) -> list[str]:
    return line.partition("=")[2].split(";")


def first_time(line: str, time: str) -> str:
    """The record with the first solver's time replaced."""
    head, _, rest = line.partition(":")
    return f"{head}:{time},{rest.partition(',')[2]}"


def last_workspace(line: str, workspace: str) -> str:
    head, _, rest = line.rpartition(":")
    time, _, algorithm = rest.split(",")
    return f"{head}:{time},{workspace},{algorithm}"


def joined(text: str) -> str:
    """The first record's line with the next one appended to it, as an append to a line without a newline leaves it."""
    lines = sorted(text.splitlines(), key=lambda line: not line.startswith(FIRST + "="))
    return "\n".join([lines[0] + lines[1], *lines[2:]]) + "\n"


def legacy(line: str) -> str:
    def item(text: str) -> str:
        solver, _, values = text.partition(":")
        time, workspace, algorithm = values.split(",")
        return f"{algorithm}:{solver},{time},{workspace},{algorithm},<unused>"

    return f"{FIRST}={';'.join(map(item, items(line)))}"


DAMAGES = {
    "cut after a solver": Damage("cut-record", FAILS, line=lambda line: line[: line.rindex(":") + 1]),
    "cut in an algorithm": Damage("bad-algorithm", FAILS, line=lambda line: line[:-4]),
    "an algorithm of another name": Damage("bad-algorithm", FAILS, line=lambda line: line + "x"),
    "no final newline": Damage("no-final-newline", HIT, whole=lambda text: text.rstrip("\n")),
    "two records on one line": Damage("glued-lines", FAILS, whole=joined),
    "cut in the key": Damage("ill-formed", MISS, after=MISS, line=lambda line: line[:20]),
    "a comment": Damage("ill-formed", HIT, line=lambda line: f"# tuned by hand\n{line}"),
    "zeros from a crash": Damage("ill-formed", HIT, line=lambda line: f"{line}\n=" + "\0" * 40),
    "no key": Damage("ill-formed", HIT, line=lambda line: f"=x\n{line}"),
    "no values, then the record": Damage("empty-record duplicate-key", MISS, line=lambda line: f"{FIRST}=\n{line}"),
    "the key twice": Damage("duplicate-key", HIT, line=lambda line: f"{line}\n{line}"),
    "a solver twice": Damage("duplicate-solver", HIT, line=lambda line: f"{line};{items(line)[0]}"),
    "a time that is no number": Damage("bad-time", HIT, line=lambda line: first_time(line, "abc")),
    "a time of nan": Damage("bad-time", HIT, line=lambda line: first_time(line, "nan")),
    "a time below zero": Damage("bad-time", HIT, line=lambda line: first_time(line, "-1")),
    "a workspace below zero": Damage("bad-workspace", FAILS, line=lambda line: last_workspace(line, "-1")),
    "an unknown solver": Damage(
        "unknown-solver",
        HIT,
        line=lambda line: line.replace("=", "=ConvNoSuchFwd:0.1,0,miopenConvolutionFwdAlgoDirect;", 1),
    ),
    "carriage returns": Damage("crlf", HIT, whole=lambda text: text.replace("\n", "\r\n")),
    "a byte order mark": Damage(
        "leading-junk",
        MISS,
        whole=lambda text: (
            "\ufeff" + "\n".join(sorted(text.splitlines(), key=lambda line: not line.startswith(FIRST + "="))) + "\n"
        ),
    ),
    "a leading space": Damage("leading-junk", MISS, line=lambda line: " " + line),
    "the old format": Damage("", HIT, line=legacy),
}


@pytest.fixture(scope="module")
def sound(standin, home_at, tmp_path_factory):
    """A machine on which the three problems are hits that compile nothing."""
    home = home_at(tmp_path_factory.mktemp("sound") / "home", **FACTS)
    for mode in ("1", "2"):
        standin.find(home, PROBLEMS, MIOPEN_FIND_MODE=mode)
    MIOpenStore().tidy(home.root)
    home.log.unlink()
    return home


def database(home) -> Path:
    """The find-db of a home that was copied from the sound one."""
    (path,) = (home.root / "db").glob("*.ufdb.txt")
    return path


def outcome(standin, home, problems) -> str:
    """What the library makes of problems in a fresh process: hits, a miss (it searches and writes), or a failure."""
    path = database(home)
    clock = path.with_name(f"{path.name}.time")  # written with every record, also with one that replaces its equal
    clock.unlink(missing_ok=True)
    answers = standin.find(home, problems, MIOPEN_FIND_MODE="5")
    if any("error" in answer for answer in answers):
        return FAILS
    return MISS if clock.exists() else HIT


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damage_is_found_before_the_library_meets_it_and_repaired_for_it(standin, sound, make_home, damage):
    text = damage.apply(database(sound).read_text())
    damaged, repaired = make_home("damaged", **FACTS), make_home("repaired", **FACTS)
    for home in (damaged, repaired):
        shutil.copytree(sound.root, home.root)
        database(home).write_text(text, newline="")
    path = database(repaired)
    assert {finding.code for finding in check(path)} == set(damage.code.split())
    assert outcome(standin, damaged, PROBLEMS[:1]) == damage.before
    if damage.code not in ("", "unknown-solver"):
        repair_file(path, path)
        assert check(path) == []
    assert outcome(standin, repaired, PROBLEMS[1:]) == HIT
    assert outcome(standin, repaired, PROBLEMS[:1]) == damage.after


def test_a_record_appended_to_a_line_without_its_newline_destroys_both(standin, sound, make_home):
    damaged, repaired = make_home("damaged", **FACTS), make_home("repaired", **FACTS)
    for home in (damaged, repaired):
        shutil.copytree(sound.root, home.root)
        path = database(home)
        path.write_text(path.read_text().rstrip("\n"))
    repair_file(database(repaired), database(repaired))
    for home in (damaged, repaired):
        standin.find(home, [OTHER], MIOPEN_FIND_MODE="5")
    assert len(database(damaged).read_text().splitlines()) == len(PROBLEMS), "glued"
    assert repaired.keys() == {FIRST, SECOND, THIRD, OTHER.find_db_key()}
    assert outcome(standin, repaired, [*PROBLEMS, OTHER]) == HIT


def _overwrite(path: Path) -> None:
    path.write_bytes(b"not SQLite at all" * 100)


def _change_code(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE kern_db SET kernel_hash = 'ffff'")


@pytest.mark.parametrize("spoil", [_overwrite, _change_code])
def test_a_damaged_kernel_cache_fails_every_find_until_it_is_repaired(standin, sound, make_home, spoil):
    home = make_home("home", **FACTS)
    shutil.copytree(sound.root, home.root)
    cache = home.root / "cache" / "gfx942130.ukdb"
    spoil(cache)
    assert {finding.code for finding in check(cache)} == {"bad-kernels"}
    assert outcome(standin, home, PROBLEMS[:1]) == FAILS
    repair_file(cache, cache)
    assert check(cache) == []
    assert outcome(standin, home, PROBLEMS) == HIT
    assert home.count("compile") >= 1, "what could not be saved is compiled again"
    compiled = home.count("compile")
    assert outcome(standin, home, PROBLEMS) == HIT and home.count("compile") == compiled


def test_an_empty_database_is_found_and_filled(standin, sound, make_home):
    home = make_home("home", **FACTS)
    shutil.copytree(sound.root, home.root)
    path = database(home)
    path.write_text("")
    assert {finding.code for finding in check(path)} == {"empty-file"}
    assert outcome(standin, home, PROBLEMS) == MISS
    assert home.keys() == {FIRST, SECOND, THIRD}


def test_a_clock_of_another_host_is_found_and_never_shipped(sound, make_home):
    home = make_home("home", **FACTS)
    shutil.copytree(sound.root, home.root)
    path = database(home)
    clock = path.with_name(f"{path.name}.time")
    clock.write_text(str(10**18))
    assert {finding.code for finding in check(database(home))} == {"time-ahead"}
    MIOpenStore().tidy(home.root)
    assert not clock.exists()


def test_a_full_disk_cuts_a_record_and_the_next_process_fails_until_it_is_repaired(standin, sound, make_home):
    """A limit on the size of files stands for the disk: the write is cut at the same place, and no other file grows."""
    home = make_home("home", **FACTS)
    shutil.copytree(sound.root, home.root)
    path, cache = database(home), home.root / "cache" / "gfx942130.ukdb"
    record = path.read_text().splitlines()[0].partition("=")[2]
    batches = range(1000, 1000 + (16 << 20) // (len(FIRST) + len(record)))
    with path.open("a") as file:  # until it is larger than everything else that MIOpen writes
        file.writelines(f"{FIRST.replace('-1-1x1-', f'-{batch}-1x1-')}={record}\n" for batch in batches)
    sound_size = path.stat().st_size
    assert sound_size > 4 * cache.stat().st_size and check(path) == []
    done = standin.run(
        home, "-c", LIMITED, str(sound_size + len(FIRST) + 30), input=standin.calls([OTHER]), MIOPEN_FIND_MODE="5"
    )
    answer = json.loads(done.stdout)
    assert answer["error"].startswith("miopenConvolutionForwardGetSolution:"), "Find was content; who reads it is not"
    found = check(path)
    assert {finding.code for finding in found} >= {"no-final-newline"}
    last = len(path.read_text().splitlines())
    assert {finding.line for finding in found if finding.code in ("cut-record", "bad-algorithm")} == {last}
    assert outcome(standin, home, [OTHER]) == FAILS
    repair_file(path, path)
    assert check(path) == []
    assert outcome(standin, home, PROBLEMS) == HIT
    assert outcome(standin, home, [OTHER]) == MISS
    assert outcome(standin, home, [OTHER]) == HIT


LIMITED = f"""
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
runpy.run_path({str(DRIVE)!r}, run_name="__main__")
"""


def test_a_read_only_directory_is_found_and_serves_hits_and_never_learns(standin, sound, make_home):
    home = make_home("home", **FACTS)
    shutil.copytree(sound.root, home.root)
    plain = standin.unprivileged()
    path = database(home)
    before = path.read_bytes()
    path.chmod(0o444)
    path.parent.chmod(0o555)
    try:
        assert findings(plain, home) == {"read-only"}
        assert outcome(plain, home, PROBLEMS) == HIT
        for _ in range(2):
            launched = home.count("launch")
            (answer,) = plain.find(home, [OTHER], MIOPEN_FIND_MODE="5")
            assert "error" not in answer and home.count("launch") - launched > 4, "it searches again each time"
        assert path.read_bytes() == before
    finally:
        path.parent.chmod(0o755)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_found_and_a_miss_kills_the_process(standin, sound, make_home):
    home = make_home("home", **FACTS)
    shutil.copytree(sound.root, home.root)
    plain = standin.unprivileged()
    path = database(home)
    path.chmod(0o777)
    os.chown(path, 12345, 12345)
    assert findings(plain, home) == {"foreign-owner"}
    assert outcome(plain, home, PROBLEMS) == HIT
    done = plain.run(home, str(DRIVE), input=plain.calls([OTHER]), MIOPEN_FIND_MODE="5")
    assert done.returncode == -signal.SIGABRT and "cannot set permissions" in done.stderr
    assert home.keys() >= {OTHER.find_db_key()}, "it had been appended"
    shutil.copy(path, path.with_name("own"))
    path.with_name("own").replace(path)  # what serving from a private copy does
    assert findings(plain, home) == set()
    assert outcome(plain, home, [*PROBLEMS, OTHER]) == HIT


def findings(standin, home) -> set[str]:
    """What ``preheat db check`` says of a home's find-db, in a process like the one that would use it."""
    done = standin.run(home, "-m", "serving", "db", "check", "--json", str(database(home)))
    assert done.returncode in (0, 1), done.stderr
    return {finding["code"] for finding in json.loads(done.stdout)["findings"]}


FOREIGN = {
    "gfx90a130.HIP.{0}": "it is of gfx90a, the device is a gfx942",
    "gfx942e4.HIP.{0}": "it is for 228 compute units, the device has 304",
    "gfx942_xnack130.HIP.{0}": "it is for xnack on, the device has it the other way",
    "gfx942130.HIP.3_0_9_": "it is of MIOpen 3.0.9, the library is {1}",
    "gfx942130.HIP.{0}76e3cde91": "it is of MIOpen {1}.76e3cde91, the library is {1}",
}


def test_databases_that_this_machine_would_not_read_are_refused_by_name(standin, sound, make_home):
    home = make_home("home", **FACTS)
    shutil.copytree(sound.root, home.root)
    mine = database(home)
    dotted = standin.version.strip("_").replace("_", ".")
    foreign = {
        f"{name.format(standin.version)}.ufdb.txt": told.format(standin.version, dotted)
        for name, told in FOREIGN.items()
    }
    for name in foreign:
        shutil.copy(mine, mine.with_name(name))
    mine.unlink()
    code = """
import sys
from pathlib import Path
from warmup.stores.miopen import MIOpenStore
for finding in MIOpenStore().check(Path(sys.argv[1])):
    print(finding.where, finding.what, sep=": ")
"""
    done = standin.run(home, "-c", code, str(home.root))
    assert sorted(done.stdout.splitlines()) == sorted(f"db/{name}: {told}" for name, told in foreign.items())
    standin.find(home, PROBLEMS[:1], MIOPEN_FIND_MODE="5")
    assert mine.read_text().startswith(FIRST), "the library started a file of its own"
