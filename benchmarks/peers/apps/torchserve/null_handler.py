"""The null model as a TorchServe handler."""

from __future__ import annotations

import numpy as np

OUTPUT = {"outputs": [{"name": "y", "shape": [1, 1], "datatype": "FP32", "data": [0.0]}]}


def handle(data, context):
    if data is None:
        return None
    for row in data:
        body = row.get("body") or row.get("data")
        if isinstance(body, dict):  # TorchServe has parsed JSON already
            tensor = body["inputs"][0]
            np.asarray(tensor["data"], dtype=np.float32).reshape(tensor["shape"])
        else:
            np.frombuffer(body, dtype=np.float32).reshape(1, 3, 224, 224)
    return [OUTPUT] * len(data)
