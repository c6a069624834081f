from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from warmup.bundle import ledger
from warmup.bundle.files import BundleError, BundleRefused
from warmup.bundle.manifest import Bundle, open_bundle
from warmup.bundle.signature import generate, load_private, sign
from warmup.proof import Proof


def test_counts_and_digests_what_is_there(bundle: Bundle) -> None:
    summary = bundle.manifest.stores["kernels"]
    assert (summary.entries, summary.bytes) == (4, bundle.manifest.size)
    assert set(bundle.manifest.files) == {
        "stores/kernels/kernels/ab.o",
        "stores/kernels/kernels/cd.o",
        "stores/kernels/empty",
        "stores/kernels/deep/er/ü.db",
    }
    assert open_bundle(bundle.root).digest == bundle.digest


def test_is_remembered_as_made_here(bundle: Bundle) -> None:
    assert ledger.made_here(bundle.digest)
    assert "this user" in bundle.trusted


def test_building_again_replaces_the_manifest_and_drops_the_signature(
    make: Callable[..., Bundle], tmp_path: Path
) -> None:
    first = make()
    generate(tmp_path / "k.pem", tmp_path / "k.pub")
    (first.root / "manifest.sig").write_bytes(sign(first.digest, load_private(tmp_path / "k.pem")))
    second = make(identity={"gpu_arch": "gfx90a"})
    assert second.root == first.root
    assert open_bundle(second.root).manifest.identity == {"gpu_arch": "gfx90a"}
    assert not (second.root / "manifest.sig").exists()


def test_what_a_killed_build_left_is_removed(make: Callable[..., Bundle]) -> None:
    first = make()
    (first.root / ".manifest.json.123.tmp").write_text("half")
    assert open_bundle(make().root).digest


@pytest.mark.parametrize("stray", ["journal.jsonl", "stores/x", "stores/unknown/x"])
def test_files_that_belong_to_no_store_are_an_error(bundle: Bundle, make: Callable[..., Bundle], stray: str) -> None:
    (bundle.root / stray).parent.mkdir(exist_ok=True)
    (bundle.root / stray).write_text("x")
    with pytest.raises(BundleError, match=f"{stray} is no part of a bundle; allowed: manifest.json and files under"):
        make()


def test_links_are_refused_and_the_old_manifest_stays(bundle: Bundle, make: Callable[..., Bundle]) -> None:
    before = (bundle.root / "manifest.json").read_bytes()
    (bundle.root / "stores/kernels/link").symlink_to("empty")
    with pytest.raises(BundleRefused, match="link' is a symbolic link"):
        make()
    assert (bundle.root / "manifest.json").read_bytes() == before


def test_a_name_that_is_not_utf8_is_refused(bundle: Bundle, make: Callable[..., Bundle]) -> None:
    Path(os.fsdecode(os.fsencode(bundle.root / "stores/kernels/") + b"/\xff")).write_text("x")
    with pytest.raises(BundleRefused, match="is not UTF-8"):
        make()


def test_stores_are_tidied_first(make: Callable[..., Bundle], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warmup.stores.store.Store.tidy", lambda self, root: (root / "kernels/cd.o").unlink())
    assert "stores/kernels/kernels/cd.o" not in make().manifest.files


def test_a_reason_may_quote_any_error(make: Callable[..., Bundle], model) -> None:
    failed = model(proven=False)
    shapes = tuple(replace(proof, reason="RuntimeError:\n\tbad \ud800" + "x" * 9000) for proof in failed.proof)
    made = make(models={"digits": replace(failed, proof=Proof("digits", shapes))})
    for proof in open_bundle(made.root).manifest.models["digits"].proof:
        assert proof.reason.startswith("RuntimeError:  bad  xxx")
