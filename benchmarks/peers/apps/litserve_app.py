"""The null model on LitServe: JSON, or the tensor as an uploaded file, which is how LitServe takes bytes."""

from __future__ import annotations

import sys

import litserve
import numpy as np


class Null(litserve.LitAPI):
    def setup(self, device: str) -> None:
        self.output = {"outputs": [{"name": "y", "shape": [1, 1], "datatype": "FP32", "data": [0.0]}]}

    def decode_request(self, request):  # a dict from JSON, or a form
        if "file" in request:
            return np.frombuffer(request["file"].file.read(), dtype=np.float32).reshape(1, 3, 224, 224)
        tensor = request["inputs"][0]
        return np.asarray(tensor["data"], dtype=np.float32).reshape(tensor["shape"])

    def predict(self, x: np.ndarray) -> dict:
        return self.output

    def encode_response(self, output: dict) -> dict:
        return output


if __name__ == "__main__":
    server = litserve.LitServer(Null(), accelerator="cpu", workers_per_device=1, timeout=60)
    server.run(
        host="127.0.0.1", port=int(sys.argv[1]), num_api_servers=1, log_level="error", generate_client_file=False
    )
