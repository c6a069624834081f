"""A model in a bare loop in this process: what a server is compared with. Run as a process of its own:

    taskset --cpu-list 0 python -m benchmarks.raw_loop FOLDER SHAPES.json

SHAPES.json is a list of shapes, run in this order, one at a time, from a NumPy array to a NumPy array. Prints JSON with
the wall and processor seconds that it took after every distinct shape ran twice.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

from handlers.engines.engine import example
from handlers.engines.torch import build_module
from handlers.shapes import Shape
from handlers.spec import load_spec


def main(folder: Path, shapes: list[str]) -> dict[str, float]:
    """Wall and processor seconds for all shapes, on one thread."""
    torch.set_num_threads(1)
    module = build_module(load_spec(folder), folder).eval()
    inputs = {text: next(iter(example(Shape.parse(text)).values())) for text in dict.fromkeys(shapes)}
    with torch.inference_mode():
        for array in [*inputs.values()] * 2:
            module(torch.from_numpy(array)).numpy()
        wall, cpu = time.perf_counter(), time.process_time()
        for text in shapes:
            module(torch.from_numpy(inputs[text])).numpy()
        return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()))))
