"""Applies the framework switches of ``Settings.framework``: attributes by dotted path, set after the import."""

from __future__ import annotations

import importlib
from collections.abc import Mapping


class UnknownSwitch(Exception):
    """A switch that the framework does not have: setting it would do nothing, silently."""


def apply(switches: Mapping[str, bool | int | str]) -> None:
    """Sets every switch, importing the module that it is in. Raises UnknownSwitch naming the one that is not there."""
    for path, value in switches.items():
        owner, _, name = path.rpartition(".")
        holder = _holder(owner, path)
        if not hasattr(holder, name):
            raise UnknownSwitch(f"{path}: {owner} has no attribute {name!r}")
        setattr(holder, name, value)


def _holder(owner: str, path: str) -> object:
    """The module, or the object in a module, that a dotted path names."""
    module, rest = owner, []
    while module:
        try:
            found: object = importlib.import_module(module)
        except ModuleNotFoundError:
            module, _, last = module.rpartition(".")
            rest.insert(0, last)
            continue
        for name in rest:
            if not hasattr(found, name):
                raise UnknownSwitch(f"{path}: nothing is named {name!r} on the way")
            found = getattr(found, name)
        return found
    raise UnknownSwitch(f"{path}: no module {owner.split('.')[0]!r} is installed")
