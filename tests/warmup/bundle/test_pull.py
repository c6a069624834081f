from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from warmup.bundle import ledger
from warmup.bundle.files import BundleError, BundleRefused
from warmup.bundle.manifest import Bundle, open_bundle
from warmup.bundle.publish import publish
from warmup.bundle.pull import copy_stores, pull, pull_into_cache
from warmup.bundle.signature import generate, load_private, sign
from warmup.bundle.trust import Trust, TrustRefused


def content(root: Path) -> dict[str, bytes]:
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_pulls_into_a_private_directory(bundle: Bundle, tmp_path: Path) -> None:
    got = pull(str(bundle.root), tmp_path / "deep" / "got", Trust())
    assert got == open_bundle(tmp_path / "deep" / "got")
    assert (got.digest, got.trusted) == (bundle.digest, "made by this user on this machine")
    assert content(got.root) == content(bundle.root)
    assert stat.S_IMODE(got.root.stat().st_mode) == 0o700
    assert {stat.S_IMODE(p.stat().st_mode) for p in got.root.rglob("*") if p.is_file()} == {0o600}
    assert [p.name for p in got.root.parent.iterdir()] == ["got"]


def test_nothing_is_copied_of_what_is_not_trusted(bundle: Bundle, tmp_path: Path) -> None:
    ledger.path().unlink()
    (bundle.root / "stores" / "kernels" / "empty").unlink()  # not even looked at
    with pytest.raises(TrustRefused, match=f"{bundle.root}: {bundle.digest} is not trusted"):
        pull(str(bundle.root), tmp_path / "got", Trust())
    assert not (tmp_path / "got").exists()


def test_a_strangers_manifest_is_not_even_parsed(bundle: Bundle, tmp_path: Path) -> None:
    (bundle.root / "manifest.json").write_text("[" * 100_000)
    with pytest.raises(TrustRefused):
        pull(str(bundle.root), tmp_path / "got", Trust())


def test_a_changed_byte_is_refused_with_the_files_name(bundle: Bundle, tmp_path: Path) -> None:
    for name in (name for name, file in bundle.manifest.files.items() if file.size):
        path = bundle.root / name
        good = path.read_bytes()
        path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
        with pytest.raises(BundleRefused, match=f"{name}: sha256 "):
            pull(str(bundle.root), tmp_path / "into" / "got", Trust())
        assert list((tmp_path / "into").iterdir()) == []
        path.write_bytes(good)


def test_a_linked_file_or_directory_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    kernels = bundle.root / "stores" / "kernels" / "kernels"
    kernels.rename(tmp_path / "elsewhere")
    kernels.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BundleRefused, match="kernels/kernels' is a symbolic link"):
        pull(str(bundle.root), tmp_path / "got", Trust())
    kernels.unlink()
    (tmp_path / "elsewhere").rename(kernels)
    (kernels / "cd.o").unlink()
    (kernels / "cd.o").symlink_to("/dev/zero")
    with pytest.raises(BundleRefused, match="cd.o' is a symbolic link"):
        pull(str(bundle.root), tmp_path / "got", Trust())


def test_a_hard_link_outside_reaches_no_copy(bundle: Bundle, tmp_path: Path) -> None:
    os.link(bundle.root / "stores/kernels/kernels/cd.o", tmp_path / "handle")
    got = pull(str(bundle.root), tmp_path / "got", Trust())
    (tmp_path / "handle").write_bytes(b"evil")
    assert (got.root / "stores/kernels/kernels/cd.o").read_bytes() == b"code"


def test_the_root_itself_may_be_reached_through_a_link(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "current").symlink_to(bundle.root)
    assert pull(str(tmp_path / "current"), tmp_path / "got", Trust()).digest == bundle.digest


def test_the_same_bundle_is_verified_where_it_is_and_mended(bundle: Bundle, tmp_path: Path) -> None:
    got = pull(str(bundle.root), tmp_path / "got", Trust())
    before = (got.root / "manifest.json").stat().st_ino
    pull(str(bundle.root), tmp_path / "got", Trust())
    assert (got.root / "manifest.json").stat().st_ino == before
    (got.root / "stores/kernels/kernels/ab.o").write_bytes(b"half")
    assert content(pull(str(bundle.root), tmp_path / "got", Trust()).root) == content(bundle.root)


