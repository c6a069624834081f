"""``preheat archive``: archives of models for TorchServe, warm before they are ready, and a safe configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from handlers.errors import ModelError
from handlers.loading import Model, find_models
from serving.cli.output import console, errors, fail, print_json, reported
from serving.places import bundle_cache, default_bundle, default_models
from serving.prepare import BundleMismatch
from serving.torchserve.archive import ArchiveExists, ArchiverFailed, Choices, archive, device_of
from serving.torchserve.properties import (
    LOOPBACK,
    METRICS,
    PROPERTIES,
    NoTorchServe,
    is_loopback,
    metrics_text,
    parse,
    properties,
    render,
)
from warmup.bundle.files import BundleError
from warmup.bundle.pull import pull_into_cache
from warmup.bundle.trust import Trust, configured_keys

app = typer.Typer(add_completion=False)


@app.command("archive")
def make(
    models: Annotated[
        list[str] | None, typer.Argument(metavar="[MODEL]...", help="Models by folder; the store's default where none.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="TorchServe's model store.")] = Path("torchserve"),
    model_store: Annotated[Path, typer.Option(help="The folder of model folders.")] = default_models(),
    bundle: Annotated[str, typer.Option(help="The bundle: a directory, archive or URL.")] = "",
    digest: Annotated[str, typer.Option(help="Take this bundle and no other: sha256:... of its manifest.")] = "",
    key: Annotated[list[Path] | None, typer.Option("--key", help="Take what this public key signed.")] = None,
    trust: Annotated[bool, typer.Option("--trust", help="Take it whoever made it. A bundle is code.")] = False,
    reference: Annotated[
        bool, typer.Option("--reference", help="Leave the bundle where it is; workers fetch it by its digest.")
    ] = False,
    unproven: Annotated[bool, typer.Option("--unproven", help="Without a bundle: every shape is cold.")] = False,
    workers: Annotated[int, typer.Option(min=1, max=1024, help="Workers of each model.")] = 1,
    device: Annotated[
        Literal["auto", "cpu", "gpu"], typer.Option(help="auto: that on which the bundle was proven.")
    ] = "auto",
    host: Annotated[
        str, typer.Option(help="Where TorchServe answers; beyond loopback, only with its token.")
    ] = LOOPBACK,
    metrics_host: Annotated[str, typer.Option(help="Where its metrics are; there is no token for them.")] = LOOPBACK,
    port: Annotated[int, typer.Option(min=1, max=65533, help="Of inference; management and metrics are next.")] = 8080,
    force: Annotated[bool, typer.Option("--force", help="Replace archives and configuration that are there.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print what was made as JSON.")] = False,
) -> None:
    """Make archives of models for TorchServe (.mar), with a configuration that is safe as it stands.

    Exit status: 0 made; 1 the bundle is not of these models; 2 could not run.
    """
    if unproven and (bundle or reference):
        fail("--unproven excludes --bundle and --reference")
    with reported(BundleMismatch, status=1), reported(ModelError, BundleError, ArchiveExists, ArchiverFailed):
        found = find_models(model_store, models or ())
        pulled = None
        location = bundle or str(default_bundle())
        if not unproven:
            vouched = Trust(digest=digest, keys=configured_keys(key or ()), anything=trust)
            pulled = pull_into_cache(location, bundle_cache(), vouched)
        kind = device_of(pulled) if device == "auto" else device
        choices = Choices(workers, kind, _absolute(location) if reference else "")
        made = [archive(model, pulled, out, choices, force) for model in found]
    with reported(NoTorchServe):
        written = _configure(out, found, (host, port, metrics_host), force)
    command = f"torchserve --start --foreground --no-config-snapshots --ts-config {out / PROPERTIES}"
    if json:
        archives = [{"path": str(path), "bytes": path.stat().st_size} for path in made]
        digest = pulled.digest if pulled else ""
        print_json({"archives": archives, "bundle": digest, "device": kind, "wrote": written, "command": command})
        return
    for path in made:
        console.print(f"{path}: {path.stat().st_size / 1e6:,.1f} MB", highlight=False, soft_wrap=True)
    for path in written:
        console.print(path, highlight=False, soft_wrap=True)
    console.print(f"start: {command}", highlight=False, soft_wrap=True)


def _absolute(location: str) -> str:
    """A path as workers can find it, whatever directory they run in; a URL as it is."""
    return location if "://" in location else str(Path(location).absolute())


def _configure(out: Path, models: tuple[Model, ...], addresses: tuple[str, int, str], force: bool) -> list[str]:
    """Writes the configuration files that are not there, or all of them; the paths of those that were written."""
    largest = max(model.spec.limits.request_bytes for model in models)
    values = properties(out, largest, *addresses)
    texts = {PROPERTIES: render(values), METRICS: metrics_text()}
    kept = [name for name in texts if (out / name).exists() and not force]
    if PROPERTIES in kept:
        limit = parse((out / PROPERTIES).read_text(encoding="latin-1")).get("max_request_size", "")
        if not limit.isdecimal() or int(limit) < int(values["max_request_size"]):
            errors.print(
                f"preheat: {out / PROPERTIES} is left as it is, but these models take larger bodies: set "
                f"max_request_size={values['max_request_size']}",
                soft_wrap=True,
            )
    for name in texts.keys() - kept:
        (out / name).write_text(texts[name], encoding="latin-1")
    if PROPERTIES not in kept and not is_loopback(addresses[0]):
        errors.print(
            f"preheat: {addresses[0]} is reached by others, so every request, /ping too, needs TorchServe's token",
            soft_wrap=True,
        )
    return sorted(str(out / name) for name in texts.keys() - kept)
