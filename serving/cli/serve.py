"""``preheat serve``: serve models from a proven bundle, or unproven where that is said in so many words."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from handlers.errors import ModelError
from handlers.loading import find_models
from serving.cli.output import fail, reported
from serving.listener import CannotListen, reserve
from serving.places import UnsafeDirectory, bundle_cache, default_bundle, default_models, runtime_directory
from serving.scratch import scratch
from serving.workers import Supervisor, Worker, end_with_parent, pinned, plain
from warmup.accelerators import NoSuchAccelerator, accelerators, chosen
from warmup.bundle.files import BundleError
from warmup.bundle.pull import pull_into_cache
from warmup.bundle.trust import Trust, configured_keys

app = typer.Typer(add_completion=False)

log = logging.getLogger("preheat")

T = TypeVar("T")


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
    devices: Annotated[
        str,
        typer.Option(help="Accelerators: all, or numbers such as 0,1; --processes for each, pinned to it."),
    ] = "",
    allow_client_shm: Annotated[
        bool,
        typer.Option("--allow-client-shm", help="Clients on this host may have tensors in shared memory."),
    ] = False,
    shared_port: Annotated[bool, typer.Option("--shared-port", hidden=True)] = False,
    late: Annotated[bool, typer.Option("--late", hidden=True)] = False,
    log_level: Annotated[Literal["debug", "info", "warning", "error"], typer.Option(help="What is logged.")] = "info",
) -> None:
    """Serve models so that no request pays for tuning."""
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    if unproven and bundle:
        fail("--unproven and --bundle exclude each other")
    if (processes > 1 or devices) and admin_port > 0:
        fail("--admin-port is the port of one process; with --processes or --devices every process takes a free one")
    if allow_client_shm and (processes > 1 or devices):
        fail("--allow-client-shm is for one process, which the others would not hear of; start one server for each")
    if shared_port:
        end_with_parent()
    with reported(ModelError, BundleError, CannotListen, NoSuchAccelerator):
        found = find_models(model_store, models or ())
        bound = reserve(host, port, shared_port)
        if devices:
            workers = pinned(chosen(devices, accelerators()), processes)
            raise typer.Exit(_run(_supervise(workers, bound)))
        if processes > 1:
            raise typer.Exit(_run(_supervise(plain(processes), bound)))
        admin = reserve(admin_host, admin_port) if admin_port >= 0 else None
        pulled = None
        if not unproven:
            vouched = Trust(digest=digest, keys=configured_keys(key or ()), anything=trust)
            pulled = pull_into_cache(bundle or str(default_bundle()), bundle_cache(), vouched)
            log.info("bundle %s: %s", pulled.digest, pulled.trusted)
    with reported(UnsafeDirectory), scratch() as place, _token(admin_token_file) as (token, token_file):
        from serving.prepare import BundleMismatch, DamagedStore, prepare

        with reported(ModelError, BundleError, BundleMismatch, DamagedStore, status=1):
            prepared = prepare(found, pulled, place)

        from serving.server import Drain, Server

        def started(port: int, admin_port: int | None) -> None:
            if admin_port is not None:
                typer.echo(f"state changes on http://{admin_host}:{admin_port}, token in {token_file}", err=True)
            typer.echo(f"serving on http://{host}:{port}", err=True)

        async def serve_until_told() -> None:
            drain = Drain(drain_linger, drain_patience)
            await Server(prepared, bound, admin, token, drain, late, allow_client_shm).run(started)

        _run(serve_until_told())


async def _supervise(workers: Sequence[Worker], bound: socket.socket) -> int:
    """Starts this very command in several processes, on the port that is held here."""
    alone = ["--processes", "1", "--devices", "", "--shared-port"]
    return await Supervisor(workers, [*sys.argv[2:], *alone, "--port", str(bound.getsockname()[1])]).run()


def _run(main: Coroutine[Any, Any, T]) -> T:
    try:
        import uvloop
    except ImportError:  # not made for Windows
        return asyncio.run(main)
    return uvloop.run(main)


@contextmanager
def _token(given: Path | None) -> Iterator[tuple[str, Path]]:
    """The admin token and the file that holds it, readable by this user only; one made here goes with the process."""
    if given is not None:
        try:
            token = given.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            fail(f"{given}: {error}")
        if not token:
            fail(f"{given}: empty; expected a token")
        yield token, given
        return
    token = secrets.token_urlsafe(32)
    descriptor, name = tempfile.mkstemp(prefix=f"admin-{os.getpid()}-", suffix=".token", dir=runtime_directory())
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(token)
        yield token, Path(name)
    finally:
        Path(name).unlink(missing_ok=True)
