"""Who says that a bundle may be used. A bundle is code: compile caches hold pickles, shared objects and GPU kernels.

    trust = Trust(digest="sha256:...")            this one and no other
    trust = Trust(keys=configured_keys())         whatever one of these keys signed
    trust = Trust()                               only what this user made on this machine
    trust = Trust(anything=True)                  ``--trust``: in so many words

``pull.pull`` asks ``trust.reason`` before a single file of the bundle is copied.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from warmup.bundle import ledger, signature
from warmup.bundle.files import BundleError, BundleRefused
from warmup.bundle.ledger import LedgerError
from warmup.bundle.manifest import is_digest
from warmup.bundle.signature import PublicKey, is_private, load_public

MADE_HERE = "made by this user on this machine"
KEYS_VARIABLE = "PREHEAT_TRUSTED_KEYS"  # files and directories of public keys, joined by ":"


class TrustRefused(BundleRefused):
    """A bundle that nobody vouches for."""


@dataclass(frozen=True)
class Trust:
    """What makes a bundle trusted here. A given ``digest`` must match whatever else holds."""

    digest: str = ""
    keys: tuple[PublicKey, ...] = ()
    anything: bool = False

    def __post_init__(self) -> None:
        if self.digest and not is_digest(self.digest):
            raise BundleError(f"digest {self.digest!r} is not sha256: and 64 lowercase hex digits")

    def reason(self, digest: str, signed: bytes | None, where: str) -> str:
        """Why the bundle with this manifest digest may be used; ``signed`` is its signature file's content, if any.

        Raises TrustRefused where nothing vouches for it, saying the ways in which something could; BundleRefused where
        the signature file is about another bundle or false in a configured key's name, whatever else holds.
        """
        if self.digest and digest != self.digest:
            raise TrustRefused(f"{where}: {self.digest} was asked for, {digest} found")
        key = signature.signer(digest, signed, self.keys) if signed is not None else None
        if self.digest:
            return "pinned digest"
        if key is not None:
            return f"signed by {key.id} ({key.name})"
        if self.anything:
            return "trusted without proof (--trust)"
        doubt = ""
        try:
            if ledger.made_here(digest):
                return MADE_HERE
        except LedgerError as error:
            doubt = f" (the list of bundles made here is not to be believed: {error})"
        raise TrustRefused(
            f"{where}: {digest} is not trusted: {self._why(signed)}{doubt}. {_WAYS.format(digest=digest)}"
        )

    def _why(self, signed: bytes | None) -> str:
        if signed is None:
            state = "it has no signature"
        elif not self.keys:
            state = "it is signed, but no key is configured here"
        else:
            state = f"none of the {len(self.keys)} configured keys signed it"
        return f"{state}, and this user did not make it on this machine"


_WAYS = (
    "A bundle is code that will run here. Either name the one you mean (--digest {digest}, if that is what its maker "
    "told you), or configure its maker's public key (--key FILE), or accept it unchecked (--trust)."
)


def configured_keys(files: Iterable[Path] = ()) -> tuple[PublicKey, ...]:
    """The public keys in ``files`` and in PREHEAT_TRUSTED_KEYS; a directory stands for its ``*.pem`` and ``*.pub``.

    Private keys in a directory are passed over: ``preheat bundle keygen`` leaves both of a pair in one. Raises
    KeyFileError on a file that holds no Ed25519 public key, BundleError on a directory without one.
    """
    named = [Path(part) for part in os.environ.get(KEYS_VARIABLE, "").split(":") if part]
    keys: dict[str, PublicKey] = {}
    for path in (*files, *named):
        found = _public_keys(path) if path.is_dir() else [path]
        if not found:
            raise BundleError(f"{path}: no public key here (*.pem, *.pub)")
        for file in found:
            key = load_public(file)
            keys.setdefault(key.id, key)
    return tuple(keys.values())


def _public_keys(folder: Path) -> list[Path]:
    """The key files of a folder that do not say in their first line that they are private."""
    files = sorted(path for path in folder.iterdir() if path.suffix in (".pem", ".pub"))
    return [path for path in files if not is_private(path)]
