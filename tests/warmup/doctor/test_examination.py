from __future__ import annotations

import shutil

import pytest

from warmup.doctor.examination import examine
from warmup.doctor.finding import Severity


@pytest.mark.parametrize(
    ("node", "bases", "topics"),
    [
        ("mi210", ["gfx90a68"], []),
        ("mi300x-spx", ["gfx942130"], []),
        ("mi300x-cpx", ["gfx942_38"], ["system-db", "system-db"]),
        ("mi355x", ["gfx950100"], ["driver"]),
        ("rx7900", ["gfx1100_48"], ["miopen"]),
        ("none", [], ["gpu"]),
    ],
)
def test_each_node_in_a_healthy_environment(nodes, healthy, node, bases, topics):
    diagnosis = examine(nodes / node, healthy)
    assert diagnosis.facts["database_names"] == bases
    assert [finding.topic for finding in diagnosis.findings] == topics
    assert diagnosis.able


def test_findings_come_worst_first_and_an_error_means_unable(nodes, healthy):
    variables = {**healthy, "MIOPEN_FIND_ENFORCE": "3", "PYTORCH_MIOPEN_SUGGEST_NHWC": "1", "HSA_XNACK": "1"}
    diagnosis = examine(nodes / "mi300x-spx", variables)
    severities = [finding.severity for finding in diagnosis.findings]
    assert severities == sorted(severities, key=list(Severity).index)
    assert severities[0] is Severity.ERROR and not diagnosis.able
    assert diagnosis.facts["database_names"] == ["gfx942_xnack130"]


def test_a_driver_without_a_compute_device_is_an_error(tmp_path, healthy):
    (tmp_path / "sys/module/amdgpu").mkdir(parents=True)
    diagnosis = examine(tmp_path, healthy)
    assert [(f.severity, f.topic) for f in diagnosis.findings] == [(Severity.ERROR, "gpu")]


def test_gpus_of_several_kinds(nodes, healthy, tmp_path):
    shutil.copytree(nodes / "mi210", tmp_path / "mixed")
    other = nodes / "mi300x-spx/sys/class/kfd/kfd/topology/nodes/1"
    shutil.copytree(other, tmp_path / "mixed/sys/class/kfd/kfd/topology/nodes/3")
    findings = [f for f in examine(tmp_path / "mixed", healthy).findings if f.topic == "gpu"]
    assert any("several kinds" in finding.what for finding in findings)


def test_the_packages_of_this_machine_are_not_taken_for_anothers(nodes, healthy):
    facts = examine(nodes / "mi210", healthy).facts
    assert "torch" not in facts and "not examined" in str(facts["packages"])


def test_a_machine_with_another_makers_gpu_is_not_called_a_cpu(tmp_path, healthy):
    driver = tmp_path / "proc/driver/nvidia/version"
    driver.parent.mkdir(parents=True)
    driver.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159\n")
    (finding,) = examine(tmp_path, healthy).findings
    assert finding.severity is Severity.NOTE and "NVIDIA" in finding.why
