"""The null model on MLServer: Open Inference Protocol in JSON, and a custom route for bytes, since MLServer's REST has
no binary tensor extension."""

from __future__ import annotations

import numpy as np
from fastapi import Request, Response
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.handlers import custom_handler
from mlserver.types import InferenceRequest, InferenceResponse

ZERO = np.zeros((1, 1), dtype=np.float32)


class Null(MLModel):
    async def load(self) -> bool:
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        NumpyCodec.decode_input(payload.inputs[0])
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("y", ZERO)])

    @custom_handler(rest_path="/bytes")
    async def tensor_as_bytes(self, request: Request) -> Response:
        np.frombuffer(await request.body(), dtype=np.float32).reshape(1, 3, 224, 224)
        return Response('{"outputs":[{"name":"y","shape":[1,1],"datatype":"FP32","data":[0.0]}]}')
