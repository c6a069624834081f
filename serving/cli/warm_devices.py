"""``preheat warm --devices``: one part of the plans for each accelerator, in processes of their own, then joined."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from serving.cli.output import errors, fail, print_json, reported
from warmup.accelerators import pinned
from warmup.bundle.files import BundleError
from warmup.bundle.manifest import Bundle, read_bundle
from warmup.bundle.merge import merge
from warmup.bundle.trust import Trust
from warmup.stores.registry import STORES


def warm_devices(
    devices: Sequence[str], models: Sequence[str], model_store: Path, out: Path, verify: bool, as_json: bool
) -> int:
    """Warms part i of n on accelerator i and joins the parts at ``out``, which must not be there yet.

    Returns the exit status: that of the worst part, 1 where joining left a shape unproven.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        fail(f"{out} is there already; with --devices the bundle is made anew, choose another --out")
    out = out.absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as folder:
        parts = [Path(folder) / str(index) for index in range(1, len(devices) + 1)]
        running = [
            subprocess.Popen(
                _command(models, model_store, part, f"{index}/{len(devices)}", verify),
                env={**os.environ, **pinned(device)},
                stdout=subprocess.DEVNULL,
            )
            for index, (device, part) in enumerate(zip(devices, parts, strict=True), 1)
        ]
        statuses = [process.wait() for process in running]
        broken = [device for device, status in zip(devices, statuses, strict=True) if status not in (0, 1)]
        if broken:
            fail(f"the sweep on accelerator {', '.join(broken)} could not run; nothing was made")
        with reported(BundleError, status=1):
            joined = merge([_made(part) for part in parts], out, STORES)
    errors.print(f"{out}: {joined.bundle.digest}, joined from {len(devices)} accelerators", soft_wrap=True)
    if as_json:
        proofs = {name: model.proof for name, model in joined.bundle.manifest.models.items()}
        print_json(
            {
                "out": str(out),
                "bundle": joined.bundle.digest,
                "devices": list(devices),
                "models": {
                    name: {"coverage": proof.coverage, "shapes": [shape.to_json() for shape in proof]}
                    for name, proof in proofs.items()
                },
            }
        )
    return 1 if joined.unproven else max(statuses)


def _command(models: Sequence[str], model_store: Path, out: Path, shard: str, verify: bool) -> list[str]:
    places = ["--model-store", str(model_store), "--out", str(out), "--shard", shard, "--json"]
    return [sys.executable, "-m", "serving", "warm", *models, *places, *([] if verify else ["--no-verify"])]


def _made(part: Path) -> Bundle:
    bundle = read_bundle(part)
    return replace(bundle, trusted=Trust().reason(bundle.digest, None, str(part)))
