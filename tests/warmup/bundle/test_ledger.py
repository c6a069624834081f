from __future__ import annotations

import logging
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from warmup.bundle import ledger
from warmup.bundle.ledger import LedgerError

A, B = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"


def test_remembers_what_was_made_here_and_nothing_else() -> None:
    assert not ledger.made_here(A)
    assert ledger.remember(A)
    assert ledger.made_here(A)
    assert not ledger.made_here(B)
    assert stat.S_IMODE(ledger.path().stat().st_mode) == 0o600


def test_is_the_same_after_saying_it_twice() -> None:
    ledger.remember(A)
    ledger.remember(A)
    assert len(ledger.path().read_bytes().splitlines()) == 1


def test_writers_at_once_lose_nothing() -> None:
    digests = [f"sha256:{n:064x}" for n in range(40)]
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ledger.remember, digests))
    assert all(map(ledger.made_here, digests))


def test_a_torn_last_line_spoils_neither_itself_nor_the_next() -> None:
    ledger.remember(A)
    whole = ledger.path().read_bytes()
    ledger.path().write_bytes(whole + whole[:40])
    assert ledger.remember(B)
    assert ledger.made_here(A)
    assert ledger.made_here(B)


def test_another_machine_is_not_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.remember(A)
    (tmp_path / "id").write_text("0123456789abcdef0123456789abcdef\n")
    monkeypatch.setattr(ledger, "MACHINE_ID", tmp_path / "id")
    assert not ledger.made_here(A)


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_ledger_that_others_may_write_is_not_believed(what: str, caplog: pytest.LogCaptureFixture) -> None:
    ledger.remember(A)
    target = ledger.path() if what == "file" else ledger.path().parent
    target.chmod(target.stat().st_mode | 0o020)
    with pytest.raises(LedgerError, match="may be written by others; run: chmod go-w"):
        ledger.made_here(A)
    with caplog.at_level(logging.WARNING):
        assert not ledger.remember(B)
    assert "needs a digest, a signature or --trust" in caplog.text


def test_a_ledger_behind_a_link_is_not_believed(tmp_path: Path) -> None:
    ledger.remember(A)
    ledger.path().rename(tmp_path / "elsewhere")
    ledger.path().symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LedgerError):
        ledger.made_here(A)


def test_a_relative_state_directory_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert ledger.path() == tmp_path / ".local/state/preheat/made-here"


def test_where_it_cannot_be_written_the_reason_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        assert not ledger.remember(A)
    assert f"{A} is not noted as made here" in caplog.text
