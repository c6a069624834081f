"""How much work a node of an ONNX graph is: multiply-adds of convolutions and matrix products, outputs of the rest.

Weights the nodes of a placement: a Slice on the CPU is not what a Conv there would be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

# What only says how the same numbers are looked at, or is known before the model runs.
FREE = frozenset(
    {
        "Constant",
        "ConstantOfShape",
        "Flatten",
        "Identity",
        "Reshape",
        "Shape",
        "Size",
        "Squeeze",
        "Unsqueeze",
        "Dropout",
    }
)
_CONVOLUTIONS = frozenset({"Conv", "FusedConv", "QLinearConv", "ConvInteger", "NhwcFusedConv"})
_PRODUCTS = frozenset({"MatMul", "FusedMatMul", "MatMulInteger"})
Dims = Sequence[int]


def operations(op: str, inputs: Sequence[Dims], outputs: Sequence[Dims]) -> int:
    """The operations of one node: multiply-adds of a convolution or a matrix product, one for each number that any
    other node writes. ``inputs`` are the dims of its inputs in order; a quantised convolution's are taken as a Conv's.
    """
    if op in FREE or not outputs:
        return 0
    if op in _CONVOLUTIONS and len(inputs) > 1:
        weights = inputs[3] if op == "QLinearConv" and len(inputs) > 3 else inputs[1]
        return math.prod(outputs[0]) * math.prod(weights[1:])
    if op == "ConvTranspose" and len(inputs) > 1:
        return math.prod(inputs[0]) * math.prod(inputs[1][1:])
    if op in _PRODUCTS and inputs and inputs[0]:
        return math.prod(outputs[0]) * inputs[0][-1]
    if op == "Gemm" and len(inputs) > 1:  # transposed or not, the sizes are m x k, k x n and m x n
        return math.isqrt(math.prod(inputs[0]) * math.prod(inputs[1]) * math.prod(outputs[0]))
    return sum(map(math.prod, outputs))
