"""Where inputs are read from: in place where the accelerator can, else in the staging memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from handlers.engines.hostmemory import HostMemory
from handlers.engines.staging import Arena, source


@pytest.fixture
def readable() -> HostMemory:
    whole = np.zeros(1 << 16, np.uint8)
    return HostMemory(whole.ctypes.data, whole.nbytes, whole)


def nowhere(address: int) -> bool:
    return False


def there(readable: HostMemory, rows: int, value: float) -> torch.Tensor:
    room = readable.take(rows * 8)
    assert room is not None
    tensor = torch.from_numpy(np.frombuffer(room, np.float32).reshape(rows, 2))
    return tensor.fill_(value)


def test_what_the_accelerator_can_read_stays_where_it_is(readable: HostMemory) -> None:
    part, place = there(readable, 3, 1), torch.zeros(3, 2)
    (found,) = source(readable.holds, place, [part])
    assert found.data_ptr() == part.data_ptr() and not place.any()


@pytest.mark.parametrize("memory", [True, False])
def test_anything_else_is_copied(readable: HostMemory, memory: bool) -> None:
    place = torch.zeros(3, 2)
    (found,) = source(readable.holds if memory else nowhere, place, [torch.full((3, 2), 2.0)])
    assert found.data_ptr() == place.data_ptr() and (place == 2).all()


def test_parts_go_to_their_rows(readable: HostMemory) -> None:
    place = torch.zeros(8, 2)
    parts = [torch.full((1, 2), 1.0), there(readable, 2, 2), torch.full((3, 2), 3.0)]
    found = source(readable.holds, place, parts)
    torch.testing.assert_close(torch.cat(found), torch.cat(parts))
    assert found[1].data_ptr() == parts[1].data_ptr()
    assert place[:, 0].tolist() == [1, 0, 0, 3, 3, 3, 0, 0]


def test_parts_that_are_all_copied_are_one_piece() -> None:
    place = torch.zeros(4, 2, dtype=torch.bfloat16)
    (found,) = source(nowhere, place, [torch.ones(1, 2, dtype=torch.bfloat16), torch.ones(2, 2, dtype=torch.bfloat16)])
    assert found.shape == (3, 2) and place[:, 0].tolist() == [1, 1, 1, 0]


def test_an_arena_grows_and_earlier_views_stay() -> None:
    arena = Arena(lambda size: torch.zeros(size, dtype=torch.uint8))
    (small,) = arena.views((((2,), torch.float32),))
    small.fill_(1)
    first, second = arena.views((((300,), torch.float32), ((1,), torch.int64)))
    assert first.numel() == 300 and second.dtype == torch.int64
    assert second.data_ptr() - first.data_ptr() == 1536  # the next multiple of 512 bytes
    assert small.tolist() == [1, 1]
