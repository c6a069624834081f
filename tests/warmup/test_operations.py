from __future__ import annotations

import pytest

from warmup.operations import operations


@pytest.mark.parametrize(
    ("op", "inputs", "outputs", "expected"),
    [
        ("Conv", [(1, 3, 8, 8), (4, 3, 3, 3), (4,)], [(1, 4, 6, 6)], 4 * 36 * 27),
        ("FusedConv", [(2, 8, 8, 8), (8, 2, 3, 3)], [(2, 8, 8, 8)], 2 * 8 * 64 * 18),  # four groups
        ("QLinearConv", [(1, 3, 8, 8), (), (), (4, 3, 1, 1)], [(1, 4, 8, 8)], 4 * 64 * 3),
        ("ConvTranspose", [(1, 8, 4, 4), (8, 2, 2, 2)], [(1, 2, 8, 8)], 8 * 16 * 8),
        ("MatMul", [(2, 5, 7), (7, 3)], [(2, 5, 3)], 2 * 5 * 3 * 7),
        ("Gemm", [(5, 7), (7, 3), (3,)], [(5, 3)], 5 * 7 * 3),
        ("Gemm", [(7, 5), (3, 7)], [(5, 3)], 5 * 7 * 3),
        ("Relu", [(2, 3)], [(2, 3)], 6),
        ("Split", [(2, 4)], [(2, 2), (2, 2)], 8),
        ("Reshape", [(2, 3), (1,)], [(6,)], 0),
        ("Shape", [(2, 3)], [(2,)], 0),
        ("Relu", [()], [], 0),
    ],
)
def test_the_work_of_a_node(op: str, inputs: list, outputs: list, expected: int) -> None:
    assert operations(op, inputs, outputs) == expected
