"""Times of decoding and encoding inference requests, in this process on one thread: ``python benchmarks/codec.py``.

Prints the best of several rounds for each case (other work on the machine only ever adds time), in microseconds,
beside general JSON libraries doing the part of the work that they can do.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import msgspec
import numpy as np
import orjson

from handlers.spec import TensorSpec
from serving.http import oip

IMAGE = (TensorSpec(name="x", dtype="fp32", dims=("batch", 3, "height", "width")),)
SMALL = (TensorSpec(name="x", dtype="fp32", dims=("batch", 4)),)


def best_microseconds(call: Callable[[], object], rounds: int, seconds: float = 0.05) -> float:
    """The shortest mean time of one call over ``rounds`` rounds of about ``seconds`` each."""
    start = time.perf_counter()
    call()
    repeat = max(1, int(seconds / (time.perf_counter() - start + 1e-9)))
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(repeat):
            call()
        best = min(best, (time.perf_counter() - start) / repeat)
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


def measure(rounds: int) -> dict[str, float]:
    generator = np.random.default_rng(0)
    image = generator.random((1, 3, 224, 224), dtype=np.float32)
    small = generator.random((1, 4), dtype=np.float32)
    flat, nested, tiny = json_body(image), json_body(image, nested=True), json_body(small)
    aligned, aligned_head = binary_body(image, align=True)
    shifted, shifted_head = binary_body(image, align=False)
    tiny_binary, tiny_head = binary_body(small, align=True)
    request = oip.decode(tiny, None, SMALL)
    binary_request = oip.decode(tiny_binary, tiny_head, SMALL)
    logits = {"y": generator.random((1, 4), dtype=np.float32)}
    typed = msgspec.json.Decoder(list[float])
    numbers = flat[flat.index(b'"data":') + 7 : -3]

    cases: dict[str, Callable[[], object]] = {
        f"decode JSON, 150,528 floats, flat ({len(flat) / 1e6:.2f} MB)": lambda: oip.decode(flat, None, IMAGE),
        f"decode JSON, 150,528 floats, nested ({len(nested) / 1e6:.2f} MB)": lambda: oip.decode(nested, None, IMAGE),
        "  orjson.loads of the same, to Python floats": lambda: orjson.loads(flat),
        "  msgspec list[float] of its data": lambda: typed.decode(numbers),
        "  json.loads of the same": lambda: json.loads(flat),
        "decode JSON, 4 floats": lambda: oip.decode(tiny, None, SMALL),
        "  orjson.loads of the same, nothing checked": lambda: orjson.loads(tiny),
        "decode binary, 602 KB, aligned (a view)": lambda: oip.decode(aligned, aligned_head, IMAGE),
        "decode binary, 602 KB, not aligned (a copy)": lambda: oip.decode(shifted, shifted_head, IMAGE),
        "decode binary, 16 bytes": lambda: oip.decode(tiny_binary, tiny_head, SMALL),
        "encode JSON, 4 floats": lambda: oip.encode("m", "1", request, logits),
        "encode binary, 16 bytes": lambda: oip.encode("m", "1", binary_request, logits),
        "encode JSON, 150,528 floats": lambda: oip.encode("m", "1", request, {"y": image}),
        "encode binary, 602 KB": lambda: oip.encode("m", "1", binary_request, {"y": image}),
    }
    return {name: best_microseconds(call, rounds) for name, call in cases.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true", help="print microseconds by case as JSON")
    options = parser.parse_args()
    times = measure(options.rounds)
    if options.json:
        print(json.dumps(times, indent=2))
    else:
        for name, microseconds in times.items():
            print(f"{name:58} {microseconds:12,.1f} us")


if __name__ == "__main__":
    main()
