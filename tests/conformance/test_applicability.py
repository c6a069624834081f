"""What only the library can say of a record: which of its solvers it would take."""

from __future__ import annotations

import json

import pytest

from warmup.miopen.problem import ConvProblem

pytestmark = pytest.mark.miopen
THREE, ONE = (
    ConvProblem.from_dims((2, 8, 14, 14), (8, 8, size, size), pad=(size // 2,) * 2, stride=(1, 1), dilation=(1, 1))
    for size in (3, 1)
)
# GEMM of a 1x1 filter, and a solver in assembly, which Debian's build does not have.
ONLY_ONE = "GemmFwd1x1_0_1:0.001,0,miopenConvolutionFwdAlgoGEMM"
ASSEMBLY = "ConvAsm3x3U:0.002,0,miopenConvolutionFwdAlgoDirect"
UNKNOWN = "ConvNoSuchFwd:0.003,0,miopenConvolutionFwdAlgoDirect"


@pytest.fixture
def database(standin, home):
    """The find-db of a machine that has tuned both problems."""
    standin.find(home, [THREE, ONE], MIOPEN_FIND_MODE="1")
    (path,) = (home.root / "db").glob("*.ufdb.txt")
    return path


def asked(standin, home, *arguments: str) -> tuple[int, list[tuple[str, str]]]:
    """The exit status of the check, and what it found, by code and key."""
    done = standin.run(home, "-m", "serving", "db", "check", "--on-device", "--json", *map(str, arguments))
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, [(finding["code"], finding["key"]) for finding in json.loads(done.stdout)["findings"]]


def test_what_the_library_wrote_it_takes(standin, home, database):
    before = database.read_bytes(), sorted(home.root.rglob("*"))
    assert asked(standin, home, database) == (0, [])
    assert (database.read_bytes(), sorted(home.root.rglob("*"))) == before


def test_a_solver_that_does_not_apply_is_told_and_is_what_the_library_skips(standin, home, database):
    lines = database.read_text().splitlines()
    database.write_text("".join(f"{line};{ASSEMBLY}\n" for line in lines))
    assert asked(standin, home, database) == (1, [("inapplicable-solver", line.split("=")[0]) for line in lines])
    only_wrong = {THREE.find_db_key(): ONLY_ONE, ONE.find_db_key(): f"{ASSEMBLY};{UNKNOWN}"}
    database.write_text("".join(f"{key}={items}\n" for key, items in only_wrong.items()))
    _, findings = asked(standin, home, database)
    assert sorted(findings) == sorted(
        [("unknown-solver", ONE.find_db_key()), *(("inapplicable-solver", key) for key in only_wrong)]
    )
    clock = database.with_name(f"{database.name}.time")
    clock.unlink(missing_ok=True)
    standin.find(home, [THREE, ONE], MIOPEN_FIND_MODE="5")
    assert clock.exists(), "with none of its solvers left, a record is a miss"


def test_another_device_s_database_cannot_be_asked_about(standin, home, database, tmp_path):
    foreign = tmp_path / database.name.replace("gfx90a68", "gfx90a6e")
    foreign.write_text(database.read_text())
    done = standin.run(home, "-m", "serving", "db", "check", "--on-device", str(foreign))
    assert done.returncode == 2
    assert done.stderr.strip().endswith("it is of gfx90a6e, this machine's device is gfx90a68")
