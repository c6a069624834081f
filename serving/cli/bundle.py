"""``preheat bundle``: look at, check, ship, fetch, prune, compare, join and sign bundles."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Column, Table
from rich.text import Text

from serving.cli.output import console, errors, print_json, reported
from serving.places import bundle_cache
from warmup.bundle import ledger
from warmup.bundle.diff import Difference, differences
from warmup.bundle.files import BundleError, BundleRefused
from warmup.bundle.inspection import Seen, check, digest_at, look
from warmup.bundle.ledger import LedgerError
from warmup.bundle.location import scrubbed
from warmup.bundle.manifest import Manifest, read_bundle
from warmup.bundle.merge import Merged, merge
from warmup.bundle.prune import prune
from warmup.bundle.publish import add_signature, publish
from warmup.bundle.pull import pull, pull_into_cache
from warmup.bundle.signature import generate, load_private, parse
from warmup.bundle.trust import Trust, configured_keys
from warmup.identity import differences as identity_differences
from warmup.identity import node

app = typer.Typer(no_args_is_help=True, add_completion=False)
_DAY = 86400.0  # seconds

Place = Annotated[str, typer.Argument(metavar="LOCATION", help="A directory, a .tar file, or a URL as s3://bucket/v1.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Digest = Annotated[str, typer.Option(help="Take this bundle and no other: sha256:... of its manifest.")]
Keys = Annotated[
    list[Path] | None,
    typer.Option("--key", help="Take what this public key signed; a file or a folder. Also PREHEAT_TRUSTED_KEYS."),
]
Unchecked = Annotated[bool, typer.Option("--trust", help="Take it whoever made it. A bundle is code that runs here.")]


@app.callback()
def _bundle() -> None:
    """Look at, check, ship, fetch, prune, compare, join and sign bundles."""


@app.command("inspect")
def inspect_(location: Place, as_json: Json = False) -> None:
    """Show what a bundle says about itself. Reads the manifest only; `verify` reads every byte."""
    with _reported():
        seen = look(location)
        facts = _facts(seen)
    if as_json:
        print_json(facts)
        return
    console.print(_summary(seen.manifest, facts))
    console.print(_shapes(seen.manifest))


@app.command()
def verify(
    location: Place,
    digest: Digest = "",
    key: Keys = None,
    trust: Unchecked = False,
    here: Annotated[bool, typer.Option("--here", help="Also compare its identity with this machine's.")] = False,
    as_json: Json = False,
) -> None:
    """Check every byte of a bundle and whether it would be trusted here; exit status 1 where `pull` would refuse it."""
    place = scrubbed(location)
    with _reported(), _progress(f"verify {place}") as bar:
        seen = check(location, bar(None), _trust(digest, key, trust))
        others = identity_differences(seen.manifest.identity, node()) if here else []
        if others:
            raise BundleRefused(f"{place} is for another machine: {'; '.join(map(str, others))}")
    _done(as_json, seen.digest, seen.manifest, f"verified, {seen.trusted}", trusted=seen.trusted)


@app.command("publish")
def publish_(
    bundle: Annotated[Path, typer.Argument(help="The bundle's directory.")], location: Place, as_json: Json = False
) -> None:
    """Ship a bundle. Readers find it whole or not at all; a published bundle never changes."""
    with _reported(), _progress(f"publish {bundle}") as bar:
        made = read_bundle(bundle)
        publish(made, location, bar(made.manifest.size))
    place = scrubbed(location)
    _done(as_json, made.digest, made.manifest, f"published at {place}", location=place)


@app.command("pull")
def pull_(
    location: Place,
    into: Annotated[Path | None, typer.Argument(help="The directory that the bundle will be.")] = None,
    cache: Annotated[Path | None, typer.Option(help="Instead of INTO: pull to CACHE/sha256-<digest>.")] = None,
    digest: Digest = "",
    key: Keys = None,
    trust: Unchecked = False,
    as_json: Json = False,
) -> None:
    """Fetch a bundle into a private directory, every byte verified. Needs no GPU."""
    if (into is None) == (cache is None):
        raise typer.BadParameter("name either INTO or --cache")
    with _reported(), _progress(f"pull {scrubbed(location)}") as bar:
        accepted = _trust(digest, key, trust)
        if into is not None:
            found = pull(location, into, accepted, bar(None))
        else:
            assert cache is not None
            found = pull_into_cache(location, cache, accepted, bar(None))
    message = f"pulled to {found.root}, {found.trusted}"
    _done(as_json, found.digest, found.manifest, message, path=str(found.root), trusted=found.trusted)


@app.command("prune")
def prune_(
    cache: Annotated[Path | None, typer.Option(help="The cache; that of this user's servers if left out.")] = None,
    unused: Annotated[float, typer.Option(min=0, help="Days for which nobody has used what is removed.")] = 30.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    as_json: Json = False,
) -> None:
    """Remove cached copies of bundles that nobody has used for a while; one that a process uses stays."""
    if math.isnan(unused):
        raise typer.BadParameter("--unused is a number of days")
    with _reported():
        found = prune(cache or bundle_cache(), unused * _DAY, dry_run)
    if as_json:
        listed = [{"digest": copy.digest, "path": str(copy.path), "bytes": copy.size} for copy in found.removed]
        print_json({"removed": listed, "failed": list(found.failed), "dry_run": dry_run})
    else:
        for copy in found.removed:
            typer.echo(f"{copy.digest}  {copy.size / 1e6:,.1f} MB, unused for {copy.unused / _DAY:,.0f} days")
        done = "would be removed" if dry_run else "removed"
        size = sum(copy.size for copy in found.removed)
        copies = "1 copy" if len(found.removed) == 1 else f"{len(found.removed)} copies"
        typer.echo(f"{copies}, {size / 1e6:,.1f} MB, {done}")
    for why in found.failed:
        errors.print(f"preheat: {why}", markup=False, soft_wrap=True)
    if found.failed:
        raise typer.Exit(2)


@app.command()
def diff(left: Place, right: Place, as_json: Json = False) -> None:
    """Show what differs between two bundles; exit status 1 where anything does."""
    with _reported():
        seen = look(left), look(right)
        found = differences(seen[0].manifest, seen[1].manifest)
    if as_json:
        print_json({"left": seen[0].digest, "right": seen[1].digest, "differences": [vars(one) for one in found]})
    elif found:
        console.print(_differences(found))
    else:
        typer.echo("no difference")
    if found:
        raise typer.Exit(1)


@app.command("merge")
def merge_(
    locations: Annotated[list[str], typer.Argument(metavar="LOCATION...", help="All the shards of one sweep.")],
    into: Annotated[Path, typer.Option("--into", "-o", help="The directory that the joined bundle will be.")],
    digest: Annotated[list[str] | None, typer.Option(help="Take bundles with these digests; repeat it.")] = None,
    key: Keys = None,
    trust: Unchecked = False,
    as_json: Json = False,
) -> None:
    """Join the shards of a sweep; exit status 1 where they do not fit, or where a shape needs to be proven again."""
    from warmup.stores.registry import STORES

    with _reported(), _scratch(into) as scratch, _progress("merge") as bar:
        pins = _pins(locations, digest or [])
        pulled = [
            pull(location, scratch / str(index), _trust(pins.get(location, ""), key, trust), bar(None))
            for index, location in enumerate(locations)
        ]
        with _named({str(bundle.root): scrubbed(location) for bundle, location in zip(pulled, locations, strict=True)}):
            joined = merge(pulled, into, STORES)
    _merged(joined, as_json)
    if joined.unproven:
        raise typer.Exit(1)


@app.command()
def keygen(
    name: Annotated[Path, typer.Argument(help="Writes NAME.pem (secret, readable by you alone) and NAME.pub.")],
    as_json: Json = False,
) -> None:
    """Make an Ed25519 key pair to sign bundles with."""
    private, public = name.with_name(f"{name.name}.pem"), name.with_name(f"{name.name}.pub")
    with _reported():
        key = generate(private, public)
    if as_json:
        print_json({"key": key.id, "private": str(private), "public": str(public)})
    else:
        typer.echo(f"{key.id}\n{private}: keep it secret, sign with it\n{public}: give it to those who pull")


@app.command()
def sign(
    location: Annotated[str, typer.Argument(metavar="LOCATION", help="A directory or an object store; not a .tar.")],
    key: Annotated[Path, typer.Option(help="The private key (PEM).")],
    as_json: Json = False,
) -> None:
    """Vouch for a bundle: check every byte of it, then add a signature beside its manifest."""
    with _reported(), _progress(f"sign {scrubbed(location)}") as bar:
        private = load_private(key)
        seen = check(location, bar(look(location).manifest.size))
        signer = add_signature(location, seen.digest, private)
    _done(as_json, seen.digest, seen.manifest, f"signed by {signer}", key=signer)


@contextmanager
def _reported() -> Iterator[None]:
    with reported(BundleError), reported(BundleRefused, status=1):
        yield


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int | None], Callable[[int], object]]]:
    """A bar for bytes, given the total or None where that is not known yet."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    shown = errors.is_terminal
    with Progress(*columns, TimeRemainingColumn(), console=errors, transient=True, disable=not shown) as progress:

        def bar(total: int | None) -> Callable[[int], object]:
            task = progress.add_task(what, total=total)
            return lambda done: progress.advance(task, done)

        yield bar


