from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from handlers.shapes import Shape
from serving.bench import BenchError, run

X = Shape.parse("x=1x3:fp32")


def test_shapes_of_the_servers_plan_and_its_own_count_of_hits(stub: Callable) -> None:
    server = stub()
    ticks: list[int] = []
    result = run(server.url, "m", requests=50, concurrency=4, first=10, label="cold", tick=lambda: ticks.append(1))
    assert Counter(request.path for request in server.seen) == {"/v2/models/m/infer": 50} and len(ticks) == 50
    assert set(result.asks) == {"x=1x3:fp32", "x=2x3:fp32", "x=1x5:fp32"}
    assert result.lookups is not None and result.lookups.outcomes == {"cold": 2, "warm": 48, "padded": 0}
    assert result.hit_rate == pytest.approx(0.96) and result.lookups.new_entries == 6
    assert result.first_part is not None and result.first_part.count == 10
    assert result.steady_part is not None and result.steady_part.count == 40
    assert result.errors == {} and result.per_second > 0 and result.client_cpu > 0
    assert result.label == "cold" and result.machine.cores >= 1 and result.late is None


def test_a_second_run_counts_only_its_own_lookups(stub: Callable) -> None:
    server = stub()
    run(server.url, "m", requests=5)
    again = run(server.url, "m", requests=7)
    assert again.lookups is not None and again.lookups.outcomes == {"cold": 0, "warm": 7, "padded": 0}
    assert again.hit_rate == 1.0


def test_the_same_seed_sends_the_same_requests(stub: Callable) -> None:
    server = stub()
    first = run(server.url, "m", requests=30, seed=7)
    second = run(server.url, "m", requests=30, seed=7)
    assert [sample.ask for sample in first.samples] == [sample.ask for sample in second.samples]


def test_open_loop(stub: Callable) -> None:
    result = run(stub().url, "m", requests=20, rate=500.0)
    assert result.late is not None and result.late.count == 20
    assert result.rate == 500.0 and result.concurrency is None


def test_given_shapes_and_another_server(stub: Callable) -> None:
    server = stub(metrics=False)
    result = run(server.url, "m", requests=3, shapes=[(X, 1.0)])
    assert result.asks == ("x=1x3:fp32",)
    assert result.lookups is None and result.hit_rate is None


def test_one_batch_size_of_the_plan(stub: Callable) -> None:
    assert run(stub().url, "m", requests=3, batch=2).asks == ("x=2x3:fp32",)


def test_files(stub: Callable, tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"picture")
    server = stub()
    result = run(server.url, "m", requests=2, images=[tmp_path / "a.jpg"])
    assert result.asks == ("a.jpg",)
    assert [(request.path, request.body) for request in server.seen] == [("/predictions/m", b"picture")] * 2


def test_errors_are_a_result(stub: Callable) -> None:
    async def reply(request: object, number: int) -> bytes:
        return b"HTTP/1.1 %d X\r\ncontent-length: 0\r\n\r\n" % (503 if number % 2 else 200)

    result = run(stub(reply).url, "m", requests=6, concurrency=1)
    assert result.errors == {"503": 3}
    assert result.first_part is not None and result.first_part.count == 3


@pytest.mark.parametrize("options", [{"requests": 0}, {"concurrency": 0}, {"rate": -1.0}, {"first": 0}, {"batch": 9}])
def test_what_cannot_be_run(stub: Callable, options: dict) -> None:
    with pytest.raises(BenchError, match="above 0|batch size 9"):
        run(stub().url, "m", **options)


def test_no_server_and_no_plan(stub: Callable) -> None:
    with pytest.raises(BenchError, match="127.0.0.1:1: "):
        run("http://127.0.0.1:1", "m", shapes=[(X, 1.0)])
    server = stub()
    server.shapes.append({"shape": "nonsense", "weight": 1})
    with pytest.raises(BenchError, match="cannot be read"):
        run(server.url, "m")
