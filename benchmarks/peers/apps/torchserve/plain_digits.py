"""The digit reader as a team writes it for TorchServe: BaseHandler loads and compiles the model (``pt2`` in
model-config.yaml), requests of one size run together. What becomes of a body before and after the model is the same
code as in Preheat's handler, so that only the serving differs.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import torch
from ts.torch_handler.base_handler import BaseHandler

from handlers.digit_reader import DigitReader
from handlers.handler import Payload
from handlers.spec import load_spec


class PlainDigits(BaseHandler):
    def initialize(self, context):
        torch.set_num_threads(1)
        super().initialize(context)
        folder = Path(context.system_properties["model_dir"]) / "model"
        self.reader = DigitReader()
        self.reader.initialize(load_spec(folder), folder)

    def preprocess(self, data):
        return [self.reader.preprocess(Payload(bytes(row.get("data") or row.get("body")), "image/png")) for row in data]

    def inference(self, data, *args, **kwargs):
        groups = defaultdict(list)
        for index, prepared in enumerate(data):
            groups[prepared.inputs["image"].shape].append(index)
        answers = [None] * len(data)
        with torch.inference_mode():
            for indices in groups.values():
                images = torch.cat([torch.from_numpy(data[index].inputs["image"]) for index in indices])
                for index, cells in zip(indices, self.model(images).split(1), strict=True):
                    answers[index] = (cells.numpy(), data[index].context)
        return answers

    def postprocess(self, data):
        return [self.reader.postprocess({"cells": cells}, context) for cells, context in data]
