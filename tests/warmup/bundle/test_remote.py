"""The same over the network: an S3 server and a web server on the loopback interface."""

from __future__ import annotations

import functools
import http.server
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from warmup.bundle.files import BundleError, BundleRefused
from warmup.bundle.manifest import Bundle, open_bundle
from warmup.bundle.publish import AlreadyPublished, publish
from warmup.bundle.pull import pull
from warmup.bundle.trust import Trust

BUCKET = "bundles"
LARGE = bytes(range(256)) * (20 << 12)  # 20 MiB: sent in parts


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The URL of an S3 server that ends with the module."""
    server = pytest.importorskip("moto.server", reason="needs moto[server]")
    pytest.importorskip("s3fs", reason="needs s3fs")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


@pytest.fixture
def bucket(s3: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an empty bucket."""
    import s3fs

    for name, value in {
        "AWS_ENDPOINT_URL": s3,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    files = s3fs.S3FileSystem()
    files.mkdir(BUCKET)
    yield f"s3://{BUCKET}"
    files.rm(BUCKET, recursive=True)


@pytest.mark.parametrize("suffix", ["", ".tar"])
def test_s3_there_and_back(make: Callable[..., Bundle], bucket: str, tmp_path: Path, suffix: str) -> None:
    made = make(files={"kernels/small.o": b"code", "empty": b"", "kernels/large.o": LARGE})
    location = f"{bucket}/deep/v1{suffix}"
    publish(made, location)
    publish(made, location)
    got = pull(location, tmp_path / "got", Trust(digest=made.digest))
    assert open_bundle(got.root).digest == made.digest
    other = make("other", {"kernels/small.o": b"other"})
    with pytest.raises(AlreadyPublished, match=made.digest):
        publish(other, location)


def test_s3_refuses_a_second_manifest_by_itself(
    bundle: Bundle, make: Callable[..., Bundle], bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where both publishers saw nothing, the store's conditional write decides."""
    from warmup.bundle import publish as publishing

    other = make("other", {"kernels/small.o": b"other"})
    send = publishing._send_blobs

    def send_late(*arguments: object) -> None:
        monkeypatch.setattr(publishing, "_send_blobs", send)
        send(*arguments)  # type: ignore[arg-type]
        publish(other, f"{bucket}/v1")

    monkeypatch.setattr(publishing, "_send_blobs", send_late)
    with pytest.raises(AlreadyPublished, match=other.digest):
        publish(bundle, f"{bucket}/v1")


@pytest.mark.parametrize("suffix", ["", ".tar"])
def test_s3_shows_nothing_of_what_failed(make: Callable[..., Bundle], bucket: str, tmp_path: Path, suffix: str) -> None:
    made = make(files={"kernels/a.o": b"code", "kernels/large.o": LARGE})
    path = made.root / "stores/kernels/kernels/large.o"
    path.write_bytes(LARGE[:-1] + b"x")
    with pytest.raises(BundleRefused, match=r"large\.o: sha256"):
        publish(made, f"{bucket}/v1{suffix}")
    with pytest.raises(BundleError):
        pull(f"{bucket}/v1{suffix}", tmp_path / "got", Trust())
    path.write_bytes(LARGE)
    publish(made, f"{bucket}/v1{suffix}")
    assert pull(f"{bucket}/v1{suffix}", tmp_path / "got", Trust()).digest == made.digest


def test_s3_damage_is_refused_with_the_files_name(make: Callable[..., Bundle], bucket: str, tmp_path: Path) -> None:
    import s3fs

    made = make(files={"kernels/a.o": b"code", "kernels/large.o": LARGE})
    publish(made, f"{bucket}/v1")
    for name, content in (("a.o", b"cide"), ("large.o", LARGE[:-1] + b"x")):
        blob = f"{BUCKET}/v1/blobs/sha256/{made.manifest.files[f'stores/kernels/kernels/{name}'].sha256}"
        good = s3fs.S3FileSystem().cat_file(blob)
        s3fs.S3FileSystem().pipe_file(blob, content)
        with pytest.raises(BundleRefused, match=f"stores/kernels/kernels/{name}: sha256"):
            pull(f"{bucket}/v1", tmp_path / "got", Trust())
        s3fs.S3FileSystem().pipe_file(blob, good)


def test_s3_says_what_is_missing(bucket: str, tmp_path: Path) -> None:
    for location in (f"{bucket}/none", "s3://nosuchbucket/v1", f"{bucket}/none.tar"):
        with pytest.raises(BundleError, match=location.removeprefix("s3://")):
            pull(location, tmp_path / "got", Trust())


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """A web server that shows ``tmp_path/web`` and, as the plainest ones, knows nothing of ranges."""
    pytest.importorskip("aiohttp", reason="needs aiohttp")
    (tmp_path / "web").mkdir()
    handler = functools.partial(_Quiet, directory=str(tmp_path / "web"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("suffix", ["", ".tar"])
def test_a_web_server_can_show_a_published_bundle(
    make: Callable[..., Bundle], web: str, tmp_path: Path, suffix: str
) -> None:
    made = make(files={"kernels/small.o": b"code", "empty": b"", "kernels/large.o": LARGE})
    publish(made, str(tmp_path / f"web/v1{suffix}"))
    got = pull(f"{web}/v1{suffix}", tmp_path / "got", Trust(digest=made.digest))
    assert open_bundle(got.root).digest == made.digest
    with pytest.raises(BundleError, match="none"):
        pull(f"{web}/none{suffix}", tmp_path / "none", Trust())
