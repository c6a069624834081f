"""Placements from lines of ONNX Runtime's log, as its ROCm and MIGraphX providers wrote them."""

from __future__ import annotations

import pytest

from handlers.engines.placement import Node, Placement, placement, shortfall

STAMP = "2026-12-01 01:18:56.487443481 [V:onnxruntime:, session_state.cc:1266 VerifyEachNodeIsAssignedToAnEp] "
RULE = (
    "2026-12-01 01:18:56.399607693 [I:onnxruntime:, fallback_cpu_capability.cc:165 GetCpuPreferredNodes] ORT "
    "optimization- Force fallback to CPU execution for node: Slice.2 because the CPU execution path is deemed faster"
)
NO_KERNEL = (
    "2026-12-01 01:21:02.331871357 [I:onnxruntime:, rocm_execution_provider.cc:2466 GetCapability] ROCM kernel not "
    "found in registries for Op type: Det node name: the_det"
)
MIXED = [
    RULE,
    NO_KERNEL,
    f"{STAMP} Node(s) placed on [CPUExecutionProvider]. Number of nodes: 2",
    f"{STAMP}  Slice (Slice.2)",
    f"{STAMP}  Det (the_det)",
    f"{STAMP} Node(s) placed on [ROCMExecutionProvider]. Number of nodes: 4",
    f"{STAMP}  Conv (Conv.0)",
    f"{STAMP}  Relu (a (b))",
    f"{STAMP}  MemcpyToHost (Memcpy)",
    f"{STAMP}  MemcpyFromHost (Memcpy_token_1)",
]
ROCM = "ROCMExecutionProvider"


def test_nodes_on_the_cpu_are_named_with_the_reason() -> None:
    found = placement(MIXED, ROCM)
    assert found.taken == 2, "copies are nodes of no model"
    slice_node, det = found.cpu
    assert slice_node == Node("Slice", "Slice.2", "the CPU execution path is deemed faster", True)
    assert det == Node("Det", "the_det", "ROCM kernel not found in registries", False)


def test_by_default_only_the_providers_own_rules_may_send_nodes_to_the_cpu() -> None:
    found = placement(MIXED, ROCM)
    assert shortfall(found, "rocm", None) == (
        "1 of 4 nodes would run on the CPU instead of rocm: Det 'the_det' (ROCM kernel not found in registries); "
        "engine.min_placement, the least share of nodes, allows it"
    )
    assert shortfall(Placement(2, found.cpu[:1]), "rocm", None) == ""


@pytest.mark.parametrize(("minimum", "allowed"), [(0.0, True), (0.5, True), (0.51, False), (1.0, False)])
def test_a_minimum_counts_every_node(minimum: float, allowed: bool) -> None:
    said = shortfall(placement(MIXED, ROCM), "rocm", minimum)
    assert (said == "") is allowed
    if not allowed:
        assert said.startswith(f"rocm runs 50.0% of 4 nodes, engine.min_placement is {minimum:.1%}: Slice 'Slice.2' (")


def test_a_provider_that_fuses_nodes_is_measured_by_the_nodes_there_were() -> None:
    lines = [
        f"{STAMP} Node(s) placed on [MIGraphXExecutionProvider]. Number of nodes: 1",
        f"{STAMP}  MGXKernel_graph_main_123_0 (MIGraphXExecutionProvider_0)",
        f"{STAMP} Node(s) placed on [CPUExecutionProvider]. Number of nodes: 1",
        f"{STAMP}  Det (the_det)",
    ]
    found = placement(lines, "MIGraphXExecutionProvider")
    assert found.share(100) == pytest.approx(0.99)
    assert "1 of 100 nodes would run on the CPU instead of migraphx" in shortfall(found, "migraphx", None, 100)
    assert shortfall(found, "migraphx", 0.99, 100) == ""


def test_all_nodes_on_one_provider() -> None:
    whole = [f"{STAMP} All nodes placed on [{ROCM}]. Number of nodes: 39"]
    assert placement(whole, ROCM) == Placement(39, ())
    assert placement(whole, ROCM).share() == 1
    none = placement([f"{STAMP} All nodes placed on [CPUExecutionProvider]. Number of nodes: 3"], ROCM)
    assert none.share() == 0
    assert shortfall(none, "rocm", 0.1).startswith("rocm runs 0.0% of 3 nodes")
    assert "3 of 3 nodes would run on the CPU" in shortfall(none, "rocm", None)
