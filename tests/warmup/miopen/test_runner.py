"""The worker is played by a small script: what it does at a key is in the key."""

from __future__ import annotations

import sys
import time

import pytest

from warmup.miopen import runner
from warmup.miopen.runner import RunnerError, outcomes
from warmup.miopen.worker import Job

WORKER = r"""
import json, os, signal, sys
job = json.loads(sys.stdin.readline())
if job["library"]:
    sys.exit(f"cannot load {job['library']}")
print("{}", flush=True)
for line in sys.stdin:
    key = line.strip()
    if key == "abort":
        print("boost: terminate called", file=sys.stderr)
        os.kill(os.getpid(), signal.SIGKILL)
    if key == "exit":
        sys.exit("MIOpen Error: no such thing")
    answer = dict(key=key, first_seconds=0.5, steady_seconds=None, algorithm=os.environ["ANSWER"], milliseconds=1.0)
    print(json.dumps(dict(**answer, added=[f"by {os.getpid()}"], error="")), flush=True)
"""


@pytest.fixture(autouse=True)
def played(tmp_path, monkeypatch):
    script = tmp_path / "python"
    script.write_text(
        f"#!{sys.executable}\nimport sys\nassert sys.argv[1:] == ['-m', 'warmup.miopen.worker']\n{WORKER}"
    )
    script.chmod(0o755)
    monkeypatch.setattr(runner.sys, "executable", str(script))


def test_all_problems_run_in_one_process_with_the_environment_on_top():
    found = list(outcomes(["a", "b"], Job(), {"ANSWER": "GEMM"}))
    assert [(outcome.key, outcome.algorithm, outcome.error) for outcome in found] == [
        ("a", "GEMM", ""),
        ("b", "GEMM", ""),
    ]
    assert len({outcome.added for outcome in found}) == 1


def test_a_problem_at_which_the_process_dies_is_an_outcome_and_the_rest_runs_in_another():
    found = list(outcomes(["a", "abort", "b", "exit", "c"], Job(), {"ANSWER": "GEMM"}))
    assert [outcome.key for outcome in found] == ["a", "abort", "b", "exit", "c"]
    assert found[1].error == "the process ended by SIGKILL: boost: terminate called"
    assert found[3].error == "the process ended with status 1: MIOpen Error: no such thing"
    assert len({found[at].added for at in (0, 2, 4)}) == 3


def test_a_process_that_cannot_start_is_one_error():
    with pytest.raises(RunnerError, match="MIOpen cannot run: the process ended with status 1: cannot load /no/lib"):
        list(outcomes(["a"], Job(library="/no/lib"), {}))


def test_nothing_is_begun_after_the_deadline():
    found = []
    for outcome in outcomes(["a", "b"], Job(), {"ANSWER": ""}, deadline=time.monotonic() + 3600):
        found.append(outcome.key)
    assert found == ["a", "b"]
    assert list(outcomes(["a", "b"], Job(), {"ANSWER": ""}, deadline=time.monotonic() - 1)) == []


def test_no_problems_need_no_process():
    assert list(outcomes([], Job(library="/no/lib"), {})) == []
