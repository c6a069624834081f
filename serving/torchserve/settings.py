"""What ``model-config.yaml`` of an archive says to Preheat, under ``handler: preheat:``.

handler:
  preheat:
    model: model               # the folder of the model, in the archive
    bundle: bundle.tar         # in the archive, or a path or URL elsewhere
    digest: sha256:...         # of the bundle: this one and no other
    require_proof: true        # false: where no bundle is there, start cold
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from handlers.document import shortened
from handlers.errors import ModelError

CONFIG = "model-config.yaml"
MODEL_FOLDER = "model"
BUNDLE_FILE = "bundle.tar"


class Settings(BaseModel):
    """The section ``handler: preheat:``. ``keys`` are files of public keys, beside those of PREHEAT_TRUSTED_KEYS."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = MODEL_FOLDER
    bundle: str = ""
    digest: Annotated[str, Field(pattern=r"^(sha256:[0-9a-f]{64})?$")] = ""
    keys: tuple[str, ...] = ()
    require_proof: bool = True

    def folder(self, archive: Path) -> Path:
        """The model's folder in the directory to which TorchServe has unpacked the archive."""
        return archive / self.model

    def location(self, archive: Path) -> str:
        """Where the bundle is: a name that the archive has means the archive's own file."""
        inside = archive / self.bundle
        return str(inside) if self.bundle and inside.exists() else self.bundle


def read_settings(config: Mapping[str, Any]) -> Settings:
    """The section of a whole ``model-config.yaml``, or its defaults; raises ModelError naming what is wrong."""
    handler = config.get("handler") or {}
    section = handler.get("preheat", {}) if isinstance(handler, Mapping) else None
    try:
        return Settings.model_validate(section)
    except ValidationError as error:
        raise ModelError("; ".join(_describe(problem) for problem in error.errors())) from error


def _describe(problem: Mapping[str, Any]) -> str:
    key = ".".join(["handler", "preheat", *map(str, problem["loc"])])
    if problem["type"] == "extra_forbidden":
        return f"{CONFIG}: {key}: unknown key; allowed here: {', '.join(Settings.model_fields)}"
    return f"{CONFIG}: {key}: {shortened(problem['msg'])}"
