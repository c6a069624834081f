from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import fsspec
import pytest

from warmup.bundle import publish as publishing
from warmup.bundle.files import BundleError, BundleRefused
from warmup.bundle.manifest import Bundle, open_bundle
from warmup.bundle.publish import AlreadyPublished, add_signature, publish
from warmup.bundle.pull import pull
from warmup.bundle.signature import generate, load_private
from warmup.bundle.trust import Trust, configured_keys

_numbers = itertools.count()


@pytest.fixture(params=["directory", "archive", "memory", "memory archive"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A place of every kind where nothing is yet."""
    name = f"/bundles-{os.getpid()}-{next(_numbers)}/v1"
    suffix = ".tar" if "archive" in request.param else ""
    if "memory" not in request.param:
        yield str(tmp_path / "shared" / f"v1{suffix}")
        return
    yield f"memory:/{name}{suffix}"
    memory = fsspec.filesystem("memory")
    if memory.exists(name.rsplit("/", 1)[0]):
        memory.rm(name.rsplit("/", 1)[0], recursive=True)


def pulled(location: str, tmp_path: Path, trust: Trust = Trust(anything=True)) -> Bundle:
    return pull(location, tmp_path / f"got-{next(_numbers)}", trust)


def visible(location: str) -> list[str]:
    filesystem, path = fsspec.core.url_to_fs(location)
    return filesystem.find(path.rsplit("/", 1)[0]) if filesystem.exists(path.rsplit("/", 1)[0]) else []


def test_what_is_published_is_what_is_pulled(bundle: Bundle, location: str, tmp_path: Path) -> None:
    done: list[int] = []
    assert publish(bundle, location, done.append) == bundle.digest
    assert sum(done) == bundle.manifest.size
    got = pulled(location, tmp_path)
    assert (got.digest, got.manifest) == (bundle.digest, bundle.manifest)
    assert open_bundle(got.root).digest == bundle.digest


def test_the_same_again_changes_nothing(bundle: Bundle, location: str) -> None:
    publish(bundle, location)
    before = {name: fsspec.core.url_to_fs(location)[0].cat_file(name) for name in visible(location)}
    publish(bundle, location)
    assert {name: fsspec.core.url_to_fs(location)[0].cat_file(name) for name in visible(location)} == before


def test_another_bundle_needs_another_place(
    bundle: Bundle, make: Callable[..., Bundle], location: str, tmp_path: Path
) -> None:
    other = make("other", {"kernels/ab.o": b"other"})
    publish(bundle, location)
    with pytest.raises(AlreadyPublished, match=f"{bundle.digest} already.*publish {other.digest} elsewhere"):
        publish(other, location)
    assert pulled(location, tmp_path).digest == bundle.digest


def test_a_damaged_bundle_is_not_published(bundle: Bundle, location: str, tmp_path: Path) -> None:
    (bundle.root / "stores/kernels/kernels/cd.o").write_bytes(b"evil")
    with pytest.raises(BundleRefused, match=r"cd\.o: sha256"):
        publish(bundle, location)
    with pytest.raises(BundleError):
        pulled(location, tmp_path)
    assert not any("manifest" in name or name.endswith(".tar") for name in visible(location))


def test_a_failure_on_the_way_leaves_nothing_that_a_reader_sees(bundle: Bundle, location: str, tmp_path: Path) -> None:
    def stop(_done: int) -> None:
        raise RuntimeError("stop")

    with pytest.raises(BundleError, match="RuntimeError: stop"):
        publish(bundle, location, stop)
    assert not any("manifest" in name or name.endswith(".tar") for name in visible(location))
    publish(bundle, location)
    assert pulled(location, tmp_path).digest == bundle.digest


def test_of_two_publishers_at_once_one_wins_whole(
    bundle: Bundle, make: Callable[..., Bundle], location: str, tmp_path: Path
) -> None:
    other = make("other", {"kernels/ab.o": b"other", "kernels/cd.o": b"also"})
    together = Barrier(2)

    def go(one: Bundle) -> str:
        together.wait()
        try:
            return publish(one, location)
        except AlreadyPublished:
            return ""

    with ThreadPoolExecutor(2) as pool:
        won = [digest for digest in pool.map(go, (bundle, other)) if digest]
    got = pulled(location, tmp_path)
    assert got.digest in won
    assert open_bundle(got.root).digest == got.digest


def test_an_object_store_where_somebody_else_was_first_by_a_moment(
    bundle: Bundle, make: Callable[..., Bundle], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other's manifest appears after our look and before our manifest."""
    location = f"memory://race-{os.getpid()}-{next(_numbers)}"
    other = make("other", {"kernels/ab.o": b"other", "kernels/cd.o": b"also"})
    send = publishing._send_blobs

    def send_late(*arguments: object) -> None:
        monkeypatch.setattr(publishing, "_send_blobs", send)
        send(*arguments)  # type: ignore[arg-type]
        publish(other, location)

    monkeypatch.setattr(publishing, "_send_blobs", send_late)
    with pytest.raises(AlreadyPublished, match=other.digest):
        publish(bundle, location)
    assert pulled(location, tmp_path).digest == other.digest


def test_content_that_is_there_is_not_sent_again(
    bundle: Bundle, make: Callable[..., Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = f"memory://again-{os.getpid()}-{next(_numbers)}"
    publish(bundle, root)
    memory = fsspec.filesystem("memory")
    memory.rm(f"{root}/manifest.json")
    grown = make("grown", {**_contents(bundle), "new": b"new"})
    sent: list[str] = []
    pipe = type(memory).pipe
    monkeypatch.setattr(type(memory), "pipe", lambda self, files: (sent.extend(files), pipe(self, files)))
    publish(grown, root)
    assert len(sent) == 1
    assert sent[0].endswith(grown.manifest.files["stores/kernels/new"].sha256)


def _contents(bundle: Bundle) -> dict[str, bytes]:
    return {name.removeprefix("stores/kernels/"): (bundle.root / name).read_bytes() for name in bundle.manifest.files}


@pytest.mark.parametrize("damage", ["changed", "longer", "shorter", "missing"])
def test_damage_in_an_object_store_is_refused_with_the_files_name(bundle: Bundle, tmp_path: Path, damage: str) -> None:
    for layout in ("blobs", "plain"):
        root = f"memory://damaged-{os.getpid()}-{next(_numbers)}"
        memory = fsspec.filesystem("memory")
        if layout == "blobs":
            publish(bundle, root)
        else:
            memory.put(str(bundle.root), root, recursive=True)
            assert pulled(root, tmp_path).digest == bundle.digest
        name = "stores/kernels/kernels/cd.o"
        path = f"{root}/blobs/sha256/{bundle.manifest.files[name].sha256}" if layout == "blobs" else f"{root}/{name}"
        assert memory.cat_file(path) == b"code"
        if damage == "missing":
            memory.rm(path)
        else:
            memory.pipe_file(path, {"changed": b"cide", "longer": b"codex", "shorter": b"cod"}[damage])
        with pytest.raises(BundleRefused, match=r"stores/kernels/kernels/cd\.o"):
            pulled(root, tmp_path)


def test_an_empty_file_that_is_no_longer_empty_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    root = f"memory://filled-{os.getpid()}-{next(_numbers)}"
    publish(bundle, root)
    empty = bundle.manifest.files["stores/kernels/empty"].sha256
    fsspec.filesystem("memory").pipe_file(f"{root}/blobs/sha256/{empty}", b"x")
    with pytest.raises(BundleRefused, match=r"stores/kernels/empty: 0 bytes expected, more found"):
        pulled(root, tmp_path)


def test_signatures_are_published_and_added_in_place(bundle: Bundle, location: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        generate(tmp_path / f"{name}.pem", tmp_path / f"{name}.pub")
    add_signature(str(bundle.root), bundle.digest, load_private(tmp_path / "a.pem"))
    publish(bundle, location)
    assert "signed by" in pulled(location, tmp_path, Trust(keys=configured_keys([tmp_path / "a.pub"]))).trusted
    if location.endswith(".tar"):
        with pytest.raises(BundleError, match="an archive never changes"):
            add_signature(location, bundle.digest, load_private(tmp_path / "b.pem"))
        return
    add_signature(location, bundle.digest, load_private(tmp_path / "b.pem"))
    for name in ("a", "b"):
        trust = Trust(keys=configured_keys([tmp_path / f"{name}.pub"]))
        assert f"{name}.pub" in pulled(location, tmp_path, trust).trusted
    with pytest.raises(BundleError, match="was to be signed"):
        add_signature(location, "sha256:" + "0" * 64, load_private(tmp_path / "b.pem"))


def test_others_may_read_what_is_published(bundle: Bundle, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        publish(bundle, str(tmp_path / "v1"))
        publish(bundle, str(tmp_path / "v1.tar"))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "v1").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "v1.tar").stat().st_mode) == 0o644
    assert {stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "v1").rglob("*")} == {0o755, 0o644}


def test_what_is_there_and_no_bundle_is_left_alone(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1" / "letter").write_text("dear")
    with pytest.raises(BundleError, match="v1 is there already and holds no bundle"):
        publish(bundle, str(tmp_path / "v1"))
    (tmp_path / "v1.tar").write_text("dear")
    with pytest.raises(BundleRefused, match=r"v1\.tar: not a readable tar archive"):
        publish(bundle, str(tmp_path / "v1.tar"))
    assert (tmp_path / "v1.tar").read_text() == (tmp_path / "v1" / "letter").read_text() == "dear"
