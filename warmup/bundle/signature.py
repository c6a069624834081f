"""Ed25519 keys and signatures of bundles (RFC 8032), in PEM files that OpenSSL reads too.

A signature file, ``manifest.sig``, is JSON: the digest of the manifest, and a list of signatures, each with the id of
its key. What is signed is not the bare digest but ``SIGNED`` and the digest, so that no signature made for another
purpose counts here.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from warmup.bundle import document
from warmup.bundle.document import DocumentError
from warmup.bundle.files import SIGNATURE, BundleError, BundleRefused, created, sync

FORMAT = 1
SIGNED = "preheat bundle 1\n"  # before the digest and a line feed
MAX_SIGNATURE = 64 << 10  # bytes of the signature file
MAX_KEY = 64 << 10  # bytes of a key file


class KeyFileError(BundleError):
    """A file that is not the key that was asked for."""


@dataclass(frozen=True)
class PublicKey:
    """A key that may vouch for bundles; ``name`` is where it was configured, ``id`` "ed25519:..." of its raw bytes."""

    name: str
    id: str
    key: Ed25519PublicKey


def key_id(key: Ed25519PublicKey) -> str:
    """ "ed25519:" and the first 32 hex digits of the SHA-256 of the raw 32-byte key."""
    raw = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return f"ed25519:{hashlib.sha256(raw).hexdigest()[:32]}"


def generate(private: Path, public: Path) -> PublicKey:
    """Makes a key pair: PKCS #8 PEM, readable by this user alone, and the public key beside it.

    Raises BundleError where a file is there already: a key is never overwritten. A full disk leaves neither of them.
    """
    key = Ed25519PrivateKey.generate()
    for path in (private, public):
        if path.exists() or path.is_symlink():
            raise BundleError(f"{path} is there already; a key is never overwritten")
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    shown = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    made: list[Path] = []
    try:
        for path, text, mode in ((private, secret, 0o600), (public, shown, 0o644)):
            with created(path, mode) as file:
                made.append(path)
                file.write(text)
            sync(path)
    except BaseException as error:
        for path in made:
            path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise BundleError(f"{error.filename or made[-1]}: {error.strerror}") from error
        raise
    return PublicKey(str(public), key_id(key.public_key()), key.public_key())


def load_public(path: Path) -> PublicKey:
    """Reads a public key in PEM; raises KeyFileError where the file holds anything else."""
    try:
        key = serialization.load_pem_public_key(_read(path))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise KeyFileError(f"{path}: not a public key in PEM (-----BEGIN PUBLIC KEY-----)") from error
    if not isinstance(key, Ed25519PublicKey):
        raise KeyFileError(f"{path}: not an Ed25519 key; make one with: preheat bundle keygen")
    return PublicKey(str(path), key_id(key), key)


def load_private(path: Path) -> Ed25519PrivateKey:
    """Reads a private key in PEM; raises KeyFileError where the file holds anything else."""
    try:
        key = serialization.load_pem_private_key(_read(path), password=None)
    except TypeError as error:
        raise KeyFileError(f"{path}: the key is encrypted; decrypt it first") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise KeyFileError(f"{path}: not a private key in PEM (-----BEGIN PRIVATE KEY-----)") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyFileError(f"{path}: not an Ed25519 key; make one with: preheat bundle keygen")
    return key


def is_private(path: Path) -> bool:
    """Whether a file says that it holds a private key, encrypted or not (RFC 7468, sections 10 and 11)."""
    return re.search(rb"^-----BEGIN [A-Z ]*PRIVATE KEY-----", _read(path), re.MULTILINE) is not None


def sign(digest: str, key: Ed25519PrivateKey, existing: bytes | None = None) -> bytes:
    """The content of a signature file with this key's signature, and those of ``existing`` by other keys."""
    signatures = {}
    if existing is not None:
        signed, signatures = parse(existing)
        if signed != digest:
            raise BundleRefused(f"{SIGNATURE}: signs {signed}, not {digest}; remove it to sign anew")
    signatures[key_id(key.public_key())] = key.sign(_message(digest))
    return document.dump(
        {
            "format": FORMAT,
            "digest": digest,
            "signatures": [
                {"key": name, "signature": base64.b64encode(value).decode()}
                for name, value in sorted(signatures.items())
            ],
        }
    )


def parse(data: bytes) -> tuple[str, dict[str, bytes]]:
    """The digest that a signature file is about, and its signatures by key id; raises BundleRefused if malformed."""
    try:
        top = document.keys(document.parse(data, MAX_SIGNATURE), "", ("format", "digest", "signatures"))
        version = document.count(top["format"], "format")
        if version != FORMAT:
            raise DocumentError(f"format {version} is not supported; this version of preheat reads format {FORMAT}")
        pairs = document.items(top["signatures"], "signatures", _signature)
        return document.text(top["digest"], "digest"), dict(pairs)
    except DocumentError as error:
        raise BundleRefused(f"{SIGNATURE}: {error}") from error


def signer(digest: str, data: bytes, keys: tuple[PublicKey, ...]) -> PublicKey | None:
    """The configured key that signed the bundle, or None where none of them signed it.

    Raises BundleRefused where the file is about another bundle, or holds a false signature in a configured key's name.
    """
    signed, signatures = parse(data)
    if signed != digest:
        raise BundleRefused(f"{SIGNATURE}: signs {signed}, but the bundle is {digest}")
    for key in keys:
        if key.id in signatures:
            try:
                key.key.verify(signatures[key.id], _message(digest))
            except InvalidSignature as error:
                raise BundleRefused(f"{SIGNATURE}: the signature by {key.id} ({key.name}) is false") from error
            return key
    return None


def _signature(value: object, where: str) -> tuple[str, bytes]:
    found = document.keys(value, where, ("key", "signature"))
    try:
        raw = base64.b64decode(document.text(found["signature"], f"{where}.signature"), validate=True)
    except (binascii.Error, ValueError) as error:
        raise DocumentError(f"{where}.signature: not base64") from error
    return document.text(found["key"], f"{where}.key"), raw


def _message(digest: str) -> bytes:
    return f"{SIGNED}{digest}\n".encode()


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_KEY)
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror}") from error