@contextmanager
def _scratch(into: Path) -> Iterator[Path]:
    """A private directory on the disk of ``into``."""
    into.absolute().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{into.name}.shards-", dir=into.absolute().parent) as path:
        yield Path(path)


@contextmanager
def _named(copies: dict[str, str]) -> Iterator[None]:
    """Errors about copies in a private directory name what they are copies of."""
    try:
        yield
    except BundleError as error:
        text = str(error)
        for copy in sorted(copies, key=len, reverse=True):  # 10 before 1
            text = text.replace(copy, copies[copy])
        raise type(error)(text) from error


def _pins(locations: list[str], digests: list[str]) -> dict[str, str]:
    """Which location holds which of the named digests; raises BundleRefused where one is held by none."""
    pinned = [Trust(digest=digest).digest for digest in digests]
    found = {location: digest_at(location) for location in locations} if pinned else {}
    unmatched = [digest for digest in pinned if digest not in found.values()]
    if unmatched:
        there = "; ".join(f"{scrubbed(location)} is {digest}" for location, digest in found.items())
        raise BundleRefused(f"no bundle here is {', '.join(unmatched)}: {there}")
    return {location: digest for location, digest in found.items() if digest in pinned}


def _trust(digest: str, keys: list[Path] | None, anything: bool) -> Trust:
    return Trust(digest, configured_keys(keys or ()), anything)


