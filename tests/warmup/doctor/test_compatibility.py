from __future__ import annotations

import pytest

from warmup.doctor.compatibility import check_driver, check_miopen, minor
from warmup.doctor.finding import Severity


@pytest.mark.parametrize(
    ("release", "rocm", "severity"),
    [
        ("6.4", "6.4.1", None),
        ("6.4", "7.0", None),
        ("30.10", "6.2", None),
        ("30.30", "7.2.3", None),
        ("6.4", "6.0.2", Severity.ERROR),
        ("6.1", "7.0", Severity.ERROR),
        ("30.10", "7.2", Severity.WARNING),  # newer than the published table
        ("31.40", "7.2", Severity.NOTE),  # a driver that the table here does not have
    ],
)
def test_drivers_and_rocm_by_the_published_table(release, rocm, severity):
    findings = check_driver(release, rocm, "here")
    assert [finding.severity for finding in findings] == ([severity] if severity else [])


def test_nothing_is_said_of_what_is_not_known():
    assert check_driver("", "6.4", "here") == check_driver("6.4", "", "here") == check_miopen("", "6.4.1", "x") == []


def test_a_miopen_of_another_rocm():
    assert check_miopen("3.4.0", "6.4.1", "lib") == []
    (finding,) = check_miopen("3.3.0", "6.4.1", "lib")
    assert "MIOpen 3.3.0 in ROCm 6.4.1, which comes with 3.4" in finding.what


def test_the_hip_that_pytorch_names():
    assert minor("6.4.43482-0f2d60242") == "6.4"
    assert minor("") == ""
