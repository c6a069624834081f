from __future__ import annotations

import gc

import numpy as np
import pytest

from handlers.engines.hostmemory import HostMemory

PAGE = 4096


@pytest.fixture
def whole() -> np.ndarray:
    return np.zeros(8 * PAGE, np.uint8)


@pytest.fixture
def memory(whole: np.ndarray) -> HostMemory:
    return HostMemory(whole.ctypes.data, whole.nbytes, whole)


def place(block: memoryview | None) -> int:
    assert block is not None
    return np.frombuffer(block, np.uint8).ctypes.data


def test_blocks_are_written_where_the_memory_is_and_do_not_overlap(memory: HostMemory, whole: np.ndarray) -> None:
    first, second = memory.take(3), memory.take(2 * PAGE)
    assert first is not None and second is not None and (len(first), len(second)) == (3, 2 * PAGE)
    first[:] = b"abc"
    second[0] = 7
    assert bytes(whole[:3]) == b"abc" and whole[PAGE] == 7
    assert memory.holds(place(first)) and memory.holds(place(second))
    assert not memory.holds(whole.ctypes.data + whole.nbytes) and not memory.holds(whole.ctypes.data - 1)


def test_a_block_is_free_again_once_no_array_is_made_of_it(memory: HostMemory) -> None:
    array = np.frombuffer(memory.take(8 * PAGE), np.float32, 10, 4)  # type: ignore[arg-type]
    assert memory.take(1) is None
    del array
    gc.collect()
    assert memory.take(8 * PAGE) is not None


def test_what_is_given_back_in_any_order_grows_together(memory: HostMemory) -> None:
    blocks = [memory.take(PAGE) for _ in range(8)]
    assert memory.take(1) is None
    for index in (1, 3, 2, 7, 0):
        blocks[index] = None
    gc.collect()
    assert memory.take(5 * PAGE) is None
    four = memory.take(4 * PAGE)  # 0 to 3
    last = memory.take(PAGE)  # 7
    assert place(last) - place(four) == 7 * PAGE and memory.take(1) is None


def test_what_is_larger_than_all_of_it_has_no_room(memory: HostMemory) -> None:
    assert memory.take(8 * PAGE + 1) is None


def test_the_memory_stays_while_a_block_lives(whole: np.ndarray) -> None:
    memory = HostMemory(whole.ctypes.data, whole.nbytes, whole)
    block = memory.take(1)
    del memory, whole
    gc.collect()
    assert block is not None
    block[0] = 1
    assert block[0] == 1
