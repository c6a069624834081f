"""Memory that clients on the same host share with the server, so that tensors need not travel (Triton's "system shared
memory" extension, docs/protocol/extension_shared_memory.md).

A client makes an object of POSIX shared memory, registers it as a region, and from then on names the region in place of
data. It may write to the object at any time, and make it smaller: a process that looks at a mapping of it would then be
ended by SIGBUS. So the server reads and writes it by system calls, which fail instead, and maps it only for an
accelerator that fetches inputs by itself (``handlers.engines.mapping``).
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import stat
import sys
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from handlers.errors import InvalidInput
from handlers.spec import TensorSpec
from serving.http import tensors
from serving.http.oip import InferRequest, Place, Shared
from serving.http.request import BodyTooLarge
from serving.model import ServedModel

log = logging.getLogger("preheat")

_FOLDER = Path("/dev/shm")  # where the C library keeps the objects that shm_open names (glibc; shm_overview(7))
_KEY = re.compile(r"/?[^/\0]{1,254}")  # NAME_MAX, shm_open(3)
_MOST_REGIONS = 256  # each takes a descriptor, and one more for each model that maps it
_MOST_MAPPED = 2 << 30  # bytes of all regions that are pinned; what is over that is read by system calls
# Copying so many bytes takes no longer than all else about a request; and drivers copy up to 64 KiB by themselves
# (CUDA's API synchronization behavior), which would be to look at them.
_COPIED = 1 << 17
_ALIGNMENT = 64  # bytes


class Copy(NamedTuple):
    """A copy of so many bytes that is still to be made: ``make`` does it, on any thread, or raises InvalidInput."""

    size: int
    make: Callable[[], None]


@dataclass(frozen=True, eq=False)
class Region:
    """``size`` bytes of an object of shared memory, from its byte ``offset`` on. ``mapped``: engines may map it, and
    ``views`` are what they do. Its descriptor is closed when nobody has the region any more."""

    name: str
    key: str
    offset: int
    size: int
    descriptor: int
    mapped: bool
    views: WeakKeyDictionary[ServedModel, memoryview] = field(default_factory=WeakKeyDictionary)

    def __post_init__(self) -> None:
        weakref.finalize(self, os.close, self.descriptor)

    @property
    def whole(self) -> bool:
        """Whether its object is still as large as it was."""
        return os.fstat(self.descriptor).st_size >= self.offset + self.size

    @property
    def left(self) -> bool:
        """Whether its object has no name any more, as one whose client has gone."""
        return not os.fstat(self.descriptor).st_nlink

    def to_json(self) -> dict[str, object]:
        """As the protocol has it."""
        return {"name": self.name, "key": self.key, "offset": self.offset, "byte_size": self.size}

    def read(self, place: Place, into: memoryview) -> None:
        """Copies what is there. Raises InvalidInput where that is gone."""
        done = 0
        while done < place.size:
            more = os.preadv(self.descriptor, [into[done:]], self.offset + place.offset + done)
            if not more:
                raise _shrunk(place)
            done += more

    def write(self, place: Place, data: memoryview) -> None:
        """Copies ``data``, which is no longer than the place, to it. Raises InvalidInput where there is no room."""
        if not self.whole:  # to write would make it larger again
            raise _shrunk(place)
        done = 0
        while done < len(data):
            try:
                done += os.pwrite(self.descriptor, data[done:], self.offset + place.offset + done)
            except OSError as error:
                raise InvalidInput(f"{_told(place)}: {error.strerror}") from error

    def view(self, place: Place, model: ServedModel) -> memoryview | None:
        """What is there, for the model's engine, which alone may look; None where that cannot have it as it lies.
        Raises InvalidInput where the region has been made smaller: the engine would see what was there before."""
        view = self.views.get(model)
        if view is None or place.size <= _COPIED or (self.offset + place.offset) % _ALIGNMENT:
            return None
        if not self.whole:
            raise _shrunk(place)
        return view[place.offset : place.offset + place.size]


class Regions:
    """The registered regions by name. ``models`` gives those that are served. Used on the event loop only."""

    def __init__(self, models: Callable[[], Iterable[ServedModel]]) -> None:
        self._models = models
        self._regions: dict[str, Region] = {}

    async def register(self, name: str, key: str, offset: int, size: int) -> None:
        """Takes a region in, and has every model map it. Raises InvalidInput where there is no such memory, or a region
        of that name already."""
        if name in self._regions:
            raise InvalidInput(f"shared memory region {name!r} is registered already")
        views = self._forget(region for region in self._found() if region.left) if self._full else []
        if self._full:
            raise InvalidInput(f"{_MOST_REGIONS} shared memory regions are registered, which is as many as may be")
        mapped = size + sum(region.size for region in self._regions.values() if region.mapped) <= _MOST_MAPPED
        region = Region(name, key, offset, size, _open(key, offset + size), mapped)
        if not mapped:
            log.warning("shared memory region %s is always copied: over %d bytes are mapped", name, _MOST_MAPPED)
        self._regions[name] = region
        await asyncio.to_thread(views.clear)
        for model in self._models():
            await self._map(region, model)

    async def unregister(self, name: str | None = None) -> None:
        """Forgets a region, or all of them. Requests on their way keep what they have of it. Raises InvalidInput."""
        views = self._forget(self._found(name))
        await asyncio.to_thread(views.clear)

    def status(self, name: str | None = None) -> list[dict[str, object]]:
        """What is registered. Raises InvalidInput on another name."""
        return [region.to_json() for region in self._found(name)]

    def writer(self, asked: InferRequest) -> Callable[[Place, memoryview], None]:
        """What writes the request's outputs to its places, whatever becomes of their regions until then. Raises
        InvalidInput where there is no such place."""
        regions = {place.region: self.find(place) for place in asked.places}
        return lambda place, data: regions[place.region].write(place, data)

    def find(self, place: Place) -> Region:
        """The region of a place that is in it; raises InvalidInput on any other."""
        (region,) = self._found(place.region)
        if place.offset + place.size > region.size:
            raise InvalidInput(f"{_told(place)} are more than it has, {region.size}")
        return region

    def inputs(self, model: ServedModel, asked: InferRequest) -> tuple[dict[str, np.ndarray], list[Copy]]:
        """All inputs of a request, in the model's order, and what is to be done before they are used: those in shared
        memory are copied from there, unless they are for an accelerator to fetch. Raises InvalidInput or BodyTooLarge.
        """
        dims = {name: array.shape for name, array in asked.inputs.items()}
        dims |= {name: shared.dims for name, shared in asked.shared.items()}
        size = sum(array.nbytes for array in asked.inputs.values())
        size += sum(shared.place.size for shared in asked.shared.values())
        most = model.spec.limits.request_bytes
        if size > most:
            raise BodyTooLarge(f"the inputs have {size} bytes, at most {most} are allowed")
        mapped = model.reads_mapped(tuple(dims[spec.name] for spec in model.spec.inputs))
        copies: list[Copy] = []
        inputs = {
            spec.name: asked.inputs[spec.name]
            if spec.name in asked.inputs
            else self._input(model, spec, asked.shared[spec.name], mapped, copies)
            for spec in model.spec.inputs
        }
        return inputs, copies

    def _input(
        self, model: ServedModel, spec: TensorSpec, shared: Shared, mapped: bool, copies: list[Copy]
    ) -> np.ndarray:
        place, region = shared.place, self.find(shared.place)
        looked_at = spec.dtype == "bool"
        view = region.view(place, model) if mapped and not looked_at else None
        if view is not None:
            return tensors.over(view, spec, shared.dims)
        room = model.room(place.size) or memoryview(bytearray(place.size))
        if looked_at:
            region.read(place, room)
            return tensors.from_bytes(room.toreadonly(), 0, spec, shared.dims)
        copies.append(Copy(place.size, partial(region.read, place, room)))
        return tensors.over(room.toreadonly(), spec, shared.dims)

    async def map_into(self, model: ServedModel) -> None:
        """Has a model map what is registered already, once it is loaded; nothing where it never is."""
        if await model.wait_loaded():
            for region in list(self._regions.values()):
                await self._map(region, model)

    async def _map(self, region: Region, model: ServedModel) -> None:
        if not region.mapped or not model.loaded or model in region.views:
            return
        try:
            view = await model.map_memory(region.descriptor, region.offset, region.size)
        except Exception as error:  # whatever the driver says: it is then read by copying
            log.warning("model %s: shared memory region %s is always copied: %s", model.name, region.name, error)
            return
        if view is not None and self._regions.get(region.name) is region and model.loaded:
            region.views[model] = view

    @property
    def _full(self) -> bool:
        return len(self._regions) >= _MOST_REGIONS

    def _forget(self, regions: Iterable[Region]) -> list[memoryview]:
        """Takes regions out, and gives what engines have mapped of them: its end takes milliseconds."""
        views: list[memoryview] = []
        for region in regions:
            del self._regions[region.name]
            views += region.views.values()
            region.views.clear()
        return views

    def _found(self, name: str | None = None) -> list[Region]:
        if name is None:
            return list(self._regions.values())
        if name not in self._regions:
            raise InvalidInput(f"no shared memory region {name!r} is registered")
        return [self._regions[name]]


def allowed(regions: Regions | None, local: bool) -> Regions:
    """The regions, for a client that may use them: where there are any, and to a ``local`` one. Raises InvalidInput."""
    if regions is None:
        raise InvalidInput("this server shares no memory with clients; it would with --allow-client-shm")
    if not local:
        raise InvalidInput("shared memory is for programs on the same host, by its loopback address")
    return regions


def _open(key: str, size: int) -> int:
    """A descriptor of the object of that name, which has ``size`` bytes at least; raises InvalidInput."""
    if sys.platform != "linux":
        raise InvalidInput("shared memory is supported on Linux only")
    if not _KEY.fullmatch(key) or key.strip("/") in (".", ".."):
        raise InvalidInput(f"{key!r} is no name of shared memory")
    try:
        descriptor = os.open(_FOLDER / key.lstrip("/"), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise InvalidInput(f"shared memory {key!r}: {error.strerror}") from error
    facts = os.fstat(descriptor)
    if stat.S_ISREG(facts.st_mode) and facts.st_size >= size:
        return descriptor
    os.close(descriptor)
    if not stat.S_ISREG(facts.st_mode):
        raise InvalidInput(f"{key!r} is no shared memory")
    raise InvalidInput(f"shared memory {key!r} has {facts.st_size} bytes, {size} are needed")


def _shrunk(place: Place) -> InvalidInput:
    return InvalidInput(f"{_told(place)}: its memory has been made smaller since it was registered")


def _told(place: Place) -> str:
    return f"{place.size} bytes from byte {place.offset} of shared memory region {place.region!r}"
