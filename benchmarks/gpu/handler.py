"""A model in a plain eager handler, as TorchServe's BaseHandler runs one, in a process of its own.

    python -m benchmarks.gpu.handler STORE MODEL

BaseHandler (ts/torch_handler/base_handler.py) makes a tensor of the data on the device, calls the model in inference
mode, and turns the result into lists. Prints the times of the first mixed requests and of the next, as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

from benchmarks.gpu.clients import curve
from benchmarks.gpu.subject import DRY, SUBJECTS
from handlers.engines.engine import example
from handlers.engines.module import build_module
from handlers.handler import Tensors
from handlers.shapes import Shape
from handlers.spec import load_spec
from serving.bench.latency import summarize
from serving.bench.traffic import sequence


def main() -> None:
    store, name = Path(sys.argv[1]), sys.argv[2]
    subject = SUBJECTS.get(name, DRY)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = build_module(load_spec(store / name), store / name).to(device)
    inputs = [example(Shape.parse(text))["images"] for text in subject.shapes]
    found: dict[str, object] = {}
    for part, seed in (("first", 0), ("steady", 1)):
        times = []
        for index in sequence(subject.weights, subject.first, seed):
            started = time.perf_counter()
            data = torch.as_tensor(inputs[index], device=device)
            with torch.inference_mode():
                result = model(data)
            result.tolist()
            times.append(time.perf_counter() - started)
        summary = summarize(times)
        assert summary is not None
        found[part] = {"times": summary.to_json(), "per_second": 1 / summary.mean, "curve": curve(times)}
    found["spread"] = _spread(model, [example(Shape.parse(subject.shapes[0]), seed) for seed in (0, 1)], device)
    print(json.dumps(found))


def _spread(model: torch.nn.Module, inputs: list[Tensors], device: torch.device) -> float:
    """By how much the outputs of two inputs differ, of the largest, around zero as those that captures are compared
    with: where that is nothing, to compare outputs says nothing either."""
    with torch.inference_mode():
        one, other = (model(torch.as_tensor(each["images"] - 0.5, device=device)) for each in inputs)
    return float((one - other).abs().max() / one.abs().max())


if __name__ == "__main__":
    main()
