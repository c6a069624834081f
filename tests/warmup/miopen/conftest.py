"""Small databases written here, and the shipped ones where the machine has them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data" / "miopen"

FORWARD = "64-56-56-3x3-64-56-56-16-1x1-1x1-1x1-0-NCHW-FP32-F"
BACKWARD = "64-112-112-7x7-3-224-224-16-3x3-2x2-1x1-0-NCHW-FP32-B"
WEIGHTS = "32-28-28-3x3-32-28-28-16-1x1-1x1-1x1-0-NHWC-NHWC-NHWC-FP16-W_g32"
DEPTH = "16-8-28-30-3x5x3-32-8-14-30-2-1x2x1-1x2x1-1x1x1-0-NCDHW-BF16-F"
GEMM = "GemmFwdRest:0.811666,3612672,miopenConvolutionFwdAlgoGEMM"
NAIVE = "ConvDirectNaiveConvFwd:2.14738,0,miopenConvolutionFwdAlgoDirect"
WINOGRAD = "ConvBinWinogradRxSf2x3g1:5.68561e-02,0,miopenConvolutionFwdAlgoWinograd"
SOUND = (
    f"{FORWARD}={GEMM};{WINOGRAD};{NAIVE}\n"
    f"{BACKWARD}=GemmBwdRest:6.18466,4831838208,miopenConvolutionBwdDataAlgoGEMM\n"
    f"{WEIGHTS}=ConvOclBwdWrW2<16>:245391,0,miopenConvolutionBwdWeightsAlgoDirect\n"
    f"{DEPTH}={GEMM}\n"
)
_FWD = "miopenConvolutionFwdAlgo"
LEGACY = (
    f"{FORWARD}={_FWD}Winograd:ConvBinWinogradRxSf2x3g1,0.12268,0,{_FWD}Winograd,<unused>;"
    f"{_FWD}GEMM:GemmFwdRest,0.35955,10225600,{_FWD}GEMM,not used\n"
)
USER_NAME = "gfx942130.HIP.3_4_0_.ufdb.txt"


@pytest.fixture
def database(tmp_path: Path) -> Callable[..., Path]:
    """Writes a database file with the given content and name."""

    def write(content: str | bytes, name: str = USER_NAME) -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode("latin-1"))
        return path

    return write


@pytest.fixture(scope="session")
def shipped() -> Path:
    """The folder with real rows and real databases of MIOpen."""
    if not SHARED.is_dir():
        pytest.skip(f"no real databases on this machine: {SHARED} is absent")
    return SHARED
