"""Which stores exist. A new cache is one new module here beside its neighbours, and one line below."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from handlers.spec import ModelSpec
from warmup.stores.inductor import InductorStore
from warmup.stores.migraphx import MIGraphXStore
from warmup.stores.miopen import MIOpenStore
from warmup.stores.onnxruntime import OnnxRuntimeStore
from warmup.stores.store import Phase, Settings, Store
from warmup.stores.tunableop import TunableOpStore

STORES: tuple[Store, ...] = (InductorStore(), MIOpenStore(), MIGraphXStore(), OnnxRuntimeStore(), TunableOpStore())


def stores_for(specs: Iterable[ModelSpec]) -> tuple[Store, ...]:
    """The stores that at least one of the models fills or reads."""
    specs = tuple(specs)
    return tuple(store for store in STORES if any(store.applies(spec) for spec in specs))


def settings_for(stores: Iterable[Store], phase: Phase, root: Path) -> Settings:
    """The settings of several stores together; each store lives in ``root/<name of the store>``."""
    settings = Settings()
    for store in stores:
        settings |= store.settings(phase, root / store.name)
    return settings