def _facts(seen: Seen) -> dict[str, Any]:
    manifest = seen.manifest
    try:
        made_here = ledger.made_here(seen.digest)
    except LedgerError as error:
        errors.print(f"preheat: {error}", markup=False, soft_wrap=True)
        made_here = False
    return {
        "digest": seen.digest,
        "created": manifest.created,
        "shard": manifest.shard,
        "made_here": made_here,
        "signed_by": sorted(parse(seen.signature)[1]) if seen.signature is not None else [],
        "identity": dict(manifest.identity),
        "models": {
            name: {
                "version": model.version,
                "digest": model.digest,
                "planned": len(model.plan),
                "proven": len(model.proof.proven()),
                "coverage": model.proof.coverage,
                "shapes": [proof.to_json() for proof in model.proof],
            }
            for name, model in manifest.models.items()
        },
        "stores": {name: vars(store) for name, store in manifest.stores.items()},
        "files": len(manifest.files),
        "bytes": manifest.size,
    }


def _summary(manifest: Manifest, facts: dict[str, Any]) -> Table:
    table = Table("", Column(overflow="fold"), show_header=False, box=None)
    for name in ("digest", "created", "shard"):
        if facts[name]:
            _add(table, name, facts[name])
    _add(table, "made here", "yes" if facts["made_here"] else "no")
    _add(table, "signed by", ", ".join(facts["signed_by"]) or "nobody")
    for name, value in sorted(manifest.identity.items()):
        _add(table, name, value)
    for name, store in manifest.stores.items():
        _add(table, f"store {name}", f"{store.entries} entries, {store.bytes:,} bytes")
    _add(table, "files", f"{facts['files']} with {facts['bytes']:,} bytes")
    return table


def _shapes(manifest: Manifest) -> Table:
    table = Table("model", Column("shape", overflow="fold"), "weight", "proven", "cold s", "first s", "steady s")
    for name, model in manifest.models.items():
        for proof in model.proof:
            times = (proof.cold_seconds, proof.first_seconds, proof.steady_seconds)
            state = "yes" if proof.proven else f"no: {proof.reason or 'new entries'}"
            cells = ("" if seconds is None else f"{seconds:.4g}" for seconds in times)
            _add(table, f"{name} {model.version}", proof.shape.text, f"{proof.weight:.3f}", state, *cells)
    return table


def _differences(found: tuple[Difference, ...]) -> Table:
    table = Table("what", *(Column(title, overflow="fold") for title in ("name", "left", "right")))
    for one in found:
        _add(table, one.what, one.name, one.left or "absent", one.right or "absent")
    return table


def _add(table: Table, *cells: str) -> None:
    """Adds a row of text as it is: a bundle may say whatever it likes, also what Rich would take for markup."""
    table.add_row(*map(Text, cells))


def _merged(joined: Merged, as_json: bool) -> None:
    bundle = joined.bundle
    if as_json:
        print_json(
            {
                "digest": bundle.digest,
                "path": str(bundle.root),
                "stores": {name: vars(report) for name, report in joined.reports.items()},
                "needs_prove": [
                    {"model": model, "shape": shape, "reason": why} for model, shape, why in joined.unproven
                ],
            }
        )
        return
    typer.echo(f"{bundle.digest}\n{bundle.root}")
    for name, report in joined.reports.items():
        typer.echo(f"{name}: {report.added} entries joined, {report.present} there twice")
        for conflict in report.conflicts:
            typer.echo(f"{name}: conflict: {conflict}")
    for model, shape, why in joined.unproven:
        typer.echo(f"{model} {shape}: {why}")


def _done(as_json: bool, digest: str, manifest: Manifest, message: str, **more: str) -> None:
    if as_json:
        print_json({"digest": digest, "files": len(manifest.files), "bytes": manifest.size, **more})
    else:
        typer.echo(f"{digest}\n{message} ({len(manifest.files)} files, {manifest.size:,} bytes)")
