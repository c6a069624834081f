from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from warmup.bundle import ledger
from warmup.bundle.files import BundleError, BundleRefused
from warmup.bundle.signature import KeyFileError, generate, load_private, sign
from warmup.bundle.trust import Trust, TrustRefused, configured_keys

DIGEST, OTHER = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"


@pytest.fixture
def signed(tmp_path: Path) -> bytes:
    generate(tmp_path / "k.pem", tmp_path / "k.pub")
    return sign(DIGEST, load_private(tmp_path / "k.pem"))


def test_a_stranger_is_refused_with_the_ways_out() -> None:
    with pytest.raises(TrustRefused) as refused:
        Trust().reason(DIGEST, None, "s3://b/v1")
    for part in ("s3://b/v1", DIGEST, "has no signature", "--digest", "--key", "--trust"):
        assert part in str(refused.value)


def test_a_pinned_digest_is_enough_and_no_other_passes(signed: bytes, tmp_path: Path) -> None:
    assert Trust(digest=DIGEST).reason(DIGEST, None, "x") == "pinned digest"
    ledger.remember(OTHER)
    for more in (Trust(digest=DIGEST, anything=True), Trust(digest=DIGEST, keys=configured_keys([tmp_path / "k.pub"]))):
        with pytest.raises(TrustRefused, match=f"{DIGEST} was asked for, {OTHER} found"):
            more.reason(OTHER, None, "x")


@pytest.mark.parametrize("digest", ["a" * 64, "sha256:" + "A" * 64, "sha256:abc", "md5:" + "a" * 32])
def test_a_pin_that_is_no_digest_is_an_error(digest: str) -> None:
    with pytest.raises(BundleError, match="is not sha256: and 64 lowercase hex digits"):
        Trust(digest=digest)


def test_a_configured_key_vouches_for_what_it_signed(signed: bytes, tmp_path: Path) -> None:
    keys = configured_keys([tmp_path / "k.pub"])
    assert Trust(keys=keys).reason(DIGEST, signed, "x") == f"signed by {keys[0].id} ({tmp_path / 'k.pub'})"
    with pytest.raises(TrustRefused, match="no key is configured here"):
        Trust().reason(DIGEST, signed, "x")
    with pytest.raises(TrustRefused, match="has no signature"):
        Trust(keys=keys).reason(DIGEST, None, "x")


def test_another_key_does_not(signed: bytes, tmp_path: Path) -> None:
    generate(tmp_path / "other.pem", tmp_path / "other.pub")
    with pytest.raises(TrustRefused, match="none of the 1 configured keys signed it"):
        Trust(keys=configured_keys([tmp_path / "other.pub"])).reason(DIGEST, signed, "x")


@pytest.mark.parametrize("trust", [Trust(), Trust(anything=True), Trust(digest=OTHER)])
def test_a_signature_about_another_bundle_is_refused_whatever_else_holds(signed: bytes, trust: Trust) -> None:
    ledger.remember(OTHER)
    assert trust.reason(OTHER, None, "x")
    with pytest.raises(BundleRefused, match=f"signs {DIGEST}, but the bundle is {OTHER}"):
        trust.reason(OTHER, signed, "x")


def test_a_false_signature_is_refused_even_where_the_digest_is_pinned(signed: bytes, tmp_path: Path) -> None:
    keys = configured_keys([tmp_path / "k.pub"])
    parsed = json.loads(signed)
    parsed["signatures"][0]["signature"] = base64.b64encode(bytes(64)).decode()
    with pytest.raises(BundleRefused, match="is false"):
        Trust(digest=DIGEST, keys=keys).reason(DIGEST, json.dumps(parsed).encode(), "x")


def test_a_false_signature_is_refused_even_where_anything_goes(signed: bytes, tmp_path: Path) -> None:
    keys = configured_keys([tmp_path / "k.pub"])
    with pytest.raises(BundleRefused, match="signs"):
        Trust(keys=keys, anything=True).reason(OTHER, signed, "x")


def test_made_here_and_trust_in_so_many_words() -> None:
    assert "without proof" in Trust(anything=True).reason(DIGEST, None, "x")
    ledger.remember(DIGEST)
    assert "this user" in Trust().reason(DIGEST, None, "x")


def test_a_ledger_that_others_wrote_to_vouches_for_nothing() -> None:
    ledger.remember(DIGEST)
    ledger.path().chmod(0o666)
    with pytest.raises(TrustRefused, match="made here is not to be believed"):
        Trust().reason(DIGEST, None, "x")


def test_keys_come_from_files_folders_and_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").mkdir()
    a = generate(tmp_path / "a.pem", tmp_path / "a.pub")
    b = generate(tmp_path / "b.pem", tmp_path / "folder" / "b.pub")
    monkeypatch.setenv("PREHEAT_TRUSTED_KEYS", f"{tmp_path / 'folder'}:{tmp_path / 'a.pub'}")
    assert {key.id for key in configured_keys()} == {a.id, b.id}
    assert len(configured_keys([tmp_path / "a.pub"])) == 2
    with pytest.raises(BundleError, match="no public key here"):
        configured_keys([tmp_path / "empty"])
    assert {key.id for key in configured_keys([tmp_path])} == {a.id, b.id}  # the environment's b, and a beside secrets
    with pytest.raises(KeyFileError, match="b.pem: not a public key"):
        configured_keys([tmp_path / "b.pem"])
    with pytest.raises(KeyFileError, match="none"):
        configured_keys([tmp_path / "none"])
