"""Times of decoding and encoding inference requests, in this process on one thread.

    python -m benchmarks.codec

CPU time of the best of several rounds (other work on the machine only ever adds to it), beside general JSON libraries
doing the part of the work that they can do.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import orjson
import typer
from rich.console import Console

from benchmarks import records
from benchmarks.records import Check
from handlers.spec import TensorSpec
from serving.http import oip
from serving.http.oip_answers import encode

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
console = Console(stderr=True)

IMAGE = oip.Decoder((TensorSpec(name="x", dtype="fp32", dims=("batch", 3, "height", "width")),))
SMALL = oip.Decoder((TensorSpec(name="x", dtype="fp32", dims=("batch", 4)),))

LARGE_JSON = "decode JSON, 150,528 floats, flat"
SMALL_JSON = "decode JSON, 4 floats"
SMALL_ANSWER = "encode JSON, 4 floats"
GOALS = {LARGE_JSON: 5000.0, SMALL_JSON: 10.0, SMALL_ANSWER: 5.0}  # microseconds


@app.command()
def main(
    rounds: Annotated[int, typer.Option(min=1)] = 15,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = records.RESULTS,
) -> None:
    """Measure; exit status 1 where a goal is missed."""
    times = measure(rounds)
    checks = [
        Check(f"{case}: under {goal:g} us", f"{times[case]:,.1f} us", times[case] < goal)
        for case, goal in GOALS.items()
    ]
    rows = [[case, f"{microseconds:,.1f}"] for case, microseconds in times.items()]
    text = records.table(["case", "CPU time, us"], rows)
    how = f"One thread, best of {rounds} rounds of about 50 ms each. Tensors are 1x3x224x224 (602 KB) and 1x4, float32."
    records.write("codec", "Decoding and encoding of requests", how, {"Times": text}, checks, times, out)
    records.conclude(checks, console)


def measure(rounds: int) -> dict[str, float]:
    """Microseconds by case."""
    generator = np.random.default_rng(0)
    image = generator.random((1, 3, 224, 224), dtype=np.float32)
    small = generator.random((1, 4), dtype=np.float32)
    flat, nested, tiny = json_body(image), json_body(image, nested=True), json_body(small)
    aligned, aligned_head = binary_body(image, align=True)
    shifted, shifted_head = binary_body(image, align=False)
    tiny_binary, tiny_head = binary_body(small, align=True)
    request = SMALL.decode(tiny, None)
    binary_request = SMALL.decode(tiny_binary, tiny_head)
    logits = {"y": generator.random((1, 4), dtype=np.float32)}
    typed = msgspec.json.Decoder(list[float])
    numbers = flat[flat.index(b'"data":') + 7 : -3]

    cases: dict[str, Callable[[], object]] = {
        LARGE_JSON: lambda: IMAGE.decode(flat, None),
        "decode JSON, 150,528 floats, nested": lambda: IMAGE.decode(nested, None),
        "orjson.loads of 150,528 floats, to a list": lambda: orjson.loads(flat),
        "msgspec list[float] of 150,528 floats, to a list": lambda: typed.decode(numbers),
        "json.loads of 150,528 floats, to a list": lambda: json.loads(flat),
        SMALL_JSON: lambda: SMALL.decode(tiny, None),
        "orjson.loads of 4 floats, nothing checked": lambda: orjson.loads(tiny),
        "decode binary, 602 KB, aligned (a view)": lambda: IMAGE.decode(aligned, aligned_head),
        "decode binary, 602 KB, not aligned (a copy)": lambda: IMAGE.decode(shifted, shifted_head),
        "decode binary, 16 bytes": lambda: SMALL.decode(tiny_binary, tiny_head),
        SMALL_ANSWER: lambda: encode("m", "1", request, logits),
        "encode binary, 16 bytes": lambda: encode("m", "1", binary_request, logits),
        "encode JSON, 150,528 floats": lambda: encode("m", "1", request, {"y": image}),
        "encode binary, 602 KB": lambda: encode("m", "1", binary_request, {"y": image}),
    }
    return {name: best_microseconds(call, rounds) for name, call in cases.items()}


def best_microseconds(call: Callable[[], object], rounds: int, seconds: float = 0.05) -> float:
    """The least mean CPU time of one call over ``rounds`` rounds of about ``seconds`` each."""
    call()
    start = time.process_time()
    call()
    repeat = max(1, int(seconds / max(time.process_time() - start, 1e-6)))
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        for _ in range(repeat):
            call()
        best = min(best, (time.process_time() - start) / repeat)
    return best * 1e6


def json_body(array: np.ndarray, nested: bool = False) -> bytes:
    """An inference request with ``array`` as JSON, printed with as many digits as a float32 needs."""
    entry = {"name": "x", "shape": array.shape, "datatype": "FP32", "data": array if nested else array.reshape(-1)}
    return orjson.dumps({"id": "1", "inputs": [entry]}, option=orjson.OPT_SERIALIZE_NUMPY)


def binary_body(array: np.ndarray, align: bool) -> tuple[bytes, int]:
    """An inference request with ``array`` as binary data; ``align`` pads the JSON so that the data needs no copy."""
    parameters = {"binary_data_size": array.nbytes}
    entry = {"name": "x", "shape": array.shape, "datatype": "FP32", "parameters": parameters}
    head = orjson.dumps({"id": "1", "inputs": [entry], "parameters": {"binary_data_output": True}})
    length = -(-len(head) // 8) * 8 if align else len(head) + (len(head) % 2 == 0)
    head = head.ljust(length)
    return head + array.tobytes(), len(head)


if __name__ == "__main__":
    app()
