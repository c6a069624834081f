"""Tune, seal, prove on the real library; what is proven is silent in any later process, and in another place."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from warmup.miopen.contents import entries
from warmup.miopen.problem import ConvProblem
from warmup.stores.miopen import SERVE_MODE, MIOpenStore
from warmup.stores.store import Phase

pytestmark = pytest.mark.miopen
HERE = Path(__file__).parent
SWEEP = str(HERE / "sweep_keys.py")


def small(batch: int, dilation: int = 1, channels: int = 8) -> str:
    problem = ConvProblem.from_dims(
        (batch, channels, 14, 14),
        (channels, channels, 3, 3),
        pad=(dilation, dilation),
        stride=(1, 1),
        dilation=(dilation, dilation),
    )
    return problem.find_db_key()


KEYS = (small(1), small(2), small(4, dilation=2), "8-14-14-3x3-16-14-14-3-1x1-1x1-1x1-0-NHWC-NHWC-NHWC-FP16-F_g2")


@pytest.fixture
def machine(make_home):
    """An MI300X: Debian's library has only solvers without tuning for it, so that a sweep takes no time."""
    return make_home("machine", arch="gfx942:sramecc+:xnack-", cu=304)


def sweep(standin, home, out: Path, keys, workers: int = 1, **settings: str) -> dict:
    done = standin.run(home, SWEEP, str(out), str(workers), input="".join(f"{key}\n" for key in keys), **settings)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def ask(standin, home, root: Path, phase: Phase, keys) -> list[dict]:
    """A fresh process with the settings of a phase: what each problem took, and what it added to the store."""
    environment = dict(MIOpenStore().settings(phase, root).environment)
    lines = "".join(f"{line}\n" for line in (json.dumps({"root": str(root), "repeats": 2}), *keys))
    done = standin.run(home, "-m", "warmup.miopen.worker", input=lines, **environment)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()[1:]]


def contents(root: Path) -> dict[str, str]:
    files = [path for folder in ("db", "cache") for path in (root / folder).rglob("*") if path.is_file()]
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_proven_store_is_silent_in_every_later_process(standin, machine, tmp_path):
    report = sweep(standin, machine, tmp_path / "out", KEYS)
    assert [problem["key"] for problem in report["problems"] if not problem["proven"]] == []
    assert report["proven"] == len(KEYS) and report["seal_passes"] == 2, "the second pass finds nothing left to add"
    root = Path(report["store"])
    before, compiled = contents(root), machine.count("compile")
    answers = ask(standin, machine, root, Phase.SERVE, KEYS)
    assert all(not answer["added"] and not answer["error"] for answer in answers)
    assert machine.count("compile") == compiled
    assert contents(root) == before
    assert [answer["milliseconds"] for answer in answers] == pytest.approx(
        [problem["milliseconds"] for problem in report["problems"]]
    ), "what serves is what was tuned"


def test_sealing_is_needed_since_serving_compiles_other_kernels_than_tuning(standin, machine, tmp_path):
    (tmp_path / "store").mkdir()
    for key in KEYS[:1]:
        (tuned,) = ask(standin, machine, tmp_path / "store", Phase.TUNE, [key])
        (sealed,) = ask(standin, machine, tmp_path / "store", Phase.SEAL, [key])
    kinds = [{entry.split(":")[0] for entry in answer["added"]} for answer in (tuned, sealed)]
    assert kinds == [{"find", "kernel"}, {"kernel"}]


def test_tuning_fills_the_perf_db_where_solvers_can_be_tuned(standin, home, tmp_path):
    report = sweep(standin, home, tmp_path / "out", [small(2)], MIOPEN_DEBUG_TUNING_ITERATIONS_MAX="3")
    assert report["proven"] == 1
    kinds = [entry.split(":")[0] for entry in entries(Path(report["store"]))]
    assert kinds.count("perf") == 1 and kinds.count("find") == 1 and kinds.count("kernel") > 3


def test_a_store_made_in_one_directory_serves_in_another(standin, machine, make_home, tmp_path):
    report = sweep(standin, machine, tmp_path / "out", KEYS)
    elsewhere = make_home("other", arch=machine.arch, cu=machine.cu)
    root = tmp_path / "moved" / "here"
    store = MIOpenStore()
    store.tidy(Path(report["store"]))
    shutil.move(report["store"], root)
    answers = ask(standin, elsewhere, root, Phase.SERVE, KEYS)
    assert all(not answer["added"] and not answer["error"] for answer in answers)
    assert elsewhere.count("compile") == 0 and elsewhere.count("launch") > 0


