from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from serving.metrics.metrics import Metrics
from serving.repository import ModelNotFound, Repository


def model(name: str, ready: bool, version: str = "1") -> Any:
    state = SimpleNamespace(value="ready" if ready else "warming")
    return SimpleNamespace(name=name, version=version, ready=ready, state=state, coverage=0.5, error="")


def holding(*models: Any) -> Repository:
    repository = Repository(Metrics())
    repository._models = {one.name: one for one in models}
    return repository


def test_nothing_to_serve_is_not_ready() -> None:
    assert not holding().ready


def test_ready_means_every_model_and_no_shutdown() -> None:
    assert not holding(model("a", True), model("b", False)).ready
    repository = holding(model("a", True), model("b", True))
    assert repository.ready
    repository.draining = True
    assert not repository.ready


def test_what_is_missing_is_said() -> None:
    missing = holding(model("a", True), model("b", False)).why_not_ready()
    assert missing["models"] == {"b": {"state": "warming", "coverage": 0.5, "error": ""}}


def test_names_and_versions_are_looked_up_exactly() -> None:
    repository = holding(model("a", True, version="3"))
    assert repository.get("a", "3").version == "3"
    with pytest.raises(ModelNotFound, match="no model 'b'; served: a"):
        repository.get("b")
    with pytest.raises(ModelNotFound, match="no version '4'; served: 3"):
        repository.get("a", "4")


def test_listeners_hear_of_what_is_there_already() -> None:
    heard: list[tuple[Any, ...]] = []
    holding(model("a", True)).on_change(heard.append)
    assert [[one.name for one in models] for models in heard] == [["a"]]
