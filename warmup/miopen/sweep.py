"""Tunes a list of convolution problems with MIOpen alone: no model, no framework.

Three phases, each in fresh processes. Tune: every problem is searched. Seal: it is run again with the settings of
serving, which ask for kernels that tuning does not compile, until a pass adds nothing. Prove: it is run once more on a
copy of the store; a problem that adds an entry, or that has no record, is not proven.

Any number of sweeps may fill one folder at a time, and a killed one loses only the problem that it was at.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event

from warmup.miopen.parts import Outlet
from warmup.miopen.problem import ConvProblem
from warmup.miopen.runner import outcomes
from warmup.miopen.worker import Job, Outcome
from warmup.stores.miopen import MIOpenStore
from warmup.stores.store import Phase, added_entries

MOST_SEAL_PASSES = 4
BUDGET = "budget"  # the reason of a problem that was left out for want of time
Progress = Callable[[Phase, Outcome], None]


@dataclass(frozen=True)
class ProblemProof:
    """One problem, by its find-db key. Times are in seconds but for ``milliseconds``, which is MIOpen's own measure.

    ``cold_seconds`` is the first call while tuning (None where an earlier sweep tuned it), ``first_seconds`` the first
    call in the proving process, ``steady_seconds`` the median of further calls there. ``added`` names what the proving
    run added to the store; ``reason`` says why a problem is not proven.
    """

    key: str
    proven: bool
    cold_seconds: float | None = None
    first_seconds: float | None = None
    steady_seconds: float | None = None
    algorithm: str = ""
    milliseconds: float | None = None
    added: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class ProblemReport:
    """What a sweep did; ``store`` is the directory of the filled store."""

    store: str
    problems: tuple[ProblemProof, ...]
    seal_passes: int
    seconds: float

    @property
    def unproven(self) -> tuple[ProblemProof, ...]:
        return tuple(problem for problem in self.problems if not problem.proven)

    def to_json(self) -> dict[str, object]:
        return {"proven": len(self.problems) - len(self.unproven), **asdict(self)}


def sweep(
    problems: Iterable[ConvProblem],
    out: Path,
    *,
    workers: int = 1,
    budget_s: float | None = None,
    repeats: int = 5,
    library: str | None = None,
    progress: Progress | None = None,
) -> ProblemReport:
    """Fills ``out/stores/miopen`` with what the problems need, and says what is proven of it.

    ``workers`` processes share each phase; more than one on one accelerator disturbs the times that MIOpen measures.
    After ``budget_s`` seconds no further problem is tuned. ``progress`` is called after each problem of each phase,
    from several threads. Raises RunnerError where MIOpen cannot run at all, OSError where ``out`` cannot be written.
    """
    started = time.monotonic()
    deadline = None if budget_s is None else started + budget_s
    keys = tuple(dict.fromkeys(problem.find_db_key() for problem in problems))
    with _Phases(out, workers, library, progress or (lambda phase, outcome: None)) as phases:
        tuned_before = phases.outlet.tuned()
        cold, _ = phases.run(Phase.TUNE, [key for key in keys if key not in tuned_before], deadline=deadline)
        failed = {key: outcome for key, outcome in cold.items() if outcome.error}
        ready = [key for key in keys if key not in failed and (key in cold or key in tuned_before)]
        passes, added = 0, bool(ready)
        while added and passes < MOST_SEAL_PASSES:
            sealed, added = phases.run(Phase.SEAL, ready)
            passes += 1
            failed |= {key: outcome for key, outcome in sealed.items() if outcome.error}
            ready = [key for key in ready if key not in failed]
        warm, _ = phases.run(Phase.PROVE, ready, repeats=repeats)
        recorded = phases.store.problem_keys(phases.outlet.root)
    proofs = (_proof(key, cold.get(key), failed.get(key) or warm.get(key), key in recorded) for key in keys)
    return ProblemReport(str(phases.outlet.root), tuple(proofs), passes, time.monotonic() - started)


def _proof(key: str, cold: Outcome | None, last: Outcome | None, recorded: bool) -> ProblemProof:
    """``last`` is the outcome of the proving process, or the failure before it; None where the budget was used up."""
    if last is None:
        return ProblemProof(key, proven=False, reason=BUDGET)
    if last.error:
        reason = last.error
    elif not recorded:
        reason = "MIOpen wrote no record for it, so every process would search again"
    elif last.added:
        reason = f"the proving run added {len(last.added)} entries"
    else:
        reason = ""
    return ProblemProof(
        key,
        proven=not reason,
        cold_seconds=cold.first_seconds if cold else None,
        first_seconds=last.first_seconds,
        steady_seconds=last.steady_seconds,
        algorithm=last.algorithm,
        milliseconds=last.milliseconds,
        added=last.added,
        reason=reason,
    )


class _Phases:
    """Runs one phase after the other, each shared out over worker processes with a private part of the store each."""

    def __init__(self, out: Path, workers: int, library: str | None, progress: Progress) -> None:
        self.store = MIOpenStore()
        self.outlet = Outlet(out, self.store)
        self._library = library
        self._progress = progress
        self._workers = workers
        self._stop = Event()
        self._pool = ThreadPoolExecutor(workers)

    def __enter__(self) -> _Phases:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()  # what is running ends with the problem that it is at
        self._pool.shutdown()

    def run(
        self, phase: Phase, keys: Sequence[str], *, repeats: int = 0, deadline: float | None = None
    ) -> tuple[dict[str, Outcome], bool]:
        """The outcomes by key, and whether the store grew. Keys that were not begun by ``deadline`` are left out."""
        shares = [keys[at :: self._workers] for at in range(min(self._workers, len(keys)))]
        done = [self._pool.submit(self._share, phase, share, repeats, deadline) for share in shares]
        finished = [future.result() for future in done]
        return {key: outcome for share, _ in finished for key, outcome in share.items()}, any(
            grew for _, grew in finished
        )

    def _share(
        self, phase: Phase, keys: Sequence[str], repeats: int, deadline: float | None
    ) -> tuple[dict[str, Outcome], bool]:
        found = {}
        tuning = phase is Phase.TUNE
        with self.outlet.part(keep=phase is not Phase.PROVE, filled=not tuning) as part:
            before = self.store.entries(part.root)
            root = str(part.root) if phase is Phase.PROVE else None
            job = Job(search=tuning, repeats=repeats, root=root, library=self._library)
            environment = self.store.settings(phase, part.root).environment
            for outcome in outcomes(keys, job, environment, deadline):
                found[outcome.key] = outcome
                if tuning and not outcome.error:
                    part.mark_tuned(outcome.key)
                self._progress(phase, outcome)
                if self._stop.is_set():
                    break
            return found, bool(added_entries(before, self.store.entries(part.root)))
