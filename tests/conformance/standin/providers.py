"""Adds ONNX Runtime with one of AMD's execution providers to what ``build.py`` makes.

    python providers.py CACHE ENVIRONMENT rocm|migraphx

The wheel comes from the package index that pip is configured with, MIGraphX itself from Debian's unstable suite. Both
are unpacked in CACHE (rocm: 560 MB, migraphx: 500 MB) and installed nowhere; ENVIRONMENT gets the packages of the
Python that runs this file, with that ONNX Runtime in the place of its own. Prints the path of its python. Exit status
3, with one line on standard error, says why it cannot be had here.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from build import HERE, UNAVAILABLE, Unavailable, build, fetch, library_folder, make_environment, private_apt, unpack

WHEELS = {"rocm": "onnxruntime-rocm==1.22.2.post3", "migraphx": "onnxruntime-migraphx==1.27.1"}
MIGRAPHX = ["libmigraphx-c3", "migraphx-tools", "libprotobuf32t64"]


def main() -> int:
    cache, environment, provider = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), sys.argv[3]
    cache.mkdir(parents=True, exist_ok=True)
    try:
        with (cache / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            root = fetch(cache)
            wheel = fetch_wheel(cache, WHEELS[provider])
            folders = fetch_migraphx(cache) if provider == "migraphx" else []
            capi = wheel / "onnxruntime" / "capi"
            libraries = [library_folder(root) / "libMIOpen.so.1", capi / f"libonnxruntime_providers_{provider}.so"]
            libraries += [path for folder in folders for path in sorted(folder.glob("libmigraphx_*.so.*.0"))]
            sources = [HERE / "device.cpp", HERE / "libraries.cpp"]
            device = build(cache / f"device-{provider}", root, libraries, sources)
    except Unavailable as reason:
        print(reason, file=sys.stderr)
        return UNAVAILABLE
    packages = join_packages(environment / "packages", wheel)
    print(make_environment(environment, library_folder(root), [device, *folders], packages))
    return 0


def fetch_wheel(cache: Path, requirement: str) -> Path:
    """The unpacked wheel; what it requires is in the environment of this Python already."""
    target = cache / "wheels" / requirement
    if target.exists():
        return target
    part = target.with_name(f"{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    command += ["--no-deps", "--no-compile", "--only-binary", ":all:", "--target", str(part), requirement]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(f"{requirement}: {(done.stderr.strip().splitlines() or ['pip failed'])[-1]}")
    part.rename(target)
    return target


def fetch_migraphx(cache: Path) -> list[Path]:
    """The folders of MIGraphX's libraries."""
    root = cache / "migraphx"
    folder = library_folder(root)
    inner = folder / "migraphx" / "lib"
    if not (cache / "packages-migraphx").exists():
        unpack(private_apt(cache), MIGRAPHX, root, cache / "packages-migraphx")
        for path in inner.glob("libmigraphx_*.so.*.0"):  # it loads its targets by names without a version
            (inner / f"{path.name.split('.')[0]}.so").symlink_to(path.name)
    return [folder, inner]


def join_packages(folder: Path, wheel: Path) -> Path:
    """A folder of links: everything that this Python has but its ONNX Runtime, and the wheel."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith("onnxruntime"):
            (folder / path.name).symlink_to(path)
    for path in wheel.iterdir():
        if not (folder / path.name).exists():
            (folder / path.name).symlink_to(path)
    return folder


if __name__ == "__main__":
    sys.exit(main())
