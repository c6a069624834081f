"""Batch normalisation folded into the convolution or linear layer before it: the same function in fewer kernels."""

from __future__ import annotations

from torch import nn
from torch.fx.experimental.optimization import fuse

from handlers.errors import ModelError


def folded(module: nn.Module, model: str) -> nn.Module:
    """A module in evaluation mode without the normalisations that can be folded; the given one stays as it is.

    Raises ModelError where the module's code cannot be traced, or where no normalisation can be folded.
    """
    try:
        result = fuse(module)
    except Exception as error:  # tracing runs the model's own code, which may fail in any way
        why = str(error).strip().split("\n", 1)[0]
        raise ModelError(f"{model}: engine.fold_batchnorm: the model cannot be traced: {why}") from error
    if _normalisations(result) == _normalisations(module):
        raise ModelError(
            f"{model}: engine.fold_batchnorm: no normalisation stands behind a convolution or linear layer"
        )
    return result


def _normalisations(module: nn.Module) -> int:
    return sum(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules())
