"""What a TorchServe worker does before a framework reads its settings: the bundle is checked, the environment set.

TorchServe's worker imports PyTorch for itself, before it knows any handler. That import reads none of the settings that
a serving phase makes: Inductor reads its own when ``torch._inductor.config`` is imported, MIOpen at its first call. So
they are in time as long as that module is not there yet, which is checked.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from handlers.errors import ModelError
from handlers.loading import Model, check_parts
from handlers.spec import load_spec
from serving.places import bundle_cache
from serving.prepare import Prepared, prepare
from serving.torchserve.settings import Settings
from warmup.bundle.files import BundleError, BundleRefused
from warmup.bundle.manifest import Bundle
from warmup.bundle.pull import pull_into_cache
from warmup.bundle.trust import Trust, configured_keys

log = logging.getLogger("preheat.torchserve")

_READS_AT_IMPORT = "torch._inductor.config"


class SettingsTooLate(Exception):
    """A framework has read its settings before the serving phase's could be made."""


def restore(archive: Path, settings: Settings, scratch: Path) -> Prepared:
    """Restores the bundle for the model in an unpacked archive, into ``scratch``, and sets this process's environment.

    Raises ModelError on a wrong or missing model, and where a proof is required and no bundle is there; BundleMismatch
    naming each field in which this node differs, BundleRefused, DamagedStore, and SettingsTooLate.
    """
    if _READS_AT_IMPORT in sys.modules:
        raise SettingsTooLate(
            f"{_READS_AT_IMPORT} was imported before the settings of the serving phase were made; a handler of your "
            "own must not import it, nor compile anything, before PreheatHandler.initialize has returned"
        )
    folder = settings.folder(archive)
    model = Model(load_spec(folder), folder)
    check_parts(model)
    return prepare([model], _bundle(archive, settings), scratch)


def _bundle(archive: Path, settings: Settings) -> Bundle | None:
    """The bundle, or None where none is there and none is required."""
    missing = "handler: preheat: bundle: names none"
    if settings.bundle:
        trust = Trust(digest=settings.digest, keys=configured_keys(map(Path, settings.keys)))
        try:
            return pull_into_cache(settings.location(archive), bundle_cache(), trust)
        except BundleRefused:  # it is there, and it is not what it should be
            raise
        except BundleError as error:
            missing = str(error)
    if settings.require_proof:
        raise ModelError(f"no bundle, and a proof is required (handler: preheat: require_proof): {missing}")
    log.warning("no bundle (%s): served unproven, every shape is cold", missing)
    return None
