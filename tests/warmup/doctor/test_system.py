from __future__ import annotations

import pytest

from warmup.doctor.system import driver, miopens, rocm_version


@pytest.mark.parametrize(
    ("node", "module", "release", "rocm", "version", "tweak"),
    [
        ("mi210", "6.8.5", "6.2", "6.2.0", "3.2.0", "36cac4a"),
        ("mi300x-spx", "6.12.12", "6.4", "6.4.1", "3.4.0", "ba4da4d"),
        ("mi300x-cpx", "6.14.14", "30.10", "7.0.2", "3.5.0", "c7d6f18"),
        ("mi355x", "6.14.14", "30.10", "7.2.0", "3.5.1", "9182b0d"),  # no package database: by the module's version
    ],
)
def test_versions_of_a_node(nodes, node, module, release, rocm, version, tweak):
    root = nodes / node
    found = driver(root)
    assert (found.module, found.release, rocm_version(root)) == (module, release, rocm)
    (miopen,) = miopens(root, packages=False)
    assert (miopen.version, miopen.hash) == (version, tweak)
    assert miopen.databases == root / "opt/rocm/share/miopen/db"


def test_the_kernels_own_driver_has_no_version_of_its_own(nodes):
    found = driver(nodes / "rx7900")
    assert (found.module, found.release) == ("", "")
    assert found.text == "in-tree, Linux 6.11.0-26-generic"
    assert rocm_version(nodes / "rx7900") == "" and miopens(nodes / "rx7900", packages=False) == []


@pytest.mark.parametrize(
    ("version", "release"),
    [("1:6.16.13.30300400-2341068.24.04", "30.30"), ("1:6.0.60001-1710620.22.04", "6.0"), ("1:6.10.5.60303-1", "6.3")],
)
def test_a_packages_version_ends_in_its_release(tmp_path, version, release):
    status = tmp_path / "var/lib/dpkg/status"
    status.parent.mkdir(parents=True)
    status.write_text(f"Package: amdgpu-dkms\nStatus: install ok installed\nVersion: {version}\n\nPackage: other\n")
    assert driver(tmp_path).release == release


def test_rocm_in_a_versioned_folder_the_newest_first(tmp_path):
    for number in ("6.4.1", "6.10.0"):
        path = tmp_path / f"opt/rocm-{number}/.info/version"
        path.parent.mkdir(parents=True)
        path.write_text(f"{number}-77\n")
    assert rocm_version(tmp_path) == "6.10.0"