def test_what_is_there_is_never_replaced_by_something_else(
    bundle: Bundle, make: Callable[..., Bundle], tmp_path: Path
) -> None:
    other = make("other", identity={"gpu_arch": "gfx90a"})
    pull(str(other.root), tmp_path / "got", Trust())
    with pytest.raises(BundleError, match=f"got holds {other.digest}, not {bundle.digest}"):
        pull(str(bundle.root), tmp_path / "got", Trust())
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").write_text("dear")
    with pytest.raises(BundleError, match="mine is not empty and holds no bundle"):
        pull(str(bundle.root), tmp_path / "mine", Trust())
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    (tmp_path / "file").write_text("x")
    for name in ("link", "file"):
        with pytest.raises(BundleError, match=f"{name} is there already and is no directory"):
            pull(str(bundle.root), tmp_path / name, Trust())
    assert (tmp_path / "mine" / "letter").read_text() == "dear"


def test_an_empty_directory_is_taken(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "got").mkdir()
    assert pull(str(bundle.root), tmp_path / "got", Trust()).digest == bundle.digest


def test_a_signature_travels_with_the_bundle(bundle: Bundle, tmp_path: Path) -> None:
    generate(tmp_path / "k.pem", tmp_path / "k.pub")
    signed = sign(bundle.digest, load_private(tmp_path / "k.pem"))
    (bundle.root / "manifest.sig").write_bytes(signed)
    assert (pull(str(bundle.root), tmp_path / "got", Trust()).root / "manifest.sig").read_bytes() == signed


def test_a_signature_file_that_is_none_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    (bundle.root / "manifest.sig").write_bytes(b"whatever it says")
    with pytest.raises(BundleRefused, match="manifest.sig: is not JSON"):
        pull(str(bundle.root), tmp_path / "got", Trust(anything=True))
    assert not (tmp_path / "got").exists()


def test_many_pulls_at_once_make_one_copy(bundle: Bundle, tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        pulls = [pool.submit(pull_into_cache, str(bundle.root), tmp_path / "cache", Trust()) for _ in range(16)]
        got = [pull.result() for pull in pulls]
    assert {one.root for one in got} == {tmp_path / "cache" / bundle.digest.replace(":", "-")}
    assert len([one for one in (tmp_path / "cache").iterdir() if not one.name.startswith(".")]) == 1
    assert content(got[0].root) == content(bundle.root)


def test_a_pinned_bundle_in_the_cache_needs_no_location(bundle: Bundle, tmp_path: Path) -> None:
    cache, pinned = tmp_path / "cache", Trust(digest=bundle.digest)
    pull_into_cache(str(bundle.root), cache, Trust())
    again = pull_into_cache(str(tmp_path / "gone"), cache, pinned)
    assert (again.digest, again.trusted) == (bundle.digest, "pinned digest")
    (again.root / "stores/kernels/empty").write_bytes(b"x")
    with pytest.raises(BundleError, match="gone: no bundle here"):
        pull_into_cache(str(tmp_path / "gone"), cache, pinned)


def test_progress_adds_up_to_the_size(bundle: Bundle, tmp_path: Path) -> None:
    done: list[int] = []
    pull(str(bundle.root), tmp_path / "got", Trust(), done.append)
    assert sum(done) == bundle.manifest.size


def test_stores_are_copied_for_one_process(bundle: Bundle, tmp_path: Path) -> None:
    copied = copy_stores(bundle, tmp_path / "mine")
    assert content(copied) == content(bundle.stores)
    (copied / "kernels" / "new").write_text("x")
    assert open_bundle(bundle.root).digest == bundle.digest
    with pytest.raises(BundleError, match="mine is not empty"):
        copy_stores(bundle, tmp_path / "mine")


def test_stores_changed_since_are_not_copied(bundle: Bundle, tmp_path: Path) -> None:
    (bundle.root / "stores/kernels/kernels/cd.o").write_bytes(b"evil")
    with pytest.raises(BundleRefused, match=r"stores/kernels/kernels/cd\.o: sha256"):
        copy_stores(bundle, tmp_path / "mine")


def test_a_published_directory_is_pulled_by_someone_else(bundle: Bundle, tmp_path: Path) -> None:
    publish(bundle, str(tmp_path / "published"))
    shutil.rmtree(bundle.root)
    ledger.path().unlink()
    got = pull(str(tmp_path / "published"), tmp_path / "got", Trust(digest=bundle.digest))
    assert got.trusted == "pinned digest"


@pytest.mark.parametrize("location", ["", "s3::x://y", "memory://", "nosuch://x/y"])
def test_what_is_no_location_is_said(location: str, tmp_path: Path) -> None:
    with pytest.raises(BundleError):
        pull(location, tmp_path / "got", Trust())


def test_passwords_are_not_shown(tmp_path: Path) -> None:
    with pytest.raises(BundleError) as error:
        pull("nosuch://user:hunter2@host/v1", tmp_path / "got", Trust())
    assert "hunter2" not in str(error.value)
