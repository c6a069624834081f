"""The order of tuning, sealing and proving, driven by workers that answer from a script."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from handlers.engine_spec import EngineSpec
from handlers.loading import Model
from handlers.shapes import Shape
from warmup.stores.inductor import InductorStore
from warmup.stores.store import Phase
from warmup.sweep.budget import Candidate, Costs
from warmup.sweep.crew import Crew
from warmup.sweep.journal import opened
from warmup.sweep.messages import Ran
from warmup.sweep.phases import ATTEMPTS, BUDGET, MAX_ROUNDS, MAX_SEAL_PASSES, Phases
from warmup.sweep.process import WorkerDied
from warmup.sweep.workspace import Workspace

Answer = Callable[[Phase, int, Path], "Ran | None"]
NEW = {"inductor": {"new": "1"}}


class ScriptedCrew:
    """In place of processes: asks ``answer`` with the phase, the shape's size and the stores."""

    def __init__(self, answer: Answer, calls: list[tuple[str, int]], phase: Phase, stores: Callable[[], Path]) -> None:
        self._answer, self._calls, self._phase, self._stores = answer, calls, phase, stores

    def run(self, model: Model, shape: Shape, deadline: float | None = None) -> Ran | None:
        size = shape.tensors[0].dims[0]
        self._calls.append((self._phase.value, size))
        return self._answer(self._phase, size, self._stores())

    def close(self, model: str) -> None:
        pass

    def kill(self) -> None:
        pass

    def __enter__(self) -> ScriptedCrew:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@contextmanager
def phases(model: Model, folder: Path, answer: Answer) -> Iterator[tuple[Phases, list[tuple[str, int]]]]:
    work = Workspace(folder / "work")
    work.root.mkdir(exist_ok=True)
    calls: list[tuple[str, int]] = []

    def crew(phase: Phase, stores: Callable[[], Path], logs: Path, loaded: Callable[[str, float], None]) -> Crew:
        return ScriptedCrew(answer, calls, phase, stores)  # type: ignore[return-value]

    with opened(work.journal) as journal:
        if not journal.history.identity:
            work.start_over()
            journal.begin({"torch": "1"}, {})
        journal.model(model.spec.name, "digest")
        yield (
            Phases(
                models={model.spec.name: model},
                stores=(InductorStore(),),
                work=work,
                journal=journal,
                report=lambda event: None,
                costs=Costs.of([model.spec]),
                ends=None,
                crew=crew,
            ),
            calls,
        )


def shape(size: int) -> Shape:
    return Shape.parse(f"x={size}:fp32")


def wanted(*sizes: int) -> list[Candidate]:
    return [Candidate("plain", shape(size), 1.0) for size in sizes]


def test_every_shape_is_tuned_then_sealed_then_proven(tmp_path: Path, python_model: Callable[..., Model]) -> None:
    def answer(phase: Phase, size: int, stores: Path) -> Ran:
        return Ran(shape(size), 1.0, 0.1, NEW if phase is Phase.TUNE else {})

    with phases(python_model([1, 2]), tmp_path, answer) as (run, calls):
        run.run(wanted(1, 2))
    assert calls == [("tune", 1), ("tune", 2), ("seal", 1), ("seal", 2), ("prove", 1), ("prove", 2)]
    assert run.failures == {}


@pytest.mark.parametrize(("execution", "cold"), [("eager", 3.0), ("graph", None)])
@pytest.mark.parametrize("budget", [False, True])
def test_where_pytorch_fills_no_store_shapes_are_only_proven(
    tmp_path: Path, python_model: Callable[..., Model], execution: str, cold: float | None, budget: bool
) -> None:
    """The first call of any process is a cold one then; that of a captured shape has the capture in it."""

    def answer(phase: Phase, size: int, stores: Path) -> Ran:
        return Ran(shape(size), 3.0 if phase is Phase.PROVE else 5.0, 0.1)

    model = python_model([1, 2])
    engine = EngineSpec(kind="torch", source="net.py:Net", weights="random:0", execution=execution)  # type: ignore[arg-type]
    model = replace(model, spec=model.spec.model_copy(update={"engine": engine}))
    with phases(model, tmp_path, answer) as (run, calls):
        run.ends = time.monotonic() + 3600 if budget else None
        run.run(wanted(1, 2))
        found = run.proof("plain", shape(1), 1.0)
    assert found.proven and found.first_seconds == 3.0
    assert found.cold_seconds == cold
    assert sorted(calls) == [("prove", 1), ("prove", 2)]


