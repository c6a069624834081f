"""A model in a plain eager handler, as TorchServe's BaseHandler runs one, in a process of its own.

    python -m benchmarks.gpu_handler FOLDER

BaseHandler (ts/torch_handler/base_handler.py) makes a tensor of the data on the device, calls the model in inference
mode, and turns the result into lists. Prints the times of the first 1,500 mixed requests and of the next, as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

from benchmarks.gpu import FIRST, SHAPES, WEIGHTS
from handlers.engines.engine import example
from handlers.engines.torch import build_module
from handlers.shapes import Shape
from handlers.spec import load_spec
from serving.bench.latency import summarize
from serving.bench.traffic import sequence


def main() -> None:
    folder = Path(sys.argv[1])
    device = torch.device("cuda")
    model = build_module(load_spec(folder), folder).to(device)
    inputs = [example(Shape.parse(text))["images"] for text in SHAPES]
    found = {}
    for part, seed in (("first", 0), ("steady", 1)):
        times = []
        for index in sequence(WEIGHTS, FIRST, seed):
            started = time.perf_counter()
            data = torch.as_tensor(inputs[index], device=device)
            with torch.inference_mode():
                result = model(data)
            result.tolist()
            times.append(time.perf_counter() - started)
        summary = summarize(times)
        assert summary is not None
        found[part] = summary.to_json()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
