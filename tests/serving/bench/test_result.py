from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from serving.bench.exposition import Lookups
from serving.bench.load import Sample
from serving.bench.machine import this_machine
from serving.bench.result import BenchResult, ResultError, compare, read_result


def result(label: str, times: list[float], first: int = 2, codes: dict[int, str] | None = None) -> BenchResult:
    samples = [
        Sample(index % 2, index * 0.1, seconds, 0.0, (codes or {}).get(index, "200"))
        for index, seconds in enumerate(times)
    ]
    return BenchResult(
        label=label,
        url="http://127.0.0.1:1",
        model="m",
        started="2026-01-01T00:00:00+00:00",
        command="preheat bench",
        machine=this_machine(),
        seed=0,
        concurrency=8,
        rate=None,
        first=first,
        seconds=2.0,
        client_cpu=0.1,
        asks=("x=1:fp32", "x=2:fp32"),
        samples=tuple(samples),
        lookups=Lookups({"warm": 3, "padded": 0, "cold": 1}, 4),
    )


def test_first_and_steady_parts_leave_errors_out() -> None:
    measured = result("a", [5.0, 4.0, 0.1, 0.2, 9.0], codes={1: "503", 4: "timeout"})
    assert measured.first_part is not None and (measured.first_part.count, measured.first_part.max) == (1, 5.0)
    assert measured.steady_part is not None and (measured.steady_part.count, measured.steady_part.max) == (2, 0.2)
    assert measured.errors == {"503": 1, "timeout": 1}
    assert measured.per_second == 1.5


def test_no_steady_part_where_all_were_first() -> None:
    assert result("a", [1.0, 2.0]).steady_part is None


def test_json_keeps_everything(tmp_path: Path) -> None:
    measured = result("a", [5.0, 0.123456, 0.1], codes={2: "lost"})
    path = tmp_path / "a.json"
    path.write_text(json.dumps(measured.to_json()))
    assert read_result(path) == measured


@pytest.mark.parametrize(
    "text", ["{}", "[]", "{", '{"format": "preheat-bench/1"}', '{"format": "preheat-bench/1", "samples": 3}']
)
def test_other_files_are_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(ResultError, match=r"a\.json"):
        read_result(path)


def test_samples_of_unknown_requests_are_refused() -> None:
    document = json.loads(json.dumps(result("a", [1.0]).to_json()))
    document["samples"]["ask"] = [2]
    with pytest.raises(ResultError, match="not listed"):
        BenchResult.from_json(document)


def test_absent_file(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="No such file"):
        read_result(tmp_path / "a.json")


def test_runs_stand_side_by_side() -> None:
    console = Console(file=io.StringIO(), width=120)
    console.print(compare([result("cold", [5.0, 4.0, 0.1]), result("warm", [0.012, 0.01], codes={1: "503"})]))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    lines = {line.split("│")[1].strip(): line.split("│")[2:4] for line in text.splitlines() if line.count("│") > 3}
    assert [cell.strip() for cell in lines["first 2: P99"]] == ["5.00 s", "12.00 ms"]
    assert [cell.strip() for cell in lines["then: P99"]] == ["100.00 ms", "-"]
    assert [cell.strip() for cell in lines["errors"]] == ["0", "1 x 503"]
    assert [cell.strip() for cell in lines["hit rate"]] == ["75.0%", "75.0%"]
    assert "cold" in text and "warm" in text