def test_what_is_only_proven_is_left_out_when_the_budget_is_spent(
    tmp_path: Path, python_model: Callable[..., Model]
) -> None:
    def answer(phase: Phase, size: int, stores: Path) -> Ran:
        run.ends = time.monotonic()  # it took all the time
        return Ran(shape(size), 3.0, 0.1)

    model = python_model([1, 2], weights={2: 9.0})
    engine = EngineSpec(kind="torch", source="net.py:Net", weights="random:0")
    model = replace(model, spec=model.spec.model_copy(update={"engine": engine}))
    with phases(model, tmp_path, answer) as (run, calls):
        run.ends = time.monotonic() + 3600
        run.run([Candidate("plain", shape(1), 1.0), Candidate("plain", shape(2), 9.0)])
        found = [run.proof("plain", shape(size), 1.0) for size in (1, 2)]
    assert calls == [("prove", 2)]  # the heavier one
    assert [proof.reason for proof in found] == [BUDGET, ""] and found[1].proven


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_shares_its_code_is_proven_again_together(
    tmp_path: Path, python_model: Callable[..., Model], dynamic: bool
) -> None:
    def answer(phase: Phase, size: int, stores: Path) -> Ran:
        late = phase is Phase.PROVE and size == 2 and calls.count(("prove", 2)) == 1
        return Ran(shape(size), 1.0, 0.1, NEW if late else {})

    model = python_model([1, 2])
    engine = EngineSpec(
        kind="torch", source="net.py:Net", weights="random:0", execution="compile", dynamic_shapes=dynamic
    )
    model = replace(model, spec=model.spec.model_copy(update={"engine": engine}))
    with phases(model, tmp_path, answer) as (run, calls):
        run.run(wanted(1, 2))
    proven = [size for phase, size in calls if phase == "prove"]
    assert sorted(proven) == ([1, 1, 2, 2] if dynamic else [1, 2, 2])


def test_sealing_goes_on_until_a_pass_adds_nothing(tmp_path: Path, python_model: Callable[..., Model]) -> None:
    def answer(phase: Phase, size: int, stores: Path) -> Ran:
        again = phase is Phase.SEAL and size == 2 and calls.count(("seal", 2)) < 3
        return Ran(shape(size), 1.0, 0.1, NEW if again else {})

    with phases(python_model([1, 2]), tmp_path, answer) as (run, calls):
        run.run(wanted(1, 2))
    assert [call for call in calls if call[0] == "seal"] == [("seal", 1), ("seal", 2), ("seal", 2), ("seal", 2)]
    assert calls[-2:] == [("prove", 1), ("prove", 2)]


def test_a_proof_that_adds_something_is_sealed_and_proven_again(
    tmp_path: Path, python_model: Callable[..., Model]
) -> None:
    def answer(phase: Phase, size: int, stores: Path) -> Ran:
        late = (phase is Phase.PROVE and size == 2 and calls.count(("prove", 2)) == 1) or (
            phase is Phase.SEAL and size == 2 and calls.count(("seal", 2)) == 2
        )
        return Ran(shape(size), 1.0, 0.1, NEW if late else {})

    with phases(python_model([1, 2]), tmp_path, answer) as (run, calls):
        run.run(wanted(1, 2))
        # The second sealing changed the stores, so that shape 1 had to be proven of them once more.
        assert calls.count(("prove", 1)) == calls.count(("prove", 2)) == 2
        for size in (1, 2):
            done = run.journal.history.find(Phase.PROVE, "plain", shape(size))
            assert done is not None
            assert not done.added


