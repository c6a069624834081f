"""What happens before a framework is imported: the bundle is checked, and this process gets its environment.

The stores of the bundle are copied to a directory of this process alone, which the frameworks then read and, for
shapes that were not proven, write.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from handlers.errors import ModelError
from handlers.handler import Handler
from handlers.loading import Model, load_handler
from handlers.sources import model_digest
from serving.model import Served
from serving.repository import BundleFacts
from warmup.bundle.manifest import Bundle
from warmup.bundle.pull import copy_stores
from warmup.identity import ABSENT, Difference, differences, identity
from warmup.plan import expand
from warmup.stores.registry import settings_for, stores_for
from warmup.stores.store import Phase, Settings, Store


class BundleMismatch(Exception):
    """The bundle was made for another machine, other libraries or other models; the message names every difference."""

    def __init__(self, message: str, differences: Iterable[Difference]) -> None:
        super().__init__(message)
        self.differences = tuple(differences)


# A server without a bundle does what servers without warming do: the first request of a shape compiles.
_PAYS_ITSELF = Settings(engine={"torch.first_call": "compile"})


class DamagedStore(Exception):
    """A store of the bundle is what was shipped, but was damaged before; the message names every finding."""


@dataclass(frozen=True)
class Prepared:
    """What a server process serves. ``stores`` are in ``root/<name>``; ``settings`` are those of the serving phase."""

    served: tuple[Served, ...]
    stores: tuple[Store, ...]
    root: Path
    settings: Settings
    bundle: BundleFacts | None


def prepare(models: Iterable[Model], bundle: Bundle | None, scratch: Path) -> Prepared:
    """Checks the bundle against this machine and the models, and sets this process's environment for serving.

    ``scratch`` is an empty directory for this process alone. Without a bundle the models are served unproven, with
    empty stores there. Raises BundleMismatch, DamagedStore, ModelError, BundleError.
    """
    models = tuple(models)
    specs = tuple(model.spec for model in models)
    stores = stores_for(specs)
    facts = None
    if bundle is not None:
        check_identity(bundle, identity(specs, stores))
        check_models(bundle, models)
        facts = BundleFacts(bundle.digest, bundle.trusted, dict(bundle.manifest.identity))
        copy_stores(bundle, scratch)
        check_stores(stores, scratch)
        for store in stores:
            store.relocate(scratch / store.name)
    settings = settings_for(stores, Phase.SERVE, scratch)
    if bundle is None:
        settings |= _PAYS_ITSELF
    for store in stores:
        (scratch / store.name).mkdir(mode=0o700, parents=True, exist_ok=True)
    os.environ.update(settings.environment)
    served = []
    for model in models:
        bundled = bundle.manifest.models[model.spec.name] if bundle is not None else None
        check_handler(model, load_handler(model.spec, model.folder))
        served.append(
            Served(
                spec=model.spec,
                folder=model.folder,
                plan=bundled.plan if bundled else expand(model.spec, model.folder),
                proof=bundled.proof if bundled else None,
                engine_options=settings.engine,
                digest=bundled.digest if bundled else "",
            )
        )
    return Prepared(tuple(served), stores, scratch, settings, facts)


def check_handler(model: Model, handler: Handler) -> None:
    """Raises ModelError where padding is wanted and the handler cannot cut outputs."""
    if model.spec.shapes.pad and model.spec.cold == "pad" and type(handler).crop is Handler.crop:
        raise ModelError(
            f"{model.folder}: cold: pad needs a handler that says how outputs are cut; "
            f"{model.spec.handler!r} has no crop"
        )


def check_stores(stores: Iterable[Store], root: Path) -> None:
    """Raises DamagedStore naming everything that a framework would stumble over."""
    found = [
        f"{store.name}: {finding.where}: {finding.what} ({finding.why})"
        for store in stores
        for finding in store.check(root / store.name)
    ]
    if found:
        raise DamagedStore(f"the bundle's stores are damaged: {'; '.join(found)}")


def check_identity(bundle: Bundle, found: Mapping[str, str]) -> None:
    """Raises BundleMismatch naming each field of the bundle's identity that is different here."""
    different = differences(bundle.manifest.identity, found)
    if different:
        lines = "; ".join(map(str, different))
        raise BundleMismatch(f"the bundle {bundle.digest[:19]} is not for this machine: {lines}", different)


def check_models(bundle: Bundle, models: Iterable[Model]) -> None:
    """Raises BundleMismatch where a model is not in the bundle, or is not the model that was proven."""
    wrong, different = [], []
    for model in models:
        bundled = bundle.manifest.models.get(model.spec.name)
        if bundled is None:
            known = ", ".join(bundle.manifest.models) or "none"
            wrong.append(f"model {model.spec.name} is not in it (it has {known})")
            different.append(Difference(f"model {model.spec.name}", ABSENT, model.spec.version))
            continue
        found = f"sha256:{model_digest(model.spec, model.folder)}"
        if bundled.digest != found:
            different.append(Difference(f"model {model.spec.name}", bundled.digest, found))
            wrong.append(str(different[-1]))
    if wrong:
        raise BundleMismatch(f"the bundle {bundle.digest[:19]} is not for these models: {'; '.join(wrong)}", different)
