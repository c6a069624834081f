"""What is known of MIOpen's convolution solvers by name: which exist, which are dynamic, which are the naive ones.

Source: the registrations in MIOpen ``src/solver.cpp`` and ``IsDynamic`` in ``src/include/miopen/conv/solvers.hpp``, as
of 2024-10 (3.3), with the additions up to rocm-libraries of 2026 (3.5). Solvers that newer versions dropped are kept,
since shipped databases name them. A name may carry template arguments, as in ``ConvMPBidirectWinograd<5-3>``.
"""

from __future__ import annotations

NEWEST_KNOWN = (3, 5, 2)  # a database of a later version may name solvers that are not listed here

NAIVE = frozenset({"ConvDirectNaiveConvFwd", "ConvDirectNaiveConvBwd", "ConvDirectNaiveConvWrw"})
GEMM = frozenset(
    {
        "GemmFwd1x1_0_1",
        "GemmFwd1x1_0_1_int8",
        "GemmFwd1x1_0_2",
        "GemmFwdRest",
        "GemmBwd1x1_stride1",
        "GemmBwd1x1_stride2",
        "GemmBwdRest",
        "GemmWrw1x1_stride1",
        "GemmWrwUniversal",
    }
)
# Compiled once for every shape: what the default find mode tries on a miss.
DYNAMIC = (
    NAIVE
    | GEMM
    | frozenset(
        {
            "ConvAsmImplicitGemmV4R1DynamicFwd",
            "ConvAsmImplicitGemmV4R1DynamicFwd_1x1",
            "ConvAsmImplicitGemmV4R1DynamicBwd",
            "ConvAsmImplicitGemmV4R1DynamicWrw",
            "ConvAsmImplicitGemmGTCDynamicFwdXdlops",
            "ConvAsmImplicitGemmGTCDynamicBwdXdlops",
            "ConvAsmImplicitGemmGTCDynamicWrwXdlops",
            "ConvAsmImplicitGemmGTCDynamicFwdXdlopsNHWC",
            "ConvAsmImplicitGemmGTCDynamicBwdXdlopsNHWC",
            "ConvAsmImplicitGemmGTCDynamicWrwXdlopsNHWC",
            "ConvAsmImplicitGemmGTCDynamicFwdDlopsNCHWC",
            "ConvBinWinograd3x3U",
            "ConvBinWinogradRxS",
            "ConvBinWinogradRxSf2x3",
            "ConvBinWinogradRxSf3x2",
            "ConvBinWinogradRxSf2x3g1",
            "ConvMPBidirectWinograd",
            "ConvWinograd3x3MultipassWrW",
            "ConvWinoFuryRxS",
            "ConvWinoRageRxS",
            "ConvHipImplicitGemmFwdXdlops",
            "ConvHipImplicitGemmBwdXdlops",
            "ConvHipImplicitGemmGroupFwdXdlops",
            "ConvHipImplicitGemmGroupBwdXdlops",
            "ConvHipImplicitGemmGroupWrwXdlops",
            "ConvHipImplicitGemm3DGroupFwdXdlops",
            "ConvHipImplicitGemm3DGroupBwdXdlops",
            "ConvHipImplicitGemm3DGroupWrwXdlops",
            "ConvHipImplicitGemmF16F8F16FwdXdlops",
            "ConvHipImplicitGemmF16F8F16BwdXdlops",
            "ConvHipImplicitGemmF16F8F16WrwXdlops",
        }
    )
)
_SHAPE_BOUND = frozenset(
    {
        "fft",
        "ConvAsm1x1U",
        "ConvAsm1x1UV2",
        "ConvAsm3x3U",
        "ConvAsm5x10u2v2b1",
        "ConvAsm5x10u2v2f1",
        "ConvAsm7x7c3h224w224k64u2v2p3q3f1",
        "ConvAsmBwdWrW1x1",
        "ConvAsmBwdWrW3x3",
        "ConvOclDirectFwd",
        "ConvOclDirectFwd1x1",
        "ConvOclDirectFwd3x3",
        "ConvOclDirectFwd11x11",
        "ConvOclDirectFwdGen",
        "ConvOclBwdWrW1x1",
        "ConvOclBwdWrW2",
        "ConvOclBwdWrW2NonTunable",
        "ConvOclBwdWrW53",
        "ConvHipDirectFwd",
        "ConvHipDirectFwd11x11",
        "ConvHipBwdWrW53",
        "ConvDepthwiseFwd2D",
        "ConvDepthwiseFwd3D",
        "ConvCkIgemmFwdV6r1DlopsNchw",
        "ConvMPBidirectWinograd_xdlops",
        "ConvMlirIgemmFwd",
        "ConvMlirIgemmBwd",
        "ConvMlirIgemmWrW",
        "ConvMlirIgemmFwdXdlops",
        "ConvMlirIgemmBwdXdlops",
        "ConvMlirIgemmWrWXdlops",
        "ConvHipImplicitGemmV4Fwd",
        "ConvHipImplicitGemmV4WrW",
        "ConvHipImplicitGemmV4_1x1",
        "ConvHipImplicitGemmV4R1Fwd",
        "ConvHipImplicitGemmV4R1WrW",
        "ConvHipImplicitGemmV4R4Fwd",
        "ConvHipImplicitGemmV4R4WrW",
        "ConvHipImplicitGemmV4R4FwdXdlops",
        "ConvHipImplicitGemmV4R4Xdlops_1x1",
        "ConvHipImplicitGemmV4R4WrWXdlops",
        "ConvHipImplicitGemmV4R4GenFwdXdlops",
        "ConvHipImplicitGemmV4R4GenWrWXdlops",
        "ConvHipImplicitGemmV4R4GenXdlopsFwdFp32",
        "ConvHipImplicitGemmV4R4GenXdlopsWrWFp32",
        "ConvHipImplicitGemmMlirCppFwd",
        "ConvHipImplicitGemmMlirCppBwd",
        "ConvHipImplicitGemmMlirCppWrW",
        "ConvHipImplicitGemmBwdDataV1R1",
        "ConvHipImplicitGemmBwdDataV4R1",
        "ConvHipImplicitGemmBwdDataV1R1Xdlops",
        "ConvHipImplicitGemmBwdDataV4R1Xdlops",
        "ConvHipImplicitGemmForwardV4R4Xdlops",
        "ConvHipImplicitGemmForwardV4R4Xdlops_Padded_Gemm",
        "ConvHipImplicitGemmForwardV4R5Xdlops",
        "ConvHipImplicitGemmWrwV4R4Xdlops",
        "ConvHipImplicitGemmWrwV4R4Xdlops_Padded_Gemm",
    }
)
_FUSED = frozenset(
    {
        "ConvBiasActivAsm1x1U",
        "ConvOclDirectFwdFused",
        "ConvBinWinogradRxSFused",
        "ConvBinWinogradRxSf2x3g1Fused",
        "ConvWinoFuryRxSFused",
        "ConvWinoRageRxSFused",
        "ConvCKIgemmFwdBiasActivFused",
        "ConvCKIgemmFwdBiasResAddActivFused",
        "ConvCKIgemmGrpFwdBiasActivFused",
        "ConvCKIgemmGrpFwdActivFused",
        "BnFwdInferActivationFused",
        "BnFwdTrgActivationFused",
        "BnBwdTrgActivationFused",
    }
)
_KNOWN = DYNAMIC | _SHAPE_BOUND | _FUSED


def is_known(solver: str) -> bool:
    """Whether some MIOpen up to ``NEWEST_KNOWN`` has a solver of this name; MIOpen skips a record's other entries."""
    base = _base(solver)
    return base in _KNOWN or base.removeprefix("Transposed") in DYNAMIC | {"ConvMPBidirectWinograd_xdlops"}


def is_dynamic(solver: str) -> bool:
    """Whether one compiled program of the solver serves every shape."""
    return _base(solver).removeprefix("Transposed") in DYNAMIC


def is_naive(solver: str) -> bool:
    """Whether the solver is the plain one that every device has."""
    return solver in NAIVE


def _base(solver: str) -> str:
    return solver.split("<", 1)[0]
