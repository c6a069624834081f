from __future__ import annotations

import errno
import json
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from warmup.bundle.files import BundleError, BundleRefused
from warmup.bundle.signature import (
    KeyFileError,
    PublicKey,
    generate,
    key_id,
    load_private,
    load_public,
    parse,
    sign,
    signer,
)

DIGEST, OTHER = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"


def public(key: Ed25519PrivateKey) -> PublicKey:
    return PublicKey("test", key_id(key.public_key()), key.public_key())


@pytest.fixture
def key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.generate()


def test_a_signature_names_its_signer(key: Ed25519PrivateKey) -> None:
    assert signer(DIGEST, sign(DIGEST, key), (public(Ed25519PrivateKey.generate()), public(key))) == public(key)


def test_another_key_did_not_sign(key: Ed25519PrivateKey) -> None:
    assert signer(DIGEST, sign(DIGEST, key), (public(Ed25519PrivateKey.generate()),)) is None


def test_a_signature_of_another_bundle_is_refused(key: Ed25519PrivateKey) -> None:
    with pytest.raises(BundleRefused, match=f"signs {OTHER}, but the bundle is {DIGEST}"):
        signer(DIGEST, sign(OTHER, key), (public(key),))
    relabelled = sign(OTHER, key).replace(OTHER.encode(), DIGEST.encode())
    with pytest.raises(BundleRefused, match="is false"):
        signer(DIGEST, relabelled, (public(key),))


def test_a_false_signature_in_a_known_name_is_refused(key: Ed25519PrivateKey) -> None:
    document = json.loads(sign(DIGEST, Ed25519PrivateKey.generate()))
    document["signatures"][0]["key"] = public(key).id
    with pytest.raises(BundleRefused, match=rf"the signature by {public(key).id} \(test\) is false"):
        signer(DIGEST, json.dumps(document).encode(), (public(key),))


def test_the_bare_digest_is_not_what_is_signed(key: Ed25519PrivateKey) -> None:
    document = json.loads(sign(DIGEST, key))
    document["signatures"][0]["signature"] = __import__("base64").b64encode(key.sign(DIGEST.encode())).decode()
    with pytest.raises(BundleRefused, match="is false"):
        signer(DIGEST, json.dumps(document).encode(), (public(key),))


def test_several_keys_may_sign_and_signing_twice_changes_nothing(key: Ed25519PrivateKey) -> None:
    second = Ed25519PrivateKey.generate()
    both = sign(DIGEST, second, sign(DIGEST, key))
    assert parse(both)[1].keys() == {public(key).id, public(second).id}
    assert sign(DIGEST, key, both) == both
    with pytest.raises(BundleRefused, match=f"signs {DIGEST}, not {OTHER}"):
        sign(OTHER, key, both)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(format=2),
        lambda d: d.update(digest=None),
        lambda d: d.update(signatures={}),
        lambda d: d["signatures"][0].update(signature="!"),
        lambda d: d["signatures"][0].pop("key"),
        lambda d: d.update(trusted=True),
    ],
)
def test_malformed_signature_files_are_refused(key: Ed25519PrivateKey, change) -> None:
    document = json.loads(sign(DIGEST, key))
    change(document)
    with pytest.raises(BundleRefused, match=r"^manifest\.sig: "):
        parse(json.dumps(document).encode())


@pytest.mark.parametrize("full", ["k.pem", "k.pub"])
def test_a_full_disk_leaves_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str) -> None:
    def sync(path: Path) -> None:
        if path.name == full:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr("warmup.bundle.signature.sync", sync)
        with pytest.raises(BundleError, match=rf"{full}: No space left on device"):
            generate(tmp_path / "k.pem", tmp_path / "k.pub")
    assert list(tmp_path.iterdir()) == []
    generate(tmp_path / "k.pem", tmp_path / "k.pub")


def test_generated_keys_load_and_are_kept_private(tmp_path: Path) -> None:
    made = generate(tmp_path / "k.pem", tmp_path / "k.pub")
    assert stat.S_IMODE((tmp_path / "k.pem").stat().st_mode) == 0o600
    assert load_public(tmp_path / "k.pub").id == made.id == key_id(load_private(tmp_path / "k.pem").public_key())


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "k.pub").write_text("mine")
    with pytest.raises(BundleError, match="k.pub is there already"):
        generate(tmp_path / "k.pem", tmp_path / "k.pub")
    assert not (tmp_path / "k.pem").exists()
    assert (tmp_path / "k.pub").read_text() == "mine"


def test_files_that_are_no_such_key_are_named(tmp_path: Path) -> None:
    generate(tmp_path / "k.pem", tmp_path / "k.pub")
    with pytest.raises(KeyFileError, match="k.pem: not a public key"):
        load_public(tmp_path / "k.pem")
    with pytest.raises(KeyFileError, match="k.pub: not a private key"):
        load_private(tmp_path / "k.pub")
    with pytest.raises(KeyFileError, match="none: No such file"):
        load_public(tmp_path / "none")
    other = rsa.generate_private_key(65537, 2048)
    (tmp_path / "rsa.pem").write_bytes(
        other.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    with pytest.raises(KeyFileError, match="not an Ed25519 key"):
        load_private(tmp_path / "rsa.pem")
    (tmp_path / "locked.pem").write_bytes(
        Ed25519PrivateKey.generate().private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(KeyFileError, match="the key is encrypted"):
        load_private(tmp_path / "locked.pem")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")
def test_openssl_reads_the_keys_and_agrees_on_the_signature(tmp_path: Path) -> None:
    generate(tmp_path / "k.pem", tmp_path / "k.pub")
    _, signatures = parse(sign(DIGEST, load_private(tmp_path / "k.pem")))
    (tmp_path / "raw.sig").write_bytes(*signatures.values())
    (tmp_path / "message").write_text(f"preheat bundle 1\n{DIGEST}\n")
    command = "openssl pkeyutl -verify -pubin -inkey k.pub -rawin -in message -sigfile raw.sig"
    assert subprocess.run(command.split(), cwd=tmp_path, capture_output=True).returncode == 0
    (tmp_path / "message").write_text(f"preheat bundle 1\n{OTHER}\n")
    assert subprocess.run(command.split(), cwd=tmp_path, capture_output=True).returncode == 1
