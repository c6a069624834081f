from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from typer.testing import CliRunner

from serving.bench import read_result
from serving.cli.bench import app

runner = CliRunner()


def test_a_run_as_table_and_file(stub: Callable, tmp_path: Path) -> None:
    out = tmp_path / "warm.json"
    arguments = [stub().url, "--model", "m", "--requests", "20", "--first", "5", "--label", "warm", "-o", str(out)]
    answer = runner.invoke(app, arguments)
    assert answer.exit_code == 0, answer.output
    assert "first 5: P99" in answer.output and "then: P99.9" in answer.output
    assert read_result(out).label == "warm"


def test_json_on_request(stub: Callable) -> None:
    answer = runner.invoke(app, [stub().url, "--model", "m", "--requests", "20", "--json"])
    document = json.loads(answer.stdout)
    assert answer.exit_code == 0 and document["requests"] == 20 and document["hit_rate"] == 0.9


def test_earlier_results_stand_beside_it(stub: Callable, tmp_path: Path) -> None:
    out = tmp_path / "cold.json"
    server = stub()
    base = [server.url, "--model", "m", "--requests", "5"]
    assert runner.invoke(app, [*base, "--label", "cold", "--out", str(out)]).exit_code == 0
    both = runner.invoke(app, [*base, "--label", "warm", "--against", str(out)])
    assert both.exit_code == 0 and "cold" in both.output and "warm" in both.output
    alone = runner.invoke(app, ["--against", str(out), "--json"])
    assert alone.exit_code == 0 and json.loads(alone.stdout)["label"] == "cold"


def test_failed_requests_end_with_one(stub: Callable) -> None:
    async def reply(request: object, number: int) -> bytes:
        return b"HTTP/1.1 503 X\r\ncontent-length: 0\r\n\r\n"

    answer = runner.invoke(app, [stub(reply).url, "--model", "m", "--requests", "3"])
    assert answer.exit_code == 1 and "3 x 503" in answer.output


def test_gates_hold_or_end_with_one(stub: Callable) -> None:
    base = [stub().url, "--model", "m", "--requests", "20"]
    assert runner.invoke(app, [*base, "--max-p99", "60", "--min-hit-rate", "0.9"]).exit_code == 0
    slow = runner.invoke(app, [*base, "--max-p99", "0.000001"])
    assert slow.exit_code == 1 and "P99 of the first 300 requests is" in slow.output
    cold = runner.invoke(app, [stub().url, *base[1:], "--min-hit-rate", "0.91"])
    assert cold.exit_code == 1 and "the hit rate is 90.0000%, at least 91.0000% is wanted" in cold.output


def test_a_gate_on_what_is_not_measured_does_not_hold(stub: Callable) -> None:
    answer = runner.invoke(app, [stub(metrics=False).url, "--model", "m", "--requests", "5", "--min-hit-rate", "0.5"])
    assert answer.exit_code == 1 and "does not count hits" in answer.output


def test_what_cannot_run_ends_with_two(tmp_path: Path) -> None:
    for arguments, message in (
        ([], "a URL to measure is needed"),
        (["http://127.0.0.1:1"], "--model is needed"),
        (["http://127.0.0.1:1", "--model", "m"], "127.0.0.1:1: "),
        (["ftp://x", "--model", "m"], "is not of the form"),
        (["--against", str(tmp_path / "absent.json")], "absent.json"),
        (["http://127.0.0.1:1", "--model", "m", "--shapes", str(tmp_path / "absent.json")], "absent.json"),
        (["http://127.0.0.1:1", "--model", "m", "--images", str(tmp_path)], "no files in"),
    ):
        answer = runner.invoke(app, arguments)
        assert answer.exit_code == 2, (arguments, answer.output)
        assert message in answer.stderr.replace("\n", " ")
