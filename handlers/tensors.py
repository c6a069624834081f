"""The default handler: tensors in, tensors out, over the Open Inference Protocol or as NumPy's ``.npy`` file."""

from __future__ import annotations

import io
import math

import numpy as np

from handlers.errors import InvalidInput
from handlers.handler import Handler, Payload, Prepared
from handlers.shapes import DTYPES

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class TensorHandler(Handler):
    """Takes a body in NumPy's format for a model with one input; everything else has to come as named tensors."""

    def preprocess(self, payload: Payload) -> Prepared:
        if not payload.body.startswith(np.lib.format.MAGIC_PREFIX):
            return super().preprocess(payload)
        if len(self.spec.inputs) != 1:
            names = ", ".join(tensor.name for tensor in self.spec.inputs)
            raise InvalidInput(f"model {self.spec.name!r} has the inputs {names}: one .npy file cannot hold them")
        declared = self.spec.inputs[0]
        array = read_npy(payload.body)
        wanted = np.dtype(DTYPES[declared.dtype][0])
        if array.dtype != wanted:
            raise InvalidInput(f"input {declared.name!r} is {array.dtype} in the .npy file, the model takes {wanted}")
        if declared.sizes(array.shape) is None or 0 in array.shape:
            dims = list(array.shape)
            raise InvalidInput(f"input {declared.name!r} has dims {dims}, the model takes {list(declared.dims)}")
        return Prepared({declared.name: array})


def read_npy(body: bytes) -> np.ndarray:
    """The array in a ``.npy`` file, over the body's own memory; raises InvalidInput where header and data disagree.

    Objects are refused: they are pickles. Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
    """
    file = io.BytesIO(body)
    try:
        dims, fortran, dtype = _HEADERS[np.lib.format.read_magic(file)](file)
    except KeyError as error:
        raise InvalidInput(f"version {error} of the .npy format is not taken, only 1.0 and 2.0") from error
    except Exception as error:  # NumPy parses the header with Python's own tokenizer, and lets its errors through
        raise InvalidInput(f"the .npy header is damaged: {error}") from error
    if not isinstance(dtype, np.dtype) or not all(isinstance(dim, int) and dim >= 0 for dim in dims):
        raise InvalidInput(f"the .npy header says {dims} of {dtype}, which is no array")
    if dtype.hasobject:
        raise InvalidInput("the .npy file holds Python objects; only numbers are taken")
    expected, found = math.prod(dims) * dtype.itemsize, len(body) - file.tell()
    if expected != found:
        raise InvalidInput(f"the .npy header says {list(dims)} of {dtype}, {expected} bytes; the file has {found}")
    if not expected:
        return np.empty(dims, dtype)
    flat = np.frombuffer(body, dtype, offset=file.tell())
    return np.ascontiguousarray(flat.reshape(dims, order="F" if fortran else "C"))
