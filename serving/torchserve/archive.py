"""Archives (``.mar``) of models for TorchServe, made by TorchServe's own torch-model-archiver.

In an archive: ``model/`` (the model's folder as it is), ``bundle.tar`` unless the bundle is only referred to,
``preheat_handler.py``, and ``model-config.yaml`` with what the plan and the proof say about batches and times.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import yaml

from handlers.loading import Model, check_parts, load_handler
from handlers.spec import ModelSpec
from serving.prepare import check_handler, check_models
from serving.torchserve.settings import BUNDLE_FILE, CONFIG, MODEL_FOLDER
from warmup.bundle.manifest import Bundle
from warmup.bundle.publish import publish
from warmup.plan import Plan, expand
from warmup.proof import Proof

HANDLER_FILE = "preheat_handler.py"
_HANDLER = '''"""The handler of this archive: Preheat's, which reads model-config.yaml."""

from serving.torchserve.handler import PreheatHandler


class Handler(PreheatHandler):
    """TorchServe takes the one class that this file defines."""
'''
_START = 120  # seconds that a worker may take for imports and the copy of the bundle: TorchServe's default for a start
_BUSY = 4  # how much longer than when it was proven a shape may take: several workers start at once

Device = Literal["cpu", "gpu"]


class ArchiverFailed(Exception):
    """torch-model-archiver is not installed, or ended with an error."""


class ArchiveExists(Exception):
    """An archive of that name is there already."""


@dataclass(frozen=True)
class Choices:
    """What neither plan nor proof can say: workers for each model, the device, and where the bundle will be (empty: in
    the archive)."""

    workers: int = 1
    device: Device = "cpu"
    reference: str = ""


def device_of(bundle: Bundle | None) -> Device:
    """Where the bundle was proven."""
    return "gpu" if bundle is not None and "gpu_arch" in bundle.manifest.identity else "cpu"


def model_config(spec: ModelSpec, plan: Plan, proof: Proof | None, preheat: dict[str, Any], choices: Choices) -> dict:  # type: ignore[type-arg]
    """The content of ``model-config.yaml``: what TorchServe reads (seconds, milliseconds, bytes), and ``preheat``."""
    largest = max((planned.shape.dims[0][0] for planned in plan), default=1) if spec.batched else 1
    startup = _startup(proof)
    config: dict[str, Any] = {
        "minWorkers": choices.workers,
        "maxWorkers": choices.workers,
        "batchSize": largest,
        "maxBatchDelay": max(1, int(spec.batching.max_delay_ms)),  # ms; TorchServe takes 0 for its own default of 100
        "jobQueueSize": spec.batching.queue,
        "responseTimeout": _response(spec, largest, proof),
        "startupTimeout": startup,
        "maxRetryTimeoutInSec": startup,  # after this long without a worker that starts, /ping says so
        "deviceType": choices.device,
    }
    if choices.device == "gpu":
        config |= {"parallelType": "custom", "parallelLevel": 1}  # each worker is shown its own accelerator alone
    return {**config, "handler": {"preheat": preheat}}


def _startup(proof: Proof | None) -> int:
    """Seconds after which TorchServe takes a worker that starts for dead."""
    return _START + math.ceil(_BUSY * sum(shape.first_seconds or 0.0 for shape in (proof.proven() if proof else ())))


def _response(spec: ModelSpec, largest: int, proof: Proof | None) -> int:
    """Seconds after which TorchServe takes a worker for dead: more than the slowest batch, and what may run cold."""
    shapes = proof.proven() if proof else ()
    slowest = largest * max((shape.steady_seconds or 0.0 for shape in shapes), default=0.0)
    cold = max((shape.cold_seconds or 0.0 for shape in shapes), default=0.0) if spec.cold == "run" else 0.0
    return math.ceil(max(spec.limits.timeout_s, _BUSY * slowest) + _BUSY * cold)


def archive(model: Model, bundle: Bundle | None, out: Path, choices: Choices, force: bool = False) -> Path:
    """Makes ``out/<name>.mar`` and returns its path; without a bundle the archive is served unproven.

    Raises BundleMismatch where the bundle was not made from these files, ArchiveExists, ModelError, ArchiverFailed.
    """
    spec = model.spec
    check_parts(model)
    check_handler(model, load_handler(spec, model.folder))
    target = out / f"{spec.name}.mar"
    if target.exists() and not force:
        raise ArchiveExists(f"{target} is there already; --force replaces it")
    plan, proof = expand(spec, model.folder), None
    preheat: dict[str, Any] = {"model": MODEL_FOLDER, "require_proof": bundle is not None}
    if bundle is not None:
        check_models(bundle, [model])
        bundled = bundle.manifest.models[spec.name]
        plan, proof = bundled.plan, bundled.proof
        preheat |= {"bundle": choices.reference or BUNDLE_FILE, "digest": bundle.digest}
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".preheat-archive-", dir=out) as text:
        work = Path(text)
        content = work / "content"
        shutil.copytree(model.folder, content / MODEL_FOLDER, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        if bundle is not None and not choices.reference:
            publish(bundle, str(content / BUNDLE_FILE))
        (work / HANDLER_FILE).write_text(_HANDLER, encoding="utf-8")
        config = model_config(spec, plan, proof, preheat, choices)
        (work / CONFIG).write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
        run_archiver(
            [
                *("--model-name", spec.name, "--version", spec.version, "--handler", str(work / HANDLER_FILE)),
                *("--config-file", str(work / CONFIG), "--extra-files", str(content)),
                *("--archive-format", "zip-store", "--export-path", str(work)),
            ],
            work,
        )
        (work / f"{spec.name}.mar").replace(target)
    return target


def run_archiver(arguments: Sequence[str], work: Path) -> None:
    """Runs torch-model-archiver; raises ArchiverFailed with its last line.

    It gathers files in ``$TMPDIR/<model's name>``, which it removes first if it is there: so it gets a directory of its
    own in ``work``.
    """
    if find_spec("model_archiver") is None:
        raise ArchiverFailed("torch-model-archiver is not installed: pip install 'preheat[torchserve]'")
    temporary = work / "tmp"
    temporary.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "model_archiver.model_packaging", *arguments],
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise ArchiverFailed(f"torch-model-archiver: {last}")
