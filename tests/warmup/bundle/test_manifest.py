from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from warmup.bundle.files import BundleError, BundleRefused
from warmup.bundle.manifest import Bundle, Manifest, manifest_digest, open_bundle, read_bundle

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)

SUPPRESSED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


def edited(bundle: Bundle, edit: Callable[[dict[str, Any]], object]) -> bytes:
    document = json.loads(bundle.manifest.to_bytes())
    edit(document)
    return json.dumps(document).encode()


def test_a_manifest_survives_its_bytes(bundle: Bundle) -> None:
    data = bundle.manifest.to_bytes()
    assert Manifest.from_bytes(data) == bundle.manifest
    assert Manifest.from_bytes(data).to_bytes() == data
    assert (bundle.root / "manifest.json").read_bytes() == data
    assert bundle.digest == manifest_digest(data)


def test_another_format_is_refused_with_what_is_supported(bundle: Bundle) -> None:
    with pytest.raises(BundleRefused, match=r"format 2 is not supported; this version of preheat reads format 1"):
        Manifest.from_bytes(edited(bundle, lambda d: d.update(format=2, something="new")))


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda d: d.update(extra=1), "extra: unknown key; allowed here: format, created"),
        (lambda d: d.pop("identity"), "identity: missing"),
        (lambda d: d.update(format=True), "format: expected an integer"),
        (lambda d: d.update(created="yesterday"), "created: expected UTC as in"),
        (lambda d: d.update(created="٢٠٢٦-01-31T12:00:00Z"), "created: expected UTC as in"),
        (lambda d: d.update(shard="0/2"), "shard: expected i/n"),
        (lambda d: d["identity"].update({"gpu_arch": 942}), "identity.gpu_arch: expected a text, found a number"),
        (lambda d: d["models"]["digits"].update(digest="sha256:" + "A" * 64), "models.digits.digest: expected sha256:"),
        (lambda d: d["models"]["digits"]["plan"][0].update(weight=-1), r"models.digits.plan\[0\].weight"),
        (lambda d: d["models"]["digits"]["plan"][0].update(shape="x"), r"models.digits.plan\[0\].shape: 'x' is not"),
        (lambda d: d["models"]["digits"]["plan"][0].update(shape="x=1x02:fp32"), "is not canonical"),
        (lambda d: d["models"]["digits"]["plan"].append(d["models"]["digits"]["plan"][0]), "there twice"),
        (lambda d: d["models"]["digits"]["proof"].pop(), "is in only one of plan and proof"),
        (lambda d: d["models"]["digits"]["proof"][0].update(proven="yes"), "expected true or false"),
        (lambda d: d["models"]["digits"]["proof"][0].update(added={"kernels": 2}), "proven, but its run added entries"),
        (lambda d: d["models"]["digits"]["proof"][0].update(first_seconds=-2), "first_seconds"),
        (lambda d: d["stores"]["kernels"].update(bytes=1), "stores.kernels.bytes: 1, but the files"),
        (lambda d: d["stores"].update({"../up": {"entries": 0, "bytes": 0}}), "not the name of a store"),
        (lambda d: d["files"]["stores/kernels/empty"].update(size=-1), "size: expected an integer"),
        (lambda d: d["files"]["stores/kernels/empty"].update(sha256="0" * 63), "expected 64 lowercase hex digits"),
    ],
)
def test_names_the_key_that_is_wrong(bundle: Bundle, edit: Callable[[dict[str, Any]], object], said: str) -> None:
    with pytest.raises(BundleRefused, match=said):
        Manifest.from_bytes(edited(bundle, edit))


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "../outside",
        "stores/kernels/../../../outside",
        "stores/kernels/./x",
        "stores/kernels//x",
        "stores/kernels/",
        "stores/kernels",
        "stores/other/x",
        "manifest.json",
        "stores\\kernels\\x",
        "stores/kernels/a\\b",
        "stores/kernels/" + "x" * 256,
        "stores/kernels/" + "x/" * 1024 + "y",
        "stores/kernels/empty/below",
        "stores/kernels/\n",
        "",
    ],
)
def test_paths_lead_nowhere_else(bundle: Bundle, path: str) -> None:
    with pytest.raises(BundleRefused, match=r"manifest\.json: "):
        Manifest.from_bytes(edited(bundle, lambda d: d["files"].update({path: {"sha256": "0" * 64, "size": 0}})))


