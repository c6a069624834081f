from __future__ import annotations

import gc
import logging

import numpy as np
import pytest

from handlers.engines.hostmemory import HostMemory
from handlers.engines.mirror import _PIECE, Mirror


class Copies(Mirror):
    """What was asked for, in order, and how many copies each mark stands for."""

    def __init__(self, address: int) -> None:
        super().__init__(address)
        self.asked: list[tuple[int, int]] = []
        self.fails = False

    def copy(self, start: int, end: int) -> None:
        if self.fails:
            raise RuntimeError("on purpose")
        self.asked.append((start, end))

    def mark(self) -> int:
        return len(self.asked)


BASE = 1 << 20
BODY = 3 * _PIECE + 100


@pytest.fixture
def mirror() -> Copies:
    return Copies(BASE)


def test_a_body_is_copied_in_pieces_as_it_comes_and_found_when_all_of_it_is_asked_for(mirror: Copies) -> None:
    start = BASE + 4096
    for size in (10, _PIECE - 1, _PIECE, _PIECE + 5, 3 * _PIECE):
        mirror.arrived(start, size, whole=False)
    assert mirror.asked == [(4096, 4096 + _PIECE), (4096 + _PIECE, 4096 + 3 * _PIECE)]
    assert mirror.find(start, 10) is None
    mirror.arrived(start, BODY, whole=True)
    assert mirror.asked[-1] == (4096 + 3 * _PIECE, 4096 + BODY)
    assert mirror.find(start + 64, 10) == (4096 + 64, 3)
    assert mirror.find(start, BODY) == (4096, 3)


def test_what_is_not_whole_in_one_body_is_not_found(mirror: Copies) -> None:
    for start in (BASE, BASE + 4096):
        mirror.arrived(start, 4096, whole=True)
    assert mirror.find(BASE + 4000, 96) == (4000, 1) and mirror.find(BASE + 4000, 97) is None
    assert mirror.find(BASE - 1, 10) is None and mirror.find(BASE + 8192, 1) is None


def test_bodies_that_come_at_once_do_not_mix(mirror: Copies) -> None:
    one, other = BASE, BASE + 8 * _PIECE
    for size in (_PIECE, 2 * _PIECE):
        mirror.arrived(one, size, whole=False)
        mirror.arrived(other, size + 1, whole=False)
    mirror.arrived(one, 2 * _PIECE + 7, whole=True)
    assert mirror.find(one, 7) == (0, 5) and mirror.find(other, 7) is None
    assert sorted(mirror.asked)[2] == (2 * _PIECE, 2 * _PIECE + 7)


def test_what_was_known_of_memory_that_is_given_out_again_holds_no_more() -> None:
    """A small body that nobody mirrors lies where a large one was; to find that one's copy would answer with it."""
    whole = np.zeros(BODY + 8192, np.uint8)
    mirror = Copies(whole.ctypes.data)
    memory = HostMemory(whole.ctypes.data, whole.nbytes, whole, mirror)
    large = memory.take(BODY)
    assert large is not None
    memory.arrived(large, BODY)
    address = np.frombuffer(large, np.uint8).ctypes.data
    assert mirror.find(address, 100) is not None
    del large
    gc.collect()
    first, second = memory.take(100), memory.take(100)
    for block in (first, second):
        assert block is not None
        there = np.frombuffer(block, np.uint8).ctypes.data
        assert address <= there < address + BODY and mirror.find(there, 100) is None


def test_a_body_where_another_was_given_up_is_copied_from_its_first_byte() -> None:
    whole = np.zeros(BODY + 4096, np.uint8)
    mirror = Copies(whole.ctypes.data)
    memory = HostMemory(whole.ctypes.data, whole.nbytes, whole, mirror)
    for ends in (2 * _PIECE, BODY):
        block = memory.take(BODY)
        assert block is not None
        memory.arrived(block, ends)
        del block
        gc.collect()
    assert mirror.asked == [(0, 2 * _PIECE), (0, BODY)]


def test_memory_of_others_is_not_copied(mirror: Copies) -> None:
    whole = np.zeros(8192, np.uint8)
    memory = HostMemory(whole.ctypes.data, 8192, whole, mirror)
    memory.arrived(memoryview(bytearray(100)), 100)
    assert mirror.asked == []


def test_where_a_copy_fails_the_bodies_stay_where_they_are(mirror: Copies, caplog: pytest.LogCaptureFixture) -> None:
    mirror.arrived(BASE, 100, whole=True)
    mirror.fails = True
    with caplog.at_level(logging.ERROR):
        for start in (BASE + 4096, BASE + 8192):
            mirror.arrived(start, 100, whole=True)
    assert len(caplog.records) == 1 and "no longer copied" in caplog.text
    assert mirror.find(BASE + 4096, 100) is None and mirror.find(BASE, 100) == (0, 1)
