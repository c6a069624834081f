from __future__ import annotations

import json
from pathlib import Path

import pytest

onnxruntime = pytest.importorskip("onnxruntime")

from handlers.engines import tuning  # noqa: E402
from handlers.engines.onnxgraph import ONE_NODE  # noqa: E402
from handlers.engines.tuning import TuningFile  # noqa: E402
from handlers.errors import ModelError  # noqa: E402

FOREIGN = [{"ep": "NoSuchProvider", "results": {"op": {"parameters": 1}}, "validators": {}}]


@pytest.fixture(scope="module")
def session():
    return onnxruntime.InferenceSession(ONE_NODE, providers=["CPUExecutionProvider"])


def test_searching_is_the_phases_choice_and_not_the_models() -> None:
    asked = {"tunable_op_enable": "1", "tunable_op_tuning_enable": "1", "device_id": "0"}
    assert tuning.wanted(asked) and not tuning.wanted({"tunable_op_enable": "0"}) and not tuning.wanted({})
    assert tuning.with_mode(asked, tuning.USE) == {**asked, "tunable_op_tuning_enable": "0"}
    assert tuning.with_mode({"tunable_op_enable": "1"}, tuning.SEARCH)["tunable_op_tuning_enable"] == "1"


def test_a_session_without_choices_leaves_no_file(tmp_path: Path, session) -> None:
    """The CPU provider has nothing to choose from."""
    file = TuningFile(tmp_path / "tuning" / "m.json")
    file.restore(session)
    file.keep(session)
    assert not file.path.parent.exists()


def test_choices_that_onnxruntime_does_not_take_stop_the_start(tmp_path: Path, session) -> None:
    file = TuningFile(tmp_path / "m.json")
    file.path.write_text(json.dumps(FOREIGN))
    with pytest.raises(ModelError, match=r"m\.json: tuning results that are not of this machine: .*NoSuchProvider"):
        file.restore(session)
    file.path.write_text(json.dumps([{"results": {}}]))
    with pytest.raises(ModelError, match="not of this machine"):
        file.restore(session)
    file.path.write_text("{")
    with pytest.raises(ModelError, match=r"m\.json: no tuning results"):
        file.restore(session)
    file.path.write_text("[]")
    file.restore(session)
