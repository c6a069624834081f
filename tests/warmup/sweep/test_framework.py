"""Framework switches: set where they are, refused where they are not."""

from __future__ import annotations

import logging.config
import sys
from types import ModuleType, SimpleNamespace

import pytest

from warmup.sweep.framework import UnknownSwitch, apply


@pytest.fixture
def framework(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("made_up_framework")
    vars(module).update(benchmark=True, cpp=SimpleNamespace(threads=4))
    monkeypatch.setitem(sys.modules, "made_up_framework", module)
    return module


def test_attributes_of_modules_and_of_objects_in_them_are_set(framework: ModuleType) -> None:
    apply({"made_up_framework.benchmark": False, "made_up_framework.cpp.threads": 1})
    assert framework.benchmark is False
    assert framework.cpp.threads == 1


def test_modules_in_packages_are_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.config, "DEFAULT_LOGGING_CONFIG_PORT", 1)
    apply({"logging.config.DEFAULT_LOGGING_CONFIG_PORT": 2})
    assert logging.config.DEFAULT_LOGGING_CONFIG_PORT == 2


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("made_up_framework.bench", "has no attribute 'bench'"),
        ("made_up_framework.cpp.march", "has no attribute 'march'"),
        ("made_up_framework.cuda.allow", "nothing is named 'cuda'"),
        ("no_such_framework.benchmark", "no module 'no_such_framework' is installed"),
    ],
)
def test_a_switch_that_is_not_there_is_refused(framework: ModuleType, path: str, message: str) -> None:
    with pytest.raises(UnknownSwitch, match=message):
        apply({path: True})
