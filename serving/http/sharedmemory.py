"""Memory that clients on the same host share with the server, so that tensors need not travel (Triton's "system shared
memory" extension, docs/protocol/extension_shared_memory.md).

A client makes an object of POSIX shared memory, registers it as a region, and from then on names the region in place of
data. It may write to the object at any time, and make it smaller: a process that looks at a mapping of it would then be
ended by SIGBUS. So the server reads and writes it by system calls, which fail instead, and maps it only for an
accelerator that fetches inputs by itself (``handlers.engines.mapping``).
"""

from __future__ import annotations

import logging
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
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
_MOST_REGIONS = 256  # each takes a descriptor or two
_LEAST_MAPPED = 1 << 16  # bytes of a tensor
_ALIGNMENT = 64  # bytes, of a tensor's place in its region
_MOST_MAPPED = 2 << 30  # bytes of all regions that are pinned; what is over that is read by system calls


@dataclass(frozen=True, eq=False)
class Region:
    """``size`` bytes of an object of shared memory, from its byte ``offset`` on. ``views``: what engines map of it."""

    name: str
    key: str
    offset: int
    size: int
    descriptor: int
    views: WeakKeyDictionary[ServedModel, memoryview] = field(default_factory=WeakKeyDictionary)

    def to_json(self) -> dict[str, object]:
        """As the protocol has it."""
        return {"name": self.name, "key": self.key, "offset": self.offset, "byte_size": self.size}


class Regions:
    """The registered regions by name. ``models`` gives those that are served. Used on the event loop only."""

    def __init__(self, models: Callable[[], Iterable[ServedModel]]) -> None:
        self._models = models
        self._regions: dict[str, Region | None] = {}  # None while it is being registered

    async def register(self, name: str, key: str, offset: int, size: int) -> None:
        """Takes a region in. Raises InvalidInput where there is no such memory, or one of that name already."""
        if name in self._regions:
            raise InvalidInput(f"shared memory region {name!r} is registered already")
        if len(self._regions) >= _MOST_REGIONS:
            raise InvalidInput(f"{_MOST_REGIONS} shared memory regions are registered, which is as many as may be")
        region = Region(name, key, offset, size, _open(key, offset + size))
        self._regions[name] = None
        try:
            for model in self._models():
                if model.loaded:
                    await self._map(region, model)
            self._regions[name] = region
        finally:
            if self._regions[name] is None:
                self._forget(region)

    def unregister(self, name: str | None = None) -> None:
        """Forgets a region, or all of them. Requests on their way keep what they have of it. Raises InvalidInput."""
        for region in self._found(name):
            self._forget(region)

    def status(self, name: str | None = None) -> list[dict[str, object]]:
        """What is registered. Raises InvalidInput on another name."""
        return [region.to_json() for region in self._found(name)]

    def inputs(self, model: ServedModel, asked: InferRequest) -> dict[str, np.ndarray]:
        """All inputs of a request, in the model's order: those in shared memory are copied from there, unless they are
        for an accelerator to fetch. Raises InvalidInput or BodyTooLarge."""
        dims = {name: array.shape for name, array in asked.inputs.items()}
        dims |= {name: shared.dims for name, shared in asked.shared.items()}
        size, most = sum(shared.place.size for shared in asked.shared.values()), model.spec.limits.request_bytes
        if size > most:
            raise BodyTooLarge(f"the inputs in shared memory have {size} bytes, at most {most} are allowed")
        mapped = model.reads_mapped(tuple(dims[spec.name] for spec in model.spec.inputs))
        return {
            spec.name: asked.inputs[spec.name]
            if spec.name in asked.inputs
            else self._input(model, spec, asked.shared[spec.name], mapped)
            for spec in model.spec.inputs
        }

    def _input(self, model: ServedModel, spec: TensorSpec, shared: Shared, mapped: bool) -> np.ndarray:
        place = shared.place
        # A copy of a small tensor takes no longer, drivers may look at one themselves, and so does who checks BOOLs.
        if mapped and place.size >= _LEAST_MAPPED and spec.dtype != "bool" and not place.offset % _ALIGNMENT:
            view = self.view(place, model)
            if view is not None:
                return tensors.from_bytes(view, 0, spec, shared.dims)
        room = model.room(place.size) or memoryview(bytearray(place.size))
        self.read(place, room)
        return tensors.from_bytes(room.toreadonly(), 0, spec, shared.dims)

    def check(self, place: Place) -> Region:
        """The region of a place that is in it; raises InvalidInput on any other."""
        region = self._regions.get(place.region)
        if region is None:
            raise InvalidInput(f"no shared memory region {place.region!r} is registered")
        if place.offset + place.size > region.size:
            raise InvalidInput(f"{_told(place)} are more than it has, {region.size}")
        return region

    def read(self, place: Place, into: memoryview) -> None:
        """Copies what is there. Raises InvalidInput."""
        region, done = self.check(place), 0
        while done < place.size:
            more = os.preadv(region.descriptor, [into[done:]], region.offset + place.offset + done)
            if not more:
                raise InvalidInput(f"{_told(place)}: its memory has been made smaller since it was registered")
            done += more

    def write(self, place: Place, data: memoryview) -> None:
        """Copies ``data``, which is no longer than the place, to it. Raises InvalidInput."""
        region, done = self.check(place), 0
        while done < len(data):
            try:
                done += os.pwrite(region.descriptor, data[done:], region.offset + place.offset + done)
            except OSError as error:
                raise InvalidInput(f"{_told(place)}: {error.strerror}") from error

    def view(self, place: Place, model: ServedModel) -> memoryview | None:
        """What is there, for the model's engine, which alone may look; None where that has not mapped it."""
        view = self.check(place).views.get(model)
        return view[place.offset : place.offset + place.size] if view is not None else None

    async def map_into(self, model: ServedModel) -> None:
        """Has a model map what is registered already when it is loaded."""
        await model.wait_loaded()
        for region in [region for region in self._regions.values() if region is not None]:
            if self._regions.get(region.name) is region:
                await self._map(region, model)

    async def _map(self, region: Region, model: ServedModel) -> None:
        mapped = sum(one.size for one in self._regions.values() if one is not None and one.views)
        if mapped + region.size > _MOST_MAPPED:
            log.info("shared memory region %s is read by copying: over %d bytes are mapped", region.name, _MOST_MAPPED)
            return
        descriptor = os.dup(region.descriptor)  # its own, for the region may be unregistered meanwhile
        try:
            view = await model.map_memory(descriptor, region.offset, region.size)
        except Exception as error:  # whatever the driver says, or its lane has closed: it is then read by copying
            log.warning("model %s: shared memory region %s is read by copying: %s", model.name, region.name, error)
            return
        finally:
            os.close(descriptor)
        if view is not None:
            region.views[model] = view

    def _found(self, name: str | None) -> list[Region]:
        if name is None:
            return [region for region in self._regions.values() if region is not None]
        region = self._regions.get(name)
        if region is None:
            raise InvalidInput(f"no shared memory region {name!r} is registered")
        return [region]

    def _forget(self, region: Region) -> None:
        del self._regions[region.name]
        os.close(region.descriptor)


def _told(place: Place) -> str:
    return f"{place.size} bytes from byte {place.offset} of shared memory region {place.region!r}"


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
    raise InvalidInput(f"shared memory {key!r} has {facts.st_size} bytes, {size} are needed")