def test_a_miss_is_named_by_its_key_while_proving_and_costs_no_search_while_serving(standin, machine, tmp_path):
    root = Path(sweep(standin, machine, tmp_path / "out", KEYS)["store"])
    proving, serving = tmp_path / "proving", tmp_path / "serving"
    for copy in (proving, serving):
        shutil.copytree(root, copy)
    other = small(7)
    (named,) = ask(standin, machine, proving, Phase.PROVE, [other])
    assert f"find:{other}" in named["added"]
    (silent,) = ask(standin, machine, serving, Phase.SERVE, [other])
    assert not [entry for entry in silent["added"] if entry.startswith("find:")]
    assert MIOpenStore().problem_keys(serving) == set(KEYS)


def test_a_server_that_records_its_misses_names_them_by_key(standin, machine, tmp_path, monkeypatch):
    root = Path(sweep(standin, machine, tmp_path / "out", KEYS)["store"])
    monkeypatch.setenv(SERVE_MODE, "5")
    *known, missed = ask(standin, machine, root, Phase.SERVE, [*KEYS, small(7)])
    assert all(not answer["added"] for answer in known)
    assert f"find:{small(7)}" in missed["added"]


def test_a_problem_that_takes_the_process_down_costs_only_itself(standin, machine, tmp_path):
    """Here the process ends at a key that is none; a library that aborts ends it in the same way."""
    code = """
import json, sys
from warmup.miopen.runner import outcomes
from warmup.miopen.worker import Job
for outcome in outcomes(sys.argv[1:], Job(), {}):
    print(json.dumps([outcome.key, outcome.error]))
"""
    done = standin.run(machine, "-c", code, small(1), "no-key", small(2))
    answers = dict(json.loads(line) for line in done.stdout.splitlines())
    assert answers[small(1)] == answers[small(2)] == ""
    assert answers["no-key"].startswith("the process ended with status 1: ")


def test_no_device_is_one_error(standin, machine, tmp_path):
    code = """
import sys
from warmup.miopen.runner import RunnerError, outcomes
from warmup.miopen.worker import Job
try:
    list(outcomes(["x"], Job(library="/no/such/libMIOpen.so.1"), {}))
except RunnerError as error:
    sys.exit(str(error))
"""
    done = standin.run(machine, "-c", code)
    assert done.returncode == 1
    assert done.stderr.startswith(
        "MIOpen cannot run: the process ended with status 1: MIOpen cannot be loaded: /no/such"
    )


def test_a_killed_sweep_goes_on_where_it_was(standin, machine, tmp_path):
    keys = [small(batch) for batch in range(1, 9)]
    command = [str(standin.python), SWEEP, str(tmp_path / "out"), "1"]
    process = subprocess.Popen(
        command,
        env=machine.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None and process.stderr is not None
    with process:
        process.stdin.write("".join(f"{key}\n" for key in keys))
        process.stdin.close()
        begun = [process.stderr.readline().split() for _ in range(3)]
        os.killpg(process.pid, signal.SIGKILL)
    assert begun == [["tune", key] for key in keys[:3]]
    done = standin.run(machine, SWEEP, str(tmp_path / "out"), "1", input="".join(f"{key}\n" for key in keys))
    tuned = [line.split()[1] for line in done.stderr.splitlines() if line.startswith("tune ")]
    assert not set(tuned) & set(keys[:3]), "what was tuned is not tuned again"
    assert json.loads(done.stdout)["proven"] == len(keys)
    assert list((tmp_path / "out" / "parts").iterdir()) == []


def test_a_list_of_driver_lines_and_keys_is_tuned_from_the_command_line(standin, machine, tmp_path):
    line = (
        "MIOpen(HIP): Command [LogCmdFindConvolution] ./bin/MIOpenDriver convfp16 -n 2 -c 8 -H 14 -W 14 -k 16 -y 3 "
        "-x 3 -p 1 -q 1 -u 1 -v 1 -l 1 -j 1 -m conv -g 1 -F 1 -t 1"
    )
    key = "8-14-14-3x3-16-14-14-2-1x1-1x1-1x1-0-NCHW-FP16-F"
    (tmp_path / "problems.txt").write_text(f"{line}\n{key}\n{small(3)}\n")
    arguments = ("warm", "--problems", str(tmp_path / "problems.txt"), "--out", str(tmp_path / "out"), "--json")
    done = standin.run(machine, "-c", "from serving.cli import main; main()", *arguments)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [problem["key"] for problem in report["problems"]] == [key, small(3)] and report["proven"] == 2
    (database,) = (tmp_path / "out" / "stores" / "miopen" / "db").glob("*.ufdb.txt")
    assert {record.split("=")[0] for record in database.read_text().splitlines()} == {key, small(3)}
