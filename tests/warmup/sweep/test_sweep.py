"""Whole sweeps of small models, in real processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from handlers.errors import ModelError
from handlers.loading import Model
from warmup.bundle.files import BundleError
from warmup.bundle.manifest import Manifest, open_bundle
from warmup.bundle.merge import merge
from warmup.bundle.trust import MADE_HERE, Trust
from warmup.stores.registry import STORES
from warmup.sweep.base import find
from warmup.sweep.phases import BUDGET
from warmup.sweep.progress import Advanced, Note, Progress
from warmup.sweep.sweep import SHARD, Outcome, Request, sweep
from warmup.sweep.workspace import SweepRunning, reserved

MakeModel = Callable[..., Model]


class Watcher:
    """Keeps what a sweep reports."""

    def __init__(self) -> None:
        self.events: list[Progress] = []

    def __call__(self, event: Progress) -> None:
        self.events.append(event)

    @property
    def notes(self) -> str:
        return "\n".join(event.text for event in self.events if isinstance(event, Note))

    def runs(self) -> list[tuple[str, str]]:
        return [(e.phase.value, e.shape.text) for e in self.events if isinstance(e, Advanced)]


def run(*models: Model, out: Path, **options: object) -> tuple[Outcome, Watcher]:
    watcher = Watcher()
    return sweep(Request(models, out, **options), watcher), watcher  # type: ignore[arg-type]


def states(outcome: Outcome) -> dict[str, str]:
    return {s.shape.text: "proven" if s.proven else s.reason for proof in outcome.proofs for s in proof}


def test_a_sweep_leaves_a_proven_bundle_and_a_second_one_has_nothing_to_do(
    tmp_path: Path, onnx_model: MakeModel, python_model: MakeModel
) -> None:
    models, out = (onnx_model([1, 2]), python_model([3])), tmp_path / "bundle"
    first, watcher = run(*models, out=out)
    assert first.holds
    assert set(states(first).values()) == {"proven"}
    assert len(watcher.runs()) == 3 * 3
    for shape in (*first.proofs[0], *first.proofs[1]):
        assert None not in (shape.cold_seconds, shape.first_seconds, shape.steady_seconds)
    bundle = open_bundle(out)
    assert bundle.manifest.stores["onnxruntime"].entries == 1
    assert bundle.manifest.models["graph"].proof.coverage == pytest.approx(1.0)
    assert Trust().reason(bundle.digest, None, "") == "made by this user on this machine"
    second, watcher = run(*models, out=out)
    assert second.holds
    assert second.ran == 0
    assert watcher.events == []
    assert second.proofs == first.proofs
    assert open_bundle(out).digest == bundle.digest
    assert sorted(path.name for path in tmp_path.glob(".bundle.sweep/*")) == ["lock", "logs"]


def test_only_shapes_that_are_new_in_the_plan_are_run(tmp_path: Path, python_model: MakeModel) -> None:
    out = tmp_path / "bundle"
    run(python_model([1, 2]), out=out)
    outcome, watcher = run(python_model([2, 3], weights={3: 9.0}), out=out)
    assert {text for _, text in watcher.runs()} == {"x=3:fp32"}
    assert states(outcome) == {"x=3:fp32": "proven", "x=2:fp32": "proven"}
    assert open_bundle(out).manifest.models["plain"].plan.shapes[0].weight == pytest.approx(0.9)


def test_another_weight_changes_the_plan_and_runs_nothing(tmp_path: Path, python_model: MakeModel) -> None:
    out = tmp_path / "bundle"
    run(python_model([1, 2]), out=out)
    outcome, watcher = run(python_model([1, 2], weights={2: 3.0}), out=out)
    assert watcher.runs() == []
    assert outcome.holds
    assert open_bundle(out).manifest.models["plain"].plan.shapes[0].weight == pytest.approx(0.75)


def test_another_model_under_the_same_name_is_proven_anew(tmp_path: Path, python_model: MakeModel) -> None:
    out, model = tmp_path / "bundle", python_model([1])
    run(model, out=out)
    (model.folder / "net.py").write_text((model.folder / "net.py").read_text() + "\n# changed\n")
    _, watcher = run(model, out=out)
    assert [phase for phase, _ in watcher.runs()] == ["tune", "seal", "prove"]


def test_other_models_of_the_bundle_stay(tmp_path: Path, python_model: MakeModel, onnx_model: MakeModel) -> None:
    out = tmp_path / "bundle"
    run(onnx_model([1]), out=out)
    run(python_model([1]), out=out)
    manifest = open_bundle(out).manifest
    assert set(manifest.models) == {"graph", "plain"}
    assert manifest.stores["onnxruntime"].entries == 1
    assert {"engine.graph", "engine.plain"} <= set(manifest.identity)


def test_a_shape_that_fails_is_named_and_the_rest_is_proven(tmp_path: Path, python_model: MakeModel) -> None:
    outcome, watcher = run(python_model([1, 13, 14]), out=tmp_path / "bundle")
    assert not outcome.holds
    found = states(outcome)
    assert found["x=1:fp32"] == "proven"
    assert found["x=13:fp32"] == "tune: ValueError: thirteen is not served"
    assert "SIGSEGV" in found["x=14:fp32"]
    assert "trying again" in watcher.notes
    assert open_bundle(tmp_path / "bundle").manifest.models["plain"].proof.coverage == pytest.approx(1 / 3)


def test_where_nothing_is_proven_the_place_stays_as_it_was(tmp_path: Path, python_model: MakeModel) -> None:
    outcome, _ = run(python_model([13]), out=tmp_path / "bundle")
    assert outcome.bundle is None
    assert not outcome.holds
    assert "thirteen is not served" in states(outcome)["x=13:fp32"]
    assert not (tmp_path / "bundle").exists()


def test_where_no_model_can_be_loaded_the_reason_is_told_once_and_no_stores_stay(
    tmp_path: Path, python_model: MakeModel
) -> None:
    model = python_model([1, 2])
    (model.folder / "net.py").write_text("class Other: pass")
    with pytest.raises(ModelError, match=r"^plain: .*net\.py: no class 'Net'; found Other$"):
        run(model, out=tmp_path / "bundle")
    assert sorted(path.name for path in tmp_path.glob(".bundle.sweep/*")) == ["lock", "logs"]
    assert not (tmp_path / "bundle").exists()


def test_a_model_that_cannot_be_loaded_does_not_keep_another_from_its_proof(
    tmp_path: Path, python_model: MakeModel
) -> None:
    broken, sound = python_model([1, 2], "broken"), python_model([1])
    (broken.folder / "net.py").write_text("class Other: pass")
    outcome, watcher = run(broken, sound, out=tmp_path / "bundle")
    assert not outcome.holds
    assert [proof.model for proof in outcome.proofs if proof.proven()] == ["plain"]
    assert watcher.notes.count("no class 'Net'") == 1


def test_a_budget_that_is_spent_leaves_shapes_to_later_and_is_no_failure(
    tmp_path: Path, python_model: MakeModel
) -> None:
    out = tmp_path / "bundle"
    run(python_model([1]), out=out)
    outcome, watcher = run(python_model([1, 2]), out=out, budget=1e-6)
    assert outcome.holds
    assert states(outcome) == {"x=1:fp32": "proven", "x=2:fp32": BUDGET}
    assert watcher.runs() == []
    complete, _ = run(python_model([1, 2]), out=out)
    assert set(states(complete).values()) == {"proven"}


@pytest.mark.slow
def test_a_budget_ends_a_shape_that_never_ends(tmp_path: Path, python_model: MakeModel) -> None:
    outcome, _ = run(python_model([1, 15], weights={1: 2.0}), out=tmp_path / "bundle", budget=30.0)
    assert states(outcome) == {"x=1:fp32": "proven", "x=15:fp32": BUDGET}
    assert outcome.holds


def test_shards_are_joined_to_the_whole(tmp_path: Path, onnx_model: MakeModel) -> None:
    model = onnx_model([1, 2, 3])
    for index in (1, 2):
        outcome, _ = run(model, out=tmp_path / f"part{index}", shard=(index, 2))
        assert outcome.holds
        assert sorted(states(outcome).values()).count(SHARD) == (1 if index == 1 else 2)
    bundles = [replace(open_bundle(tmp_path / f"part{index}"), trusted=MADE_HERE) for index in (1, 2)]
    assert [bundle.manifest.shard for bundle in bundles] == ["1/2", "2/2"]
    assert merge(bundles, tmp_path / "whole", STORES).unproven == ()
    assert open_bundle(tmp_path / "whole").manifest.models["graph"].proof.coverage == pytest.approx(1.0)


def test_a_bundle_becomes_the_part_that_is_asked_for(tmp_path: Path, python_model: MakeModel) -> None:
    model, out = python_model([1]), tmp_path / "bundle"
    for shard, said in (((1, 1), "1/1"), ((1, 1), "1/1"), (None, "")):
        outcome, _ = run(model, out=out, shard=shard)
        assert outcome.holds
        assert open_bundle(out).manifest.shard == said


def test_a_strangers_bundle_is_not_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "manifest.json").write_text("{")
    parsed: list[bytes] = []
    monkeypatch.setattr(Manifest, "from_bytes", parsed.append)
    assert "is not trusted" in find(tmp_path, {}, {}, fresh=False).note
    assert parsed == []


def test_a_second_sweep_at_once_is_refused(tmp_path: Path, python_model: MakeModel) -> None:
    with reserved(tmp_path / "bundle"), pytest.raises(SweepRunning, match="another sweep is at work"):
        run(python_model([1]), out=tmp_path / "bundle")


def test_a_place_with_something_else_in_it_is_left_alone(tmp_path: Path, python_model: MakeModel) -> None:
    out = tmp_path / "photos"
    out.mkdir()
    (out / "cat.png").write_bytes(b"png")
    with pytest.raises(BundleError, match="holds no bundle"):
        run(python_model([1]), out=out)
    assert [path.name for path in out.iterdir()] == ["cat.png"]


def test_a_bundle_that_somebody_else_made_is_not_built_upon(
    tmp_path: Path, onnx_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, model = tmp_path / "bundle", onnx_model([1])
    run(model, out=out)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "somebody"))
    outcome, watcher = run(model, out=out)
    assert "is not trusted" in watcher.notes
    assert [phase for phase, _ in watcher.runs()] == ["tune", "seal", "prove"]
    assert outcome.holds


def test_a_bundle_of_another_machine_is_replaced_and_the_difference_named(
    tmp_path: Path, onnx_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, model = tmp_path / "bundle", onnx_model([1])
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    run(model, out=out)
    monkeypatch.delenv("ATEN_CPU_CAPABILITY")
    outcome, watcher = run(model, out=out)
    assert "aten_cpu_capability: expected default, found absent" in watcher.notes
    assert len(watcher.runs()) == 3
    assert outcome.holds


def test_a_damaged_file_is_left_out_and_everything_is_proven_again(tmp_path: Path, onnx_model: MakeModel) -> None:
    out, model = tmp_path / "bundle", onnx_model([1])
    run(model, out=out)
    (graph,) = (out / "stores" / "onnxruntime").iterdir()
    graph.write_bytes(graph.read_bytes()[:-3])
    outcome, watcher = run(model, out=out)
    assert graph.name in watcher.notes
    assert outcome.holds
    open_bundle(out)


def test_a_sweep_killed_before_its_bundle_appeared_is_finished(
    tmp_path: Path, onnx_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, model = tmp_path / "bundle", onnx_model([1, 2])

    class Killed(BaseException):
        pass

    def killed(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as context:
        context.setattr("warmup.sweep.sweep.build", killed)
        with pytest.raises(Killed):
            run(model, out=out)
    assert not out.exists()
    outcome, watcher = run(model, out=out)
    assert "resuming: 2 shapes are tuned" in watcher.notes
    assert watcher.runs() == []
    assert outcome.holds
    open_bundle(out)
