"""Processes that die in the middle, and disks that are full: what is there afterwards is whole or absent."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from warmup.bundle.files import BundleError
from warmup.bundle.manifest import Bundle, open_bundle
from warmup.bundle.publish import publish
from warmup.bundle.pull import pull, pull_into_cache
from warmup.bundle.trust import Trust

# Says so when some bytes are done, and goes on when told to: a child stands still exactly where the test wants it.
_CHILD = """
import sys
from pathlib import Path
from warmup.bundle.files import BundleError
from warmup.bundle.manifest import read_bundle
from warmup.bundle.publish import publish
from warmup.bundle.pull import pull
from warmup.bundle.trust import Trust

def advance(done):
    print("done", flush=True)
    sys.stdin.readline()

if len(sys.argv) > 4:
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[4]), resource.RLIM_INFINITY))
try:
    if sys.argv[1] == "pull":
        pull(sys.argv[2], Path(sys.argv[3]), Trust(anything=True), advance)
    else:
        publish(read_bundle(Path(sys.argv[2])), sys.argv[3], advance)
except BundleError as error:
    print(error, flush=True)
    sys.exit(1)
print("end", flush=True)
"""


@contextmanager
def child(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", _CHILD, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def files_done(process: subprocess.Popen[str], count: int) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    for number in range(count):
        assert process.stdout.readline() == "done\n"
        if number < count - 1:
            process.stdin.write("\n")
            process.stdin.flush()


@pytest.mark.parametrize("after", [1, 3])
@pytest.mark.parametrize("suffix", ["", ".tar"])
def test_a_killed_publisher_publishes_nothing(bundle: Bundle, tmp_path: Path, suffix: str, after: int) -> None:
    target = tmp_path / "shared" / f"v1{suffix}"
    with child("publish", bundle.root, target) as process:
        files_done(process, after)
        process.kill()
        process.wait()
    assert not target.exists()
    assert list(target.parent.glob(f".v1{suffix}.partial-*"))
    publish(bundle, str(target))
    assert [p.name for p in target.parent.iterdir()] == [target.name]
    assert pull(str(target), tmp_path / "got", Trust()).digest == bundle.digest


@pytest.mark.parametrize("after", [1, 4])
def test_a_killed_pull_leaves_nothing_that_counts(bundle: Bundle, tmp_path: Path, after: int) -> None:
    target = tmp_path / "cache" / "v1"
    with child("pull", bundle.root, target) as process:
        files_done(process, after)
        process.kill()
        process.wait()
    assert not target.exists()
    assert list(target.parent.glob(".v1.partial-*"))
    assert open_bundle(pull(str(bundle.root), target, Trust()).root).digest == bundle.digest
    assert [p.name for p in target.parent.iterdir()] == ["v1"]


def test_a_second_pull_waits_for_the_first_and_takes_its_copy(bundle: Bundle, tmp_path: Path) -> None:
    target = tmp_path / "cache" / bundle.digest.replace(":", "-")
    with child("pull", bundle.root, target) as first:
        files_done(first, 1)  # it holds the lock
        with child("pull", bundle.root, target) as second:
            assert first.communicate("\n" * 10)[0].splitlines()[-1] == "end"
            assert second.communicate("\n" * 10)[0].splitlines()[-1] == "end"
    assert pull_into_cache(str(tmp_path / "gone"), target.parent, Trust(digest=bundle.digest)).root == target


@pytest.mark.parametrize("act", ["pull", "publish", "publish archive"])
def test_no_room_is_said_and_nothing_is_left(bundle: Bundle, tmp_path: Path, act: str) -> None:
    """A limit on the size of files stands in for a full disk: the write in the middle of a file fails."""
    target = tmp_path / "shared" / ("v1.tar" if "archive" in act else "v1")
    limit = 1000  # bytes; under the size of the largest file
    with child(act.split()[0], bundle.root, target, limit) as process:
        said, _ = process.communicate("\n" * 10)
    assert process.returncode == 1
    assert str(target.parent) in said
    assert "free some space and try again" in said
    assert list(target.parent.iterdir()) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True)
    if mount.returncode:
        pytest.skip("mounting a small file system is not allowed here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_said_and_nothing_is_left(bundle: Bundle, make, tmp_path: Path, small_disk: Path) -> None:
    large = make("large", {f"kernels/{n}.o": bytes([n]) * 16_000 for n in range(8)})
    for act in (
        lambda: publish(large, str(small_disk / "v1")),
        lambda: publish(large, str(small_disk / "v1.tar")),
        lambda: pull(str(large.root), small_disk / "got", Trust()),
    ):
        with pytest.raises(BundleError, match="No space left on device; free some space and try again"):
            act()
        assert list(small_disk.iterdir()) == []
    assert pull(str(bundle.root), small_disk / "got", Trust()).digest == bundle.digest
