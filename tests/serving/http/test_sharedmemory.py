"""Memory that clients share: what may be registered, and what is read and written of it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine, Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from handlers.errors import InvalidInput
from handlers.spec import TensorSpec
from serving.http.oip import InferRequest, Place, Shared, Wanted
from serving.http.request import BodyTooLarge
from serving.http.sharedmemory import Regions

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared memory is Linux's")
SIZE = 1 << 20
LARGE = (1 << 15) + 1  # elements of a tensor that is not copied


class Model:
    """Maps what it is told to, if ``maps``; ``fails`` instead of it."""

    def __init__(self, maps: bool = True, reads: bool = True, fails: bool = False) -> None:
        self.name = "m"
        self.loaded = True
        self.spec = SimpleNamespace(
            inputs=(TensorSpec(name="x", dtype="fp32", dims=("n",)), TensorSpec(name="b", dtype="bool", dims=("n",))),
            limits=SimpleNamespace(request_bytes=SIZE),
        )
        self._maps, self._reads, self._fails = maps, reads, fails
        self.views: list[memoryview] = []
        self.rooms: list[int] = []

    async def map_memory(self, descriptor: int, offset: int, size: int) -> memoryview | None:
        if self._fails:
            raise RuntimeError("on purpose")
        os.fstat(descriptor)
        self.views.append(memoryview(bytes(size)))  # what the device would see: zeros, to tell it from a copy
        return self.views[-1] if self._maps else None

    async def wait_loaded(self) -> bool:
        return self.loaded

    def reads_mapped(self, dims: Any) -> bool:
        return self._reads

    def room(self, size: int) -> memoryview | None:
        self.rooms.append(size)
        return None


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    made = SharedMemory(create=True, size=SIZE)
    assert made.buf is not None
    made.buf[:] = np.full(SIZE // 4, 3, np.float32).tobytes()
    yield made
    made.close()
    made.unlink()


def regions(*models: Model) -> Regions:
    return Regions(lambda: models)  # type: ignore[arg-type,return-value]


def run(step: Coroutine[Any, Any, None]) -> None:
    asyncio.run(step)


def fetched(found: Regions, model: Model, request: InferRequest) -> dict[str, np.ndarray]:
    inputs, copies = found.inputs(model, request)  # type: ignore[arg-type]
    for copy in copies:
        copy.make()
    return inputs


def asked(elements: int, offset: int = 0) -> InferRequest:
    place = Place("r", offset, 4 * elements)
    return InferRequest(None, {"b": np.ones(elements, np.bool_)}, shared={"x": Shared(place, (elements,))})


@pytest.mark.parametrize("key", ["/{}", "{}"])
def test_a_region_is_there_until_it_is_unregistered(memory: SharedMemory, key: str) -> None:
    key = key.format(memory.name)
    found = regions()
    open_before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    run(found.register("r", key, 4096, 8192))
    assert found.status() == found.status("r") == [{"name": "r", "key": key, "offset": 4096, "byte_size": 8192}]
    with pytest.raises(InvalidInput, match="'r' is registered already"):
        run(found.register("r", key, 0, 10))
    run(found.register("s", key, 0, 10))
    run(found.unregister("r"))
    with pytest.raises(InvalidInput, match="no shared memory region 'r' is registered"):
        found.status("r")
    with pytest.raises(InvalidInput, match="no shared memory region 'r' is registered"):
        run(found.unregister("r"))
    run(found.unregister())
    assert found.status() == [] and len(os.listdir("/proc/self/fd")) == open_before  # noqa: PTH208


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("/there-is-no-such-memory", "No such file"),
        ("/../../etc/passwd", "is no name"),
        ("..", "is no name"),
        ("", "is no name"),
        ("/", "is no name"),
        ("a\0b", "is no name"),
        ("x" * 300, "is no name"),
    ],
)
def test_what_is_no_shared_memory_is_refused(key: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        run(regions().register("r", key, 0, 1))


def test_more_than_there_is_is_refused(memory: SharedMemory) -> None:
    with pytest.raises(InvalidInput, match=f"has {SIZE} bytes, {SIZE + 1} are needed"):
        run(regions().register("r", memory.name, 1, SIZE))


def test_links_and_pipes_are_refused(memory: SharedMemory) -> None:
    place = Path(f"/dev/shm/preheat-test-{os.getpid()}")
    try:
        place.symlink_to(f"/dev/shm/{memory.name}")
        with pytest.raises(InvalidInput, match="Too many levels"):
            run(regions().register("r", place.name, 0, 1))
        place.unlink()
        os.mkfifo(place)
        with pytest.raises(InvalidInput, match="is no shared memory"):
            run(regions().register("r", place.name, 0, 1))
    finally:
        place.unlink()


def test_there_is_a_limit(memory: SharedMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.http.sharedmemory._MOST_REGIONS", 1)
    found = regions()
    run(found.register("r", memory.name, 0, 1))
    with pytest.raises(InvalidInput, match="as many as may be"):
        run(found.register("s", memory.name, 0, 1))
    run(found.unregister())


def test_what_clients_have_left_makes_room(memory: SharedMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.http.sharedmemory._MOST_REGIONS", 2)
    found = regions()
    gone = SharedMemory(create=True, size=4096)
    run(found.register("left", gone.name, 0, 1))
    gone.close()
    gone.unlink()
    run(found.register("r", memory.name, 0, 1))
    run(found.register("s", memory.name, 0, 1))
    assert [region["name"] for region in found.status()] == ["r", "s"]
    run(found.unregister())


def test_an_engine_that_maps_nothing_gets_a_copy(memory: SharedMemory) -> None:
    model = Model(maps=False)
    found = regions(model)
    run(found.register("r", memory.name, 4, SIZE - 4))
    inputs = fetched(found, model, asked(5, offset=3 * 4))  # type: ignore[arg-type]
    assert list(inputs) == ["x", "b"] and not inputs["x"].flags.writeable
    np.testing.assert_array_equal(inputs["x"], np.full(5, 3, np.float32))
    run(found.unregister())
    np.testing.assert_array_equal(inputs["x"], np.full(5, 3, np.float32))


@pytest.mark.parametrize(
    ("model", "elements", "start", "offset", "mapped"),
    [
        (Model(), LARGE, 0, 0, True),
        (Model(), LARGE, 0, 64, True),
        (Model(), LARGE, 60, 4, True),
        (Model(), LARGE, 0, 4, False),  # not aligned
        (Model(), LARGE, 1, 0, False),  # the region is not, and NumPy would copy
        (Model(), LARGE, 4, 64, False),
        (Model(), 1 << 15, 0, 0, False),  # small
        (Model(reads=False), LARGE, 0, 0, False),  # somebody would look at it
        (Model(fails=True), LARGE, 0, 0, False),
    ],
)
def test_only_what_nobody_here_looks_at_is_not_copied(
    memory: SharedMemory, model: Model, elements: int, start: int, offset: int, mapped: bool
) -> None:
    found = regions(model)
    run(found.register("r", memory.name, start, SIZE - start))
    x = fetched(found, model, asked(elements, offset))["x"]  # type: ignore[arg-type]
    assert x.shape == (elements,) and (x[1] == 0) == mapped
    assert model.rooms == ([] if mapped else [4 * elements])
    run(found.unregister())


def test_a_bool_is_looked_at_and_so_copied(memory: SharedMemory) -> None:
    model = Model()
    found = regions(model)
    run(found.register("r", memory.name, 0, SIZE))
    size = 1 << 18
    model.spec.limits.request_bytes = 16 * SIZE
    request = InferRequest(None, {"x": np.zeros(size)}, shared={"b": Shared(Place("r", 0, size), (size,))})
    with pytest.raises(InvalidInput, match="must be 0 or 1"):
        fetched(found, model, request)  # type: ignore[arg-type]
    run(found.unregister())


def test_a_model_that_comes_later_maps_what_is_there(memory: SharedMemory) -> None:
    model = Model()
    found = regions()
    run(found.register("r", memory.name, 0, SIZE))
    run(found.map_into(model))  # type: ignore[arg-type]
    assert fetched(found, model, asked(LARGE))["x"][0] == 0  # type: ignore[arg-type]
    run(found.unregister())


def test_a_model_that_is_loaded_while_a_region_is_registered_maps_it_too(memory: SharedMemory) -> None:
    slow, late = Model(), Model()
    late.loaded = False
    begun, go_on = asyncio.Event(), asyncio.Event()
    map_memory = slow.map_memory

    async def slowly(descriptor: int, offset: int, size: int) -> memoryview | None:
        begun.set()
        await go_on.wait()
        return await map_memory(descriptor, offset, size)

    slow.map_memory = slowly  # type: ignore[method-assign]
    found = regions(slow, late)

    async def main() -> None:
        registering = asyncio.create_task(found.register("r", memory.name, 0, SIZE))
        await begun.wait()
        late.loaded = True
        await found.map_into(late)  # type: ignore[arg-type]
        go_on.set()
        await registering

    run(main())
    for model in (slow, late):
        assert len(model.views) == 1
        assert fetched(found, model, asked(LARGE))["x"][0] == 0  # type: ignore[arg-type]
    run(found.unregister())


def test_what_is_unregistered_while_it_is_mapped_is_let_go(memory: SharedMemory) -> None:
    model = Model()
    found = regions(model)
    map_memory = model.map_memory

    async def meanwhile(descriptor: int, offset: int, size: int) -> memoryview | None:
        await found.unregister("r")
        return await map_memory(descriptor, offset, size)

    model.map_memory = meanwhile  # type: ignore[method-assign]
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    run(found.register("r", memory.name, 0, SIZE))
    assert found.status() == [] and len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_no_more_is_mapped_than_may_be(
    memory: SharedMemory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("serving.http.sharedmemory._MOST_MAPPED", SIZE)
    first, later = Model(), Model()
    found = regions(first)

    async def main() -> None:
        await asyncio.gather(found.register("r", memory.name, 0, SIZE), found.register("s", memory.name, 0, 1))
        await found.map_into(later)  # type: ignore[arg-type]

    run(main())
    assert len(first.views) == len(later.views) == 1 and "region s is always copied" in caplog.text
    run(found.unregister())


@pytest.mark.parametrize("offset", [SIZE - 8, 1 << 40])
def test_what_is_beyond_a_region_is_refused(memory: SharedMemory, offset: int) -> None:
    found = regions()
    run(found.register("r", memory.name, 0, SIZE))
    with pytest.raises(InvalidInput, match=f"12 bytes from byte {offset} of .*'r' are more than it has"):
        found.find(Place("r", offset, 12))
    run(found.unregister())


@pytest.mark.parametrize(("model", "elements"), [(Model(), LARGE), (Model(), 100)])
def test_memory_that_was_made_smaller_ends_a_request_and_nothing_else(
    memory: SharedMemory, model: Model, elements: int
) -> None:
    found = regions(model)
    run(found.register("r", memory.name, 0, SIZE))
    os.truncate(f"/dev/shm/{memory.name}", 10)
    with pytest.raises(InvalidInput, match="made smaller"):
        fetched(found, model, asked(elements))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="made smaller"):
        found.find(Place("r", 0, 100)).write(Place("r", 0, 100), memoryview(bytearray(100)))
    assert os.stat(f"/dev/shm/{memory.name}").st_size == 10  # noqa: PTH116
    run(found.unregister())


def test_more_than_a_model_takes_is_refused(memory: SharedMemory) -> None:
    model = Model()
    model.spec.limits.request_bytes = 499
    with pytest.raises(BodyTooLarge, match="have 500 bytes, at most 499"):  # 400 there, and 100 in the body
        fetched(regions(model), model, asked(100))


def test_outputs_go_to_the_region_that_the_request_named(memory: SharedMemory) -> None:
    found = regions()
    other = SharedMemory(create=True, size=4096)
    try:
        run(found.register("r", memory.name, 64, 1000))
        place = Place("r", 36, 20)
        write = found.writer(InferRequest(None, {}, (Wanted("y", True, place),)))
        run(found.unregister("r"))
        run(found.register("r", other.name, 0, 4096))
        write(place, memoryview(b"an output"))
        assert memory.buf is not None and bytes(memory.buf[100:109]) == b"an output"
        assert other.buf is not None and not any(other.buf)
        run(found.unregister())
    finally:
        other.close()
        other.unlink()


def test_of_two_that_want_the_last_name_at_once_one_is_refused(
    memory: SharedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where room has to be made first."""
    monkeypatch.setattr("serving.http.sharedmemory._MOST_REGIONS", 2)
    found = regions(Model())
    for name in ("a", "b"):
        gone = SharedMemory(create=True, size=4096)
        run(found.register(name, gone.name, 0, 1))
        gone.close()
        gone.unlink()

    async def main() -> list[object]:
        both = (found.register("r", memory.name, 0, size) for size in (1, 2))
        return await asyncio.gather(*both, found.unregister("b"), return_exceptions=True)

    ended = asyncio.run(main())
    assert ended[0] is None and "registered already" in str(ended[1])
    assert [region["byte_size"] for region in found.status()] == [1]
    run(found.unregister())
