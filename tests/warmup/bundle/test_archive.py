"""Archives that no publisher of ours writes: each is refused, names what is wrong, and leaves nothing."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from warmup.bundle.files import BundleError, BundleRefused
from warmup.bundle.manifest import Bundle
from warmup.bundle.publish import publish
from warmup.bundle.pull import pull
from warmup.bundle.trust import Trust

Members = list[tuple[tarfile.TarInfo, bytes]]
KERNEL = "stores/kernels/kernels/ab.o"


@pytest.fixture
def archive(bundle: Bundle, tmp_path: Path) -> Path:
    publish(bundle, str(tmp_path / "good.tar"))
    return tmp_path / "good.tar"


def members(archive: Path) -> Members:
    with tarfile.open(archive) as tar:
        return [(member, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]


def write(path: Path, content: Members) -> str:
    with tarfile.open(path, "w") as tar:
        for member, data in content:
            tar.addfile(member, io.BytesIO(data) if member.isreg() else None)
    return str(path)


def special(name: str, kind: bytes, target: str = "") -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member, b""


def regular(name: str, data: bytes) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    return member, data


def refused(location: str, tmp_path: Path) -> str:
    outside = {p for p in tmp_path.rglob("*") if "got" not in p.parts}
    with pytest.raises(BundleRefused) as error:
        pull(location, tmp_path / "got" / "bundle", Trust())
    assert list((tmp_path / "got").glob("*")) == []
    assert {p for p in tmp_path.rglob("*") if "got" not in p.parts} == outside
    return str(error.value)


def test_the_manifest_comes_first_and_the_same_bundle_gives_the_same_bytes(
    archive: Path, bundle: Bundle, tmp_path: Path
) -> None:
    assert [member.name for member, _ in members(archive)] == ["manifest.json", *sorted(bundle.manifest.files)]
    publish(bundle, str(tmp_path / "again.tar"))
    assert (tmp_path / "again.tar").read_bytes() == archive.read_bytes()


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (tarfile.SYMTYPE, "symbolic link"),
        (tarfile.LNKTYPE, "hard link"),
        (tarfile.CHRTYPE, "character device"),
        (tarfile.BLKTYPE, "block device"),
        (tarfile.FIFOTYPE, "named pipe"),
        (tarfile.DIRTYPE, "directory"),
    ],
)
@pytest.mark.parametrize("target", ["/etc/passwd", "../../../outside", "manifest.json"])
def test_a_file_may_not_be_anything_else(
    archive: Path, bundle: Bundle, tmp_path: Path, kind: bytes, said: str, target: str
) -> None:
    content = [
        special(member.name, kind, target) if member.name == "stores/kernels/empty" else (member, data)
        for member, data in members(archive)
    ]
    assert f"'stores/kernels/empty' is a {said}" in refused(write(tmp_path / "bad.tar", content), tmp_path)


@pytest.mark.parametrize(
    "name", ["../outside", "/tmp/outside", "stores/kernels/../../outside", "./stores/kernels/empty", "stores/kernels/x"]
)
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE])
def test_a_member_that_is_not_in_the_manifest_is_refused(archive: Path, tmp_path: Path, name: str, kind: bytes) -> None:
    content = [*members(archive), special(name, kind, "/etc/passwd")]
    assert f"{name!r} is not in the manifest" in refused(write(tmp_path / "bad.tar", content), tmp_path)


def test_a_member_twice_missing_or_first_is_refused(archive: Path, tmp_path: Path) -> None:
    good = members(archive)
    assert "there twice" in refused(write(tmp_path / "twice.tar", [*good, good[-1]]), tmp_path)
    assert f"{good[-1][0].name} is missing" in refused(write(tmp_path / "missing.tar", good[:-1]), tmp_path)
    assert "begins with manifest.json, found 'stores/" in refused(write(tmp_path / "order.tar", good[1:]), tmp_path)
    assert "not in the manifest" in refused(write(tmp_path / "second.tar", [good[0], *good]), tmp_path)


@pytest.mark.parametrize("announced", [0, 2051, 2053, 1 << 40])
def test_a_member_whose_header_lies_about_its_size_is_refused(archive: Path, tmp_path: Path, announced: int) -> None:
    blob = bytearray(archive.read_bytes())
    with tarfile.open(archive) as tar:
        member = tar.getmember(KERNEL)
    member.size = announced
    header = member.tobuf(tarfile.GNU_FORMAT)
    assert len(header) == 512
    blob[member.offset : member.offset + 512] = header
    (tmp_path / "bad.tar").write_bytes(blob)
    assert f"{KERNEL}: 2052 bytes expected, {announced} announced" in refused(str(tmp_path / "bad.tar"), tmp_path)


def test_a_manifest_that_announces_more_than_is_allowed_is_not_read(tmp_path: Path) -> None:
    member = tarfile.TarInfo("manifest.json")
    member.size = 1 << 40
    (tmp_path / "bad.tar").write_bytes(member.tobuf(tarfile.GNU_FORMAT) + bytes(4096))
    assert "at most" in refused(str(tmp_path / "bad.tar"), tmp_path)


def test_a_header_block_without_end_is_not_kept_in_memory(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warmup.bundle.archive.MAX_MANIFEST", 1 << 16)
    monkeypatch.setattr("warmup.bundle.archive._TAIL", 1 << 16)
    endless = tarfile.TarInfo("././@LongLink")
    endless.type, endless.size = tarfile.GNUTYPE_LONGNAME, 64 << 20
    blob = archive.read_bytes()
    with tarfile.open(archive) as tar:
        at = tar.getmember(KERNEL).offset
    with (tmp_path / "bad.tar").open("wb") as file:
        file.write(blob[:at] + endless.tobuf(tarfile.GNU_FORMAT))
        file.truncate(at + 512 + endless.size + 512)
    assert "larger than its manifest says" in refused(str(tmp_path / "bad.tar"), tmp_path)


@pytest.mark.parametrize("data", [b"", b"x" * 511, bytes(10240), os.urandom(2048), b"\x1f\x8b" + bytes(1000)])
def test_what_is_no_archive_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "bad.tar").write_bytes(data)
    assert "bad.tar" in refused(str(tmp_path / "bad.tar"), tmp_path)


def test_sparse_members_are_refused(archive: Path, tmp_path: Path) -> None:
    content = [
        special(member.name, tarfile.GNUTYPE_SPARSE) if member.name == "stores/kernels/empty" else (member, data)
        for member, data in members(archive)
    ]
    assert "sparse file" in refused(write(tmp_path / "bad.tar", content), tmp_path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(data=st.data())
def test_a_changed_byte_changes_nothing_or_is_refused(
    archive: Path, bundle: Bundle, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    blob = bytearray(archive.read_bytes())
    blob[data.draw(st.integers(0, len(blob) - 1))] ^= data.draw(st.integers(1, 255))
    _same_or_refused(bytes(blob), bundle, tmp_path_factory.mktemp("changed"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25)
@given(data=st.data())
def test_a_truncated_archive_changes_nothing_or_is_refused(
    archive: Path, bundle: Bundle, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    blob = archive.read_bytes()
    _same_or_refused(blob[: data.draw(st.integers(0, len(blob)))], bundle, tmp_path_factory.mktemp("cut"))


def test_every_byte_of_a_content_counts_and_the_file_is_named(archive: Path, tmp_path: Path) -> None:
    with tarfile.open(archive) as tar:
        member = tar.getmember(KERNEL)
    for at in (0, 1000, member.size - 1):
        blob = bytearray(archive.read_bytes())
        blob[member.offset_data + at] ^= 1
        (tmp_path / "bad.tar").write_bytes(blob)
        assert f"{KERNEL}: sha256 " in refused(str(tmp_path / "bad.tar"), tmp_path)


def _same_or_refused(blob: bytes, bundle: Bundle, folder: Path) -> None:
    (folder / "it.tar").write_bytes(blob)
    try:
        got = pull(str(folder / "it.tar"), folder / "got", Trust())
    except BundleRefused:
        assert [p.name for p in folder.iterdir()] == ["it.tar"]
    else:
        assert got.digest == bundle.digest
        assert _content(got.root) == _content(bundle.root)


def _content(root: Path) -> dict[str, bytes]:
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}


@pytest.mark.parametrize("suffix", [".tar.gz", ".tgz", ".zip", ".TAR.XZ"])
def test_compressed_archives_are_not_offered(bundle: Bundle, tmp_path: Path, suffix: str) -> None:
    with pytest.raises(BundleError, match=r"archives are plain \.tar files"):
        publish(bundle, str(tmp_path / f"b{suffix}"))


@pytest.mark.parametrize("act", [lambda b, p: publish(b, p), lambda b, p: pull(p, Path(p).parent / "got", Trust())])
def test_a_directory_named_like_an_archive_is_said_to_be_one(
    bundle: Bundle, tmp_path: Path, act: Callable[[Bundle, str], object]
) -> None:
    (tmp_path / "v1.tar").mkdir()
    with pytest.raises(BundleError, match=r"v1\.tar is a directory"):
        act(bundle, str(tmp_path / "v1.tar"))
