"""Where a bundle may be: what is an archive, what is below a location, and what of a URL nobody gets to read."""

from __future__ import annotations

from pathlib import Path

import pytest

from warmup.bundle.files import BundleError
from warmup.bundle.location import locate, reaching, scrubbed


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:secret@host/b/v1.tar?X-Signature=secret", "https://host/b/v1.tar"),
        ("https://me:sec@ret@host:8000/v1", "https://host:8000/v1"),
        ("https://host?token=secret@x", "https://host"),
        ("HTTPS://secret@host/v1#secret", "HTTPS://host/v1"),
        ("s3://bucket/a@b/v1", "s3://bucket/a@b/v1"),
        ("404, message='Not Found', url='https://h/v1?sig=secret&x=1'", "404, message='Not Found', url='https://h/v1'"),
        ("/disk/what?.tar", "/disk/what?.tar"),
    ],
)
def test_no_secret_of_a_url_is_shown(text: str, shown: str) -> None:
    assert scrubbed(text) == shown


@pytest.mark.parametrize(
    ("text", "archive"),
    [
        ("memory://b/v1.tar?signature=x", True),
        ("memory://b/v1.tar", True),
        ("memory://b/v1?name=v1.tar", False),
        ("/disk/what?.tar", True),
        ("/disk/v1.tar?x", False),
    ],
)
def test_an_archive_is_known_by_its_name_without_the_query(text: str, archive: bool) -> None:
    assert locate(text).archive is archive


def test_what_is_below_a_location_keeps_the_query(tmp_path: Path) -> None:
    assert locate("memory://b/v1?token=x").at("stores", "a") == "/b/v1/stores/a?token=x"
    assert locate(str(tmp_path / "a?b")).at("c") == str(tmp_path / "a?b/c")


def test_a_compressed_archive_with_a_query_is_refused_without_it() -> None:
    with pytest.raises(BundleError, match="archives are plain .tar files") as refused:
        locate("memory://b/v1.tar.gz?token=secret")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("kind", [FileNotFoundError, OSError, RuntimeError])
def test_what_a_file_system_says_is_scrubbed(kind: type[Exception]) -> None:
    with pytest.raises(BundleError, match="https://h/v1") as told, reaching("https://h/v1"):
        raise kind("no https://me:secret@h/v1?token=secret here")
    assert "secret" not in str(told.value)
