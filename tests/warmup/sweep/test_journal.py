"""The journal: what it remembers over a kill, what a torn line does, and what makes it forget."""

from __future__ import annotations

from pathlib import Path

import pytest

from handlers.shapes import Shape
from warmup.stores.store import Phase
from warmup.sweep.journal import Journal, JournalError, opened
from warmup.sweep.messages import Ran

ONE, TWO = Shape.parse("x=1:fp32"), Shape.parse("x=2:fp32")


def fill(journal: Journal) -> None:
    journal.begin({"torch": "1"}, {"inductor": {"old": "0"}})
    journal.model("m", "digest")
    journal.ran(Phase.TUNE, "m", Ran(ONE, 2.0, 0.5, {"inductor": {"a": "1"}}))


def test_what_was_written_is_there_after_opening_again(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with opened(path) as journal:
        fill(journal)
    with opened(path) as journal:
        done = journal.history.find(Phase.TUNE, "m", ONE)
        assert done is not None
        assert (done.first_seconds, done.steady_seconds, done.added) == (2.0, 0.5, {"inductor": 1})
        assert journal.history.find(Phase.TUNE, "m", TWO) is None
        assert journal.history.identity == {"torch": "1"}
        assert journal.history.vouched == {"inductor": {"old": "0", "a": "1"}}


def test_a_line_is_on_the_disk_before_the_next_shape(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with opened(path) as journal:
        fill(journal)
        assert path.read_bytes().count(b"\n") == 3


@pytest.mark.parametrize("keep", [1, 20, -1])
def test_a_torn_line_is_not_believed_and_is_cut_off(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "journal.jsonl"
    with opened(path) as journal:
        fill(journal)
        whole = path.read_bytes()
        journal.ran(Phase.TUNE, "m", Ran(TWO, 1.0, None, {"inductor": {"b": "2"}}))
    last = path.read_bytes()[len(whole) :]
    path.write_bytes(whole + last[:keep])
    with opened(path) as journal:
        assert journal.history.find(Phase.TUNE, "m", TWO) is None
        assert "b" not in journal.history.vouched["inductor"]
        journal.ran(Phase.TUNE, "m", Ran(TWO, 3.0))
    with opened(path) as journal:
        assert journal.history.find(Phase.TUNE, "m", TWO) is not None
        assert journal.history.find(Phase.TUNE, "m", ONE) is not None


def test_another_model_of_the_same_name_starts_over_and_its_entries_stay(tmp_path: Path) -> None:
    with opened(tmp_path / "journal.jsonl") as journal:
        fill(journal)
        journal.model("m", "digest")
        assert journal.history.find(Phase.TUNE, "m", ONE) is not None
        journal.model("m", "other digest")
        assert journal.history.find(Phase.TUNE, "m", ONE) is None
        assert "a" in journal.history.vouched["inductor"]


def test_a_store_that_grows_ends_every_proof(tmp_path: Path) -> None:
    with opened(tmp_path / "journal.jsonl") as journal:
        fill(journal)
        journal.ran(Phase.PROVE, "m", Ran(ONE, 0.1))
        journal.ran(Phase.SEAL, "m", Ran(TWO, 0.1))
        assert journal.history.find(Phase.PROVE, "m", ONE) is not None
        journal.ran(Phase.SEAL, "m", Ran(TWO, 0.1, None, {"inductor": {"c": "3"}}))
        assert journal.history.find(Phase.PROVE, "m", ONE) is None


def test_entries_of_a_proof_are_on_a_copy_and_vouched_for_by_nobody(tmp_path: Path) -> None:
    with opened(tmp_path / "journal.jsonl") as journal:
        fill(journal)
        journal.ran(Phase.PROVE, "m", Ran(ONE, 0.1, None, {"inductor": {"z": "9"}}))
        assert "z" not in journal.history.vouched["inductor"]


def test_forgetting_leaves_nothing_to_resume(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with opened(path) as journal:
        fill(journal)
        journal.forget()
        assert journal.history.identity == {}
    assert path.read_bytes() == b""


def test_a_journal_that_cannot_be_written_says_which(tmp_path: Path) -> None:
    with (
        pytest.raises(JournalError, match="missing/journal.jsonl: No such file"),
        opened(tmp_path / "missing/journal.jsonl"),
    ):
        pass


def test_errors_of_the_sweep_are_not_the_journals(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="elsewhere"), opened(tmp_path / "journal.jsonl"):
        (tmp_path / "elsewhere").read_bytes()
