"""The text detector as a team writes it for TorchServe: BaseHandler opens the ONNX model, requests of one size run
together. What becomes of a body before and after the model is the same code as in Preheat's handler.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
from ts.torch_handler.base_handler import BaseHandler

from handlers.handler import Payload
from handlers.spec import load_spec
from handlers.text_detector import TextDetector


class PlainTextDetector(BaseHandler):
    def initialize(self, context):
        super().initialize(context)
        folder = Path(context.system_properties["model_dir"]) / "model"
        self.detector = TextDetector()
        self.detector.initialize(load_spec(folder), folder)

    def preprocess(self, data):
        bodies = [bytes(row.get("data") or row.get("body")) for row in data]
        return [self.detector.preprocess(Payload(body, "image/png")) for body in bodies]

    def inference(self, data, *args, **kwargs):
        groups = defaultdict(list)
        for index, prepared in enumerate(data):
            groups[prepared.inputs["x"].shape].append(index)
        answers = [None] * len(data)
        for indices in groups.values():
            (maps,) = self.model.run(None, {"x": np.concatenate([data[index].inputs["x"] for index in indices])})
            for row, index in enumerate(indices):
                answers[index] = (maps[row : row + 1], data[index].context)
        return answers

    def postprocess(self, data):
        return [self.detector.postprocess({"map": found}, context) for found, context in data]
