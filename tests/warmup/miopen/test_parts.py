from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from warmup.miopen.parts import Outlet, Part
from warmup.stores.miopen import MIOpenStore

NAME = "gfx942130.HIP.3_4_0_.ufdb.txt"
KEYS = [f"8-14-14-3x3-8-14-14-{batch}-1x1-1x1-1x1-0-NCHW-FP32-F" for batch in range(1, 5)]


def record(part: Part, key: str) -> None:
    (part.root / "db").mkdir(exist_ok=True)
    with (part.root / "db" / NAME).open("a") as file:
        file.write(f"{key}=GemmFwdRest:1.5,0,miopenConvolutionFwdAlgoGEMM\n")


def outlet(out: Path) -> Outlet:
    return Outlet(out, MIOpenStore())


def test_what_a_part_made_is_merged_when_it_is_done(tmp_path):
    mine = outlet(tmp_path)
    with mine.part(keep=True, filled=False) as part:
        record(part, KEYS[0])
        part.mark_tuned(KEYS[0])
        assert MIOpenStore().problem_keys(mine.root) == set(), "nobody writes where another one reads"
    assert MIOpenStore().problem_keys(mine.root) == {KEYS[0]}
    assert outlet(tmp_path).tuned() == {KEYS[0]}
    assert list((tmp_path / "parts").iterdir()) == []


def test_a_part_is_merged_also_where_its_work_failed(tmp_path):
    mine = outlet(tmp_path)
    with pytest.raises(RuntimeError), mine.part(keep=True, filled=False) as part:
        record(part, KEYS[0])
        raise RuntimeError
    assert MIOpenStore().problem_keys(mine.root) == {KEYS[0]}


def test_a_copy_has_what_is_there_and_gives_nothing_back(tmp_path):
    mine = outlet(tmp_path)
    with mine.part(keep=True, filled=False) as part:
        record(part, KEYS[0])
    with mine.part(keep=False, filled=True) as copy:
        assert MIOpenStore().problem_keys(copy.root) == {KEYS[0]}
        record(copy, KEYS[1])
    assert MIOpenStore().problem_keys(mine.root) == {KEYS[0]}


def test_a_part_whose_owner_died_is_adopted_and_one_in_use_is_left_alone(tmp_path):
    mine = outlet(tmp_path)
    with mine.part(keep=True, filled=False) as part:
        record(part, KEYS[0])
        part.mark_tuned(KEYS[0])
        dead = part.root.parent.with_name("part-dead")
        shutil.copytree(part.root.parent, dead)
        record(Part(dead), KEYS[1])
        with (dead / "tuned.txt").open("a") as file:
            file.write(KEYS[1] + "\n" + KEYS[2][:10])  # killed while it wrote
        other = outlet(tmp_path)
        assert not dead.exists() and part.root.exists()
        assert MIOpenStore().problem_keys(other.root) == {KEYS[0], KEYS[1]}
        assert other.tuned() == {KEYS[0], KEYS[1]}


def test_a_record_that_a_kill_cut_short_is_mended_on_adoption(tmp_path):
    folder = tmp_path / "parts" / "part-dead"
    folder.mkdir(parents=True)
    dead = Part(folder)
    record(dead, KEYS[0])
    database = dead.root / "db" / NAME
    database.write_text(database.read_text() + f"{KEYS[1]}=GemmFwdRest:1.5")
    mine = outlet(tmp_path)
    assert MIOpenStore().problem_keys(mine.root) == {KEYS[0]}
    assert MIOpenStore().check(mine.root) == []


def test_a_key_counts_as_tuned_only_while_its_record_is_there(tmp_path):
    mine = outlet(tmp_path)
    with mine.part(keep=True, filled=False) as part:
        part.mark_tuned(KEYS[0])
    assert outlet(tmp_path).tuned() == set()