@settings(suppress_health_check=SUPPRESSED, deadline=None, max_examples=100)
@given(data=st.data())
def test_any_value_anywhere_is_taken_whole_or_refused(bundle: Bundle, data: st.DataObject) -> None:
    document = json.loads(bundle.manifest.to_bytes())
    node: Any = document
    while True:
        key = data.draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
        if isinstance(node[key], (dict, list)) and node[key] and data.draw(st.booleans()):
            node = node[key]
            continue
        node[key] = data.draw(JSON)
        break
    try:
        manifest = Manifest.from_bytes(json.dumps(document).encode())
    except BundleRefused as error:
        assert str(error).startswith("manifest.json: ")
    else:
        assert Manifest.from_bytes(manifest.to_bytes()) == manifest


@settings(suppress_health_check=SUPPRESSED, deadline=None, max_examples=30)
@given(data=st.data())
def test_a_truncated_manifest_is_refused(bundle: Bundle, data: st.DataObject) -> None:
    whole = bundle.manifest.to_bytes()
    cut = data.draw(st.integers(0, len(whole) - 2))
    with pytest.raises(BundleRefused, match=r"^manifest\.json: is not JSON"):
        Manifest.from_bytes(whole[:cut])


def test_open_verifies_every_file(bundle: Bundle) -> None:
    assert open_bundle(bundle.root) == bundle


@settings(suppress_health_check=SUPPRESSED, deadline=None, max_examples=30)
@given(data=st.data())
def test_a_changed_byte_in_any_file_is_refused_with_its_name(bundle: Bundle, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(n for n, f in bundle.manifest.files.items() if f.size)))
    path = bundle.root / name
    good = path.read_bytes()
    at = data.draw(st.integers(0, len(good) - 1))
    path.write_bytes(good[:at] + bytes([good[at] ^ data.draw(st.integers(1, 255))]) + good[at + 1 :])
    try:
        with pytest.raises(BundleRefused, match=name):
            open_bundle(bundle.root)
    finally:
        path.write_bytes(good)


@pytest.mark.parametrize("name", ["stores/kernels/empty", "stores/kernels/kernels/ab.o"])
def test_longer_shorter_and_missing_files_are_refused_with_their_name(bundle: Bundle, name: str) -> None:
    path = bundle.root / name
    good = path.read_bytes()
    path.write_bytes(good + b"x")
    with pytest.raises(BundleRefused, match=f"{name}: {len(good)} bytes expected, more found"):
        open_bundle(bundle.root)
    path.unlink()
    with pytest.raises(BundleRefused, match=f"{name} is missing"):
        open_bundle(bundle.root)
    if good:
        path.write_bytes(good[:-1])
        with pytest.raises(BundleRefused, match=f"{name}: {len(good)} bytes expected, {len(good) - 1} found"):
            open_bundle(bundle.root)


@pytest.mark.parametrize("name", ["stores/kernels/more", "stores/other/x", "README", ".hidden", "manifest.json.bak"])
def test_a_file_that_the_manifest_does_not_list_is_refused(bundle: Bundle, name: str) -> None:
    (bundle.root / name).parent.mkdir(exist_ok=True)
    (bundle.root / name).write_text("x")
    with pytest.raises(BundleRefused, match=f"{name} is not in the manifest"):
        open_bundle(bundle.root)


def test_links_and_special_files_are_refused(bundle: Bundle, tmp_path: Path) -> None:
    victim = bundle.root / "stores/kernels/kernels/cd.o"
    outside = tmp_path / "outside"
    victim.rename(outside)
    victim.symlink_to(outside)
    with pytest.raises(BundleRefused, match="cd.o' is a symbolic link"):
        open_bundle(bundle.root)
    victim.unlink()
    os.mkfifo(victim)
    with pytest.raises(BundleRefused, match="cd.o' is a named pipe"):
        open_bundle(bundle.root)
    victim.unlink()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(victim))
        with pytest.raises(BundleRefused, match="cd.o' is a socket"):
            open_bundle(bundle.root)


def test_a_linked_directory_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    (bundle.root / "stores/kernels/kernels").rename(tmp_path / "moved")
    (bundle.root / "stores/kernels/kernels").symlink_to(tmp_path / "moved")
    with pytest.raises(BundleRefused, match="kernels/kernels' is a symbolic link"):
        open_bundle(bundle.root)


@pytest.mark.parametrize("put", [lambda p: p.symlink_to("/etc/passwd"), os.mkfifo, Path.mkdir])
def test_a_manifest_that_is_no_regular_file_is_refused(bundle: Bundle, put: Callable[[Path], object]) -> None:
    path = bundle.root / "manifest.json"
    path.unlink()
    put(path)
    with pytest.raises(BundleError, match=r"manifest\.json"):
        open_bundle(bundle.root)


def test_no_bundle_is_said_plainly(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"no bundle here: manifest\.json is missing"):
        read_bundle(tmp_path)
