"""``preheat serve``: serve models from a proven bundle, or unproven where that is said in so many words."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shutil
import socket
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from handlers.errors import ModelError
from handlers.loading import find_models
from serving.cli.output import fail, reported
from serving.listener import CannotListen, reserve
from serving.places import UnsafeDirectory, bundle_cache, default_bundle, default_models, runtime_directory
from serving.workers import Supervisor, plain
from warmup.bundle.files import BundleError
from warmup.bundle.pull import pull_into_cache
from warmup.bundle.trust import Trust, configured_keys

app = typer.Typer(add_completion=False)

log = logging.getLogger("preheat")


@app.command()
def serve(
    models: Annotated[
        list[str] | None, typer.Argument(help="Models by folder; the store's default where none.")
    ] = None,
    model_store: Annotated[Path, typer.Option(help="The folder of model folders.")] = default_models(),
    bundle: Annotated[str, typer.Option(help="The bundle: a directory, archive or URL.")] = "",
    digest: Annotated[str, typer.Option(help="Take this bundle and no other: sha256:... of its manifest.")] = "",
    key: Annotated[list[Path] | None, typer.Option("--key", help="Take what this public key signed.")] = None,
    trust: Annotated[bool, typer.Option("--trust", help="Take it whoever made it. A bundle is code.")] = False,
    unproven: Annotated[bool, typer.Option("--unproven", help="Serve without a bundle: every shape is cold.")] = False,
    host: Annotated[str, typer.Option(help="The address to serve on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 8000,
    admin_host: Annotated[str, typer.Option(help="The address of the port for state changes.")] = "127.0.0.1",
    admin_port: Annotated[int, typer.Option(min=-1, max=65535, help="Its port; 0: a free one, -1: none.")] = 0,
    admin_token_file: Annotated[
        Path | None, typer.Option(help="The admin token; one is made where none is given.")
    ] = None,
    drain_linger: Annotated[float, typer.Option(min=0, help="Seconds of service after readiness went off.")] = 0.0,
    drain_patience: Annotated[float, typer.Option(min=0, help="Seconds to wait for requests on their way.")] = 30.0,
    processes: Annotated[int, typer.Option(min=1, help="Server processes that share the port.")] = 1,
    shared_port: Annotated[bool, typer.Option("--shared-port", hidden=True)] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Serve models so that no request pays for tuning."""
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    if unproven and bundle:
        fail("--unproven and --bundle exclude each other")
    with reported(ModelError, BundleError, CannotListen):
        found = find_models(model_store, models or ())
        bound = reserve(host, port, shared_port)
        if processes > 1:
            raise typer.Exit(_run(lambda: _supervise(processes, bound)))
        admin = reserve(admin_host, admin_port) if admin_port >= 0 else None
        pulled = None
        if not unproven:
            vouched = Trust(digest=digest, keys=configured_keys(key or ()), anything=trust)
            pulled = pull_into_cache(bundle or str(default_bundle()), bundle_cache(), vouched)
            log.info("bundle %s: %s", pulled.digest, pulled.trusted)
    scratch = Path(tempfile.mkdtemp(prefix="preheat-"))
    try:
        from serving.prepare import BundleMismatch, DamagedStore, prepare

        with reported(ModelError, BundleError, BundleMismatch, DamagedStore, status=1):
            prepared = prepare(found, pulled, scratch)
        with reported(UnsafeDirectory):
            token, where = _token(admin_token_file, bound.getsockname()[1])

        from serving.server import Drain, Server

        def started(port: int, admin_port: int | None) -> None:
            if admin_port is not None:
                typer.echo(f"state changes on http://{admin_host}:{admin_port}, token in {where}", err=True)
            typer.echo(f"serving on http://{host}:{port}", err=True)

        async def main() -> int:
            return await Server(prepared, bound, admin, token, Drain(drain_linger, drain_patience)).run(started)

        raise typer.Exit(_run(main))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


async def _supervise(processes: int, bound: socket.socket) -> int:
    """Starts this very command in several processes, on the port that is held here."""
    arguments = [*sys.argv[2:], "--processes", "1", "--shared-port", "--port", str(bound.getsockname()[1])]
    return await Supervisor(plain(processes), arguments).run()


def _run(main) -> int:  # type: ignore[no-untyped-def]
    try:
        import uvloop
    except ImportError:  # not made for Windows
        return asyncio.run(main())
    return uvloop.run(main())


def _token(given: Path | None, port: int) -> tuple[str, Path]:
    """The admin token and the file that holds it, readable by this user only."""
    if given is not None:
        try:
            token = given.read_text(encoding="utf-8").strip()
        except OSError as error:
            fail(f"{given}: {error.strerror}")
        if not token:
            fail(f"{given}: empty; expected a token")
        return token, given
    where = runtime_directory() / f"admin-{port}.token"
    token = secrets.token_urlsafe(32)
    where.unlink(missing_ok=True)
    descriptor = os.open(where, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(token)
    return token, where
