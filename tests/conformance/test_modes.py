"""What docs/miopen.md says about the find modes, asked of the real library in fresh processes."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from warmup.miopen.problem import ConvProblem

pytestmark = pytest.mark.miopen
PROBLEM = ConvProblem.from_dims((8, 16, 28, 28), (32, 16, 3, 3), pad=(1, 1), stride=(1, 1), dilation=(1, 1))
NORMAL, FAST, HYBRID, DYNAMIC_HYBRID = ({"MIOPEN_FIND_MODE": mode} for mode in "1235")


def record(home) -> dict[str, str]:
    """Solver to its values, of the one record in the find-db; empty where there is none."""
    files = list((home.root / "db").glob("*.ufdb.txt"))
    lines = files[0].read_text().splitlines() if files else []
    items = [item.partition(":") for line in lines for item in line.split("=")[1].split(";")]
    return {solver: values for solver, _, values in items}


def launches(standin, home, **settings: str) -> int:
    before = home.count("launch")
    standin.find(home, [PROBLEM], **settings)
    return home.count("launch") - before


def test_normal_searches_again_in_a_new_process_where_the_others_use_the_record(standin, home):
    first, again = launches(standin, home, **NORMAL), launches(standin, home, **NORMAL)
    assert again > first / 2, "the record is there, and every solver is timed again"
    for mode in (FAST, HYBRID, DYNAMIC_HYBRID):
        assert launches(standin, home, **mode) <= 4, "what is executed, and no search"


def test_fast_never_writes_a_record(standin, home):
    for _ in range(2):
        standin.find(home, [PROBLEM], **FAST)
    assert home.keys() == set()


def test_a_miss_while_serving_is_named_by_the_log_of_calls_and_not_by_the_kernel_cache(standin, home):
    """Rows of the cache hold no dims, kernels are shared, and a miss that rocBLAS answers compiles nothing."""
    dims = [((3, 64, 14, 14), 3), ((4, 64, 14, 14), 3), ((2, 8, 14, 14), 1)]
    misses = [
        ConvProblem.from_dims(x, (8, x[1], size, size), pad=(size // 2,) * 2, stride=(1, 1), dilation=(1, 1))
        for x, size in dims
    ]
    standin.find(home, [PROBLEM], **NORMAL)
    standin.find(home, [PROBLEM], **FAST)
    before = kernel_rows(home)
    drive = str(Path(__file__).with_name("drive.py"))
    asked = [PROBLEM, *misses]
    done = standin.run(home, drive, input=standin.calls(asked), **FAST, MIOPEN_ENABLE_LOGGING_CMD="1")
    assert done.returncode == 0
    assert len(kernel_rows(home) - before) < len(misses)
    (database,) = (home.root / "db").glob("*.ufdb.txt")
    lines = "\n".join(line for line in done.stderr.splitlines() if "LogCmdFindConvolution" in line)
    named = standin.run(home, "-m", "serving", "key", "--missing-from", str(database), input=lines)
    assert named.stdout.split() == [problem.find_db_key() for problem in misses]


def kernel_rows(home) -> set[tuple[str, str]]:
    rows = set()
    for path in (home.root / "cache").glob("*.ukdb"):
        with closing(sqlite3.connect(path)) as cache:
            rows.update(cache.execute("SELECT kernel_name, kernel_args FROM kern_db"))
    return rows


def test_the_default_modes_record_is_poorer_and_only_normal_replaces_it(standin, home):
    standin.find(home, [PROBLEM])
    poor = record(home)
    for mode in (DYNAMIC_HYBRID, HYBRID, FAST):
        standin.find(home, [PROBLEM], **mode)
        assert record(home) == poor
    standin.find(home, [PROBLEM], **NORMAL)
    rich = record(home)
    assert poor.keys() < rich.keys()
    assert min(float(values.split(",")[0]) for values in rich.values()) < min(
        float(values.split(",")[0]) for values in poor.values()
    )


def test_enforcing_a_search_makes_every_mode_normal(standin, home):
    standin.find(home, [PROBLEM], **FAST, MIOPEN_FIND_ENFORCE="3", MIOPEN_DEBUG_TUNING_ITERATIONS_MAX="2")
    assert home.keys() == {PROBLEM.find_db_key()}


def test_another_device_or_version_starts_files_of_its_own(standin, home, make_home):
    standin.find(home, [PROBLEM])
    (mine,) = (home.root / "db").glob("*.ufdb.txt")
    for arch, cu in (("gfx90a:sramecc+:xnack-", 110), ("gfx90a:sramecc+:xnack+", 104), ("gfx942", 104)):
        standin.find(make_home("home", arch=arch, cu=cu), [PROBLEM])
    later = mine.rename(mine.with_name(mine.name.replace(standin.version, "3_9_9_")))
    standin.find(home, [PROBLEM])
    names = {path.name.split(".")[0] for path in (home.root / "db").glob("*.ufdb.txt")}
    assert names == {"gfx90a68", "gfx90a6e", "gfx90a_xnack68", "gfx94268"}
    assert mine.exists() and later.read_text() == mine.read_text(), "the renamed file was neither read nor changed"
