"""A model in a bare loop in this process: what a server is compared with. Run as a process of its own:

    taskset --cpu-list 0 python -m benchmarks.raw_loop FOLDER SHAPES.json

SHAPES.json is a list of shapes, run in this order, one at a time, from a NumPy array to a NumPy array. Prints JSON with
the wall and processor seconds that it took after every distinct shape ran twice.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from handlers.engines.engine import example
from handlers.shapes import Shape
from handlers.sources import resolve
from handlers.spec import ModelSpec, load_spec


def main(folder: Path, shapes: list[str]) -> dict[str, float]:
    """Wall and processor seconds for all shapes, on one thread."""
    spec = load_spec(folder)
    run = _session(spec, folder) if spec.engine.kind == "onnx" else _module(spec, folder)
    inputs = {text: next(iter(example(Shape.parse(text)).values())) for text in dict.fromkeys(shapes)}
    for array in [*inputs.values()] * 2:
        run(array)
    wall, cpu = time.perf_counter(), time.process_time()
    for text in shapes:
        run(inputs[text])
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}


def _module(spec: ModelSpec, folder: Path) -> Callable[[np.ndarray], object]:
    """PyTorch's own call, eagerly."""
    import torch

    from handlers.engines.module import build_module

    torch.set_num_threads(1)
    module = build_module(spec, folder).eval()

    @torch.inference_mode()
    def run(array: np.ndarray) -> object:
        return module(torch.from_numpy(array)).numpy()

    return run


def _session(spec: ModelSpec, folder: Path) -> Callable[[np.ndarray], object]:
    """ONNX Runtime's own ``session.run`` on its CPU provider."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    path = resolve(spec.engine.source, folder)
    session = onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda array: session.run(None, {name: array})


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()))))