def test_a_shape_that_always_adds_something_ends_unproven(tmp_path: Path, python_model: Callable[..., Model]) -> None:
    def answer(phase: Phase, size: int, stores: Path) -> Ran:
        return Ran(shape(size), 1.0, 0.1, NEW)

    with phases(python_model([1]), tmp_path, answer) as (run, calls):
        run.run(wanted(1))
        done = run.journal.history.find(Phase.PROVE, "plain", shape(1))
        assert done is not None
        assert done.added == {"inductor": 1}
    assert calls.count(("prove", 1)) == MAX_ROUNDS
    assert calls.count(("seal", 1)) == MAX_ROUNDS * MAX_SEAL_PASSES


def test_proofs_run_on_a_copy(tmp_path: Path, python_model: Callable[..., Model]) -> None:
    places: dict[Phase, set[Path]] = {phase: set() for phase in Phase}

    def answer(phase: Phase, size: int, stores: Path) -> Ran:
        places[phase].add(stores)
        return Ran(shape(size), 1.0)

    with phases(python_model([1]), tmp_path, answer) as (run, _):
        run.run(wanted(1))
    assert places[Phase.TUNE] == places[Phase.SEAL]
    assert not places[Phase.PROVE] & places[Phase.SEAL]


def test_a_worker_that_dies_is_tried_again_and_then_given_up(
    tmp_path: Path, python_model: Callable[..., Model]
) -> None:
    def answer(phase: Phase, size: int, stores: Path) -> Ran:
        if size == 2 or (size == 1 and len(calls) == 1):
            raise WorkerDied("killed")
        return Ran(shape(size), 1.0)

    with phases(python_model([1, 2]), tmp_path, answer) as (run, calls):
        run.run(wanted(1, 2))
    assert calls == [("tune", 1)] * 2 + [("tune", 2)] * ATTEMPTS + [("seal", 1), ("prove", 1)]
    assert run.failures == {("plain", shape(2)): "tune: killed"}


def test_a_model_that_takes_too_long_leaves_time_to_the_others(
    tmp_path: Path, python_model: Callable[..., Model]
) -> None:
    def answer(phase: Phase, size: int, stores: Path) -> Ran | None:
        return Ran(shape(size), 0.001, 0.001) if size > 2 else None  # shapes 1 and 2, and so their model, never end

    slow = [Candidate("slow", shape(size), 2.0) for size in (1, 2)]
    with phases(python_model([3]), tmp_path, answer) as (run, calls):
        other = python_model([1, 2], name="slow")
        run.models = {**run.models, "slow": other}
        run.costs = Costs.of([model.spec for model in run.models.values()])
        run.ends = time.monotonic() + 1000
        run.run([*slow, *wanted(3)])
    assert calls == [("tune", 1), ("tune", 3), ("seal", 3), ("prove", 3)]
    assert run.failures == {("slow", shape(1)): BUDGET, ("slow", shape(2)): BUDGET}


def test_what_was_done_before_a_kill_is_not_done_again(tmp_path: Path, python_model: Callable[..., Model]) -> None:
    class Killed(BaseException):
        pass

    def first(phase: Phase, size: int, stores: Path) -> Ran:
        if (phase, size) == (Phase.SEAL, 2):
            raise Killed
        return Ran(shape(size), 1.0)

    def second(phase: Phase, size: int, stores: Path) -> Ran:
        return Ran(shape(size), 1.0)

    model = python_model([1, 2])
    try:
        with phases(model, tmp_path, first) as (run, _):
            run.run(wanted(1, 2))
    except Killed:
        pass
    with phases(model, tmp_path, second) as (run, calls):
        run.run(wanted(1, 2))
    assert calls == [("seal", 2), ("prove", 1), ("prove", 2)]
