from __future__ import annotations

import pytest

from warmup.doctor.environment import check_environment
from warmup.doctor.finding import Severity

GOOD = {"HOME": "/home/serve", "MIOPEN_FIND_MODE": "FAST"}


def found(extra: dict[str, str], devices: int = 8, base: dict[str, str] = GOOD) -> list[tuple[Severity, str]]:
    return [(finding.severity, finding.where) for finding in check_environment({**base, **extra}, devices)]


@pytest.mark.parametrize("mode", ["FAST", "fast", "2", "3", "HYBRID", "5", "dynamic_hybrid", ""])
def test_modes_to_serve_with(mode):
    assert found({"MIOPEN_FIND_MODE": mode, "MIOPEN_FIND_ENFORCE": "NONE", "MIOPEN_DISABLE_CACHE": "0"}) == []


@pytest.mark.parametrize(
    ("name", "value", "severity"),
    [
        ("MIOPEN_FIND_MODE", "NORMAL", Severity.ERROR),
        ("MIOPEN_FIND_MODE", "1", Severity.ERROR),
        ("MIOPEN_FIND_MODE", "quick", Severity.ERROR),
        ("MIOPEN_FIND_MODE", "TRUST_VERIFY", Severity.WARNING),
        ("MIOPEN_FIND_ENFORCE", "3", Severity.ERROR),
        ("MIOPEN_FIND_ENFORCE", "search_db_update", Severity.ERROR),
        ("MIOPEN_FIND_ENFORCE", "yes", Severity.ERROR),
        ("MIOPEN_DISABLE_CACHE", "1", Severity.ERROR),
        ("MIOPEN_DEBUG_DISABLE_FIND_DB", "1", Severity.ERROR),
        ("MIOPEN_DEBUG_COMPILE_ONLY", "1", Severity.ERROR),
        ("MIOPEN_DEBUG_FIND_ONLY_SOLVER", "GemmFwdRest", Severity.WARNING),
        ("MIOPEN_DEBUG_CONV_GEMM", "0", Severity.WARNING),
        ("MIOPEN_DEVICE_CU", "304", Severity.WARNING),
        ("MIOPEN_LOG_LEVEL", "6", Severity.WARNING),
        ("MIOPEN_ENABLE_LOGGING_CMD", "1", Severity.WARNING),
        ("HSA_XNACK", "1", Severity.WARNING),
        ("HSA_OVERRIDE_GFX_VERSION", "11.0.0", Severity.WARNING),
        ("PYTORCH_SKIP_CUDNN_COMPATIBILITY_CHECK", "1", Severity.WARNING),
        ("PYTORCH_MIOPEN_SUGGEST_NHWC", "1", Severity.NOTE),
        ("AMD_COMGR_CACHE", "0", Severity.WARNING),
        ("HIP_VISIBLE_DEVICES", "", Severity.ERROR),
        ("HIP_VISIBLE_DEVICES", "0,8", Severity.ERROR),
        ("ROCR_VISIBLE_DEVICES", "-1", Severity.ERROR),
    ],
)
def test_each_variable_that_spoils_a_warm_node(name, value, severity):
    assert found({name: value}) == [(severity, name)]


def test_values_that_switch_nothing_on():
    quiet = {"MIOPEN_LOG_LEVEL": "4", "MIOPEN_ENABLE_LOGGING": "0", "HSA_XNACK": "0", "HIP_VISIBLE_DEVICES": "0,7"}
    assert found(quiet) == []
    assert found({"HIP_VISIBLE_DEVICES": ""}, devices=0) == []


def test_an_enforce_that_miopen_cannot_read_is_told_from_one_that_it_can():
    search, junk = (check_environment({**GOOD, "MIOPEN_FIND_ENFORCE": value}, 1)[0].why for value in ("3", "x"))
    assert "NORMAL" in search and "status 7" in junk


@pytest.mark.parametrize("home", [{}, {"HOME": ""}, {"HOME": "/"}])
def test_home_is_needed_unless_both_directories_are_named(home):
    assert found({}, base=home) == [(Severity.ERROR, "HOME")]
    assert found({}, base=home, devices=0) == [(Severity.WARNING, "HOME")]
    assert found({"MIOPEN_USER_DB_PATH": "/a"}, base=home) == [(Severity.ERROR, "HOME")]
    assert found({"MIOPEN_USER_DB_PATH": "/a", "MIOPEN_CUSTOM_CACHE_DIR": "/b"}, base=home) == []


def test_tunableop_may_be_used_but_not_tune():
    assert found({"PYTORCH_TUNABLEOP_ENABLED": "1", "PYTORCH_TUNABLEOP_TUNING": "0"}) == []
    assert found({"PYTORCH_TUNABLEOP_ENABLED": "1"}) == [(Severity.WARNING, "PYTORCH_TUNABLEOP_TUNING")]


def test_every_finding_says_what_why_and_what_to_do():
    for finding in check_environment({"MIOPEN_FIND_MODE": "NORMAL", "MIOPEN_DISABLE_CACHE": "1"}, 1):
        assert all(finding.to_json().values())
