"""Fetches Debian's libMIOpen, builds the stand-in device, and makes a Python that runs on both.

    python build.py CACHE ENVIRONMENT

CACHE keeps the unpacked packages (40 MB) and the built device between runs; ENVIRONMENT becomes a directory like a
virtual environment whose ``bin/python`` is this interpreter, with this interpreter's packages, on sid's C library.
Prints the path of that python. Exit status 3, with one line on standard error, says why it cannot be had on this
machine, or that the suite's library has outgrown device.cpp; any other failure is a fault of this file.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGE = "libmiopen1"
# The stand-in takes the place of the GPU's own libraries; the compiler is never called.
REPLACED = re.compile(r"libamdhip64|librocblas|libhip|libclang|libamd|libhsa")
HEADERS = "libamdhip64-dev"  # for the layout of HIP's structures
# Functions of the GPU's libraries; the last two are hipBLASLt's and HIP's by their C++ names.
IMPORT = re.compile(r"(?:__)?hip\w+|rocblas_\w+|rsmi_\w+|_ZN13hipblaslt_ext\w+|_Z24hipExtModuleLaunchKernel\w+")
FACES = re.compile(r"\[(lib(?:amdhip64|rocblas|hipblas|hipblaslt|hipfft|hiprtc|rocm_smi64|roctracer64)\.so\.\d+)\]")
UNAVAILABLE = 3


class Unavailable(Exception):
    """Why this machine cannot have the real library."""


def main() -> int:
    cache, environment = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    cache.mkdir(parents=True, exist_ok=True)
    try:
        with (cache / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            root = fetch(cache)
            device = build(cache / "device", root, [library_folder(root) / "libMIOpen.so.1"], [HERE / "device.cpp"])
    except Unavailable as reason:
        print(reason, file=sys.stderr)
        return UNAVAILABLE
    print(make_environment(environment, library_folder(root), [device], Path(sysconfig.get_path("purelib"))))
    return 0


def fetch(cache: Path) -> Path:
    """The packages' files, unpacked and not installed, from Debian's unstable suite on apt's own mirror."""
    root = cache / "root"
    if (cache / "packages").exists():
        return root
    options = private_apt(cache)
    depends = _run(["apt-cache", *options, "depends", PACKAGE])
    wanted = [name for name in re.findall(r"Depends: ([\w.+-]+)", depends) if not REPLACED.match(name)]
    if not wanted:
        raise Unavailable(f"the mirror has no package {PACKAGE}")
    unpack(options, [PACKAGE, HEADERS, *wanted], root, cache / "packages")
    return root


def private_apt(cache: Path) -> list[str]:
    """Options that give apt lists of its own, of the unstable suite, brought up to date."""
    if platform.machine() != "x86_64":
        raise Unavailable(f"the stand-in device is for x86_64, this machine is {platform.machine()}")
    for tool in ("apt-get", "apt-cache", "dpkg-deb", "g++", "nm"):
        if not shutil.which(tool):
            raise Unavailable(f"{tool} is not installed")
    indexes = _run(["apt-get", "indextargets", "--no-release-info", "--format", "$(REPO_URI)"]).split()
    mirrors = [uri for uri in indexes if re.search(r"/debian/?$", uri)]
    if not mirrors:
        raise Unavailable("apt is configured with no Debian mirror")
    options = _apt_options(cache / "apt", mirrors[0])
    _run(["apt-get", *options, "update"])
    return options


def unpack(options: list[str], names: list[str], root: Path, record: Path) -> None:
    """Downloads packages into ``root``; ``record`` gets the names of their files when all is there."""
    packages = record.with_name(f"{record.name}.part")
    for folder in (packages, root):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    _run(["apt-get", *options, "download", *names], packages)
    for package in packages.glob("*.deb"):
        _run(["dpkg-deb", "-x", str(package), str(root)])
    record.write_text("\n".join(sorted(path.name for path in packages.glob("*.deb"))) + "\n")
    shutil.rmtree(packages)


def build(device: Path, root: Path, libraries: Sequence[Path], sources: Sequence[Path]) -> Path:
    """The shared object, under all names by which ``libraries`` load it; rebuilt when these or its sources change."""
    read = [*sources, HERE / "device.hpp", Path(__file__)]
    facts = [path.read_bytes() for path in read] + [f"{path} {path.stat().st_size}".encode() for path in libraries]
    digest = hashlib.sha256(b"".join(facts)).hexdigest()
    stamp = device / "sources.sha256"
    if stamp.exists() and stamp.read_text() == digest:
        return device
    shutil.rmtree(device, ignore_errors=True)
    device.mkdir()
    dynamic = "".join(_run(["nm", "-D", "--undefined-only", str(library)]) for library in libraries)
    needed = re.findall(r" U (\w+)(?:@([\w.]+))?$", dynamic, re.M)
    imports = {name: version for name, version in needed if IMPORT.fullmatch(name)}
    (device / "versions.map").write_text(version_map(imports))
    flags = ["-O1", "-shared", "-fPIC", "-std=c++17", "-Wall", "-Wno-attributes", f"-I{root}/usr/include"]
    export = f"-Wl,--version-script={device}/versions.map"
    shared = device / "standin.so"
    _run(["g++", *flags, "-o", str(shared), *map(str, sources), export, "-ldl"])
    defined = set(re.findall(r" T (\w+)", _run(["nm", "-D", "--defined-only", str(shared)])))
    missing = sorted(imports.keys() - defined)
    if missing:
        names = " ".join(library.name for library in libraries)
        raise Unavailable(f"{names} import {', '.join(missing)}, which the stand-in device lacks")
    for name in {name for path in libraries for name in FACES.findall(_run(["readelf", "-d", str(path)]))}:
        (device / name).symlink_to(shared.name)  # several names, one file: the loader makes one object of them
    stamp.write_text(digest)
    return device


def version_map(imports: dict[str, str]) -> str:
    """A linker version script with the versions that the imports carry; each version inherits the one before."""
    text, parent = "", ""
    for version in sorted(set(imports.values()) - {""}, key=lambda v: [int(part) for part in re.findall(r"\d+", v)]):
        names = " ".join(f"{name};" for name in sorted(imports) if imports[name] == version)
        text += f"{version} {{ global: {names} }}{parent};\n"
        parent = f" {version}"
    return text


def make_environment(environment: Path, libraries: Path, first: Sequence[Path], packages: Path) -> Path:
    """A Python with these packages that starts under the loader in ``libraries``, and looks for shared objects in the
    folders ``first`` and there; the device is in the first of them. Nothing is exported: commands that it starts have
    their own libc."""
    real = Path(os.path.realpath(sys.executable))
    search = ":".join(map(str, (*first, libraries, sysconfig.get_config_var("LIBDIR"))))
    python = environment / "bin" / "python"
    python.parent.mkdir(parents=True, exist_ok=True)
    command = [libraries / "ld-linux-x86-64.so.2", "--library-path", search, "--preload", first[0] / "standin.so"]
    # argv[0] is this file: Python takes it for its executable, so its own child processes start the same way.
    line = f'exec {shlex.join(map(str, command))} --argv0 "$0" {shlex.quote(str(real))} "$@"'
    python.write_text(f"#!/bin/sh\n{line}\n")
    python.chmod(0o755)
    (environment / "pyvenv.cfg").write_text(f"home = {real.parent}\ninclude-system-site-packages = false\n")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    place = environment / "lib" / version / "site-packages"
    place.parent.mkdir(parents=True, exist_ok=True)
    if not place.exists():
        place.symlink_to(packages)
    return python


def _apt_options(folder: Path, mirror: str) -> list[str]:
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
    (folder / "sources.list").write_text(f"deb [signed-by={keyring}] {mirror} sid main\n")
    settings = {
        "Dir::Etc::SourceList": folder / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": folder / "lists",
        "Dir::State::status": "/dev/null",
        "Dir::Cache": folder / "cache",
        "Acquire::Languages": "none",
        "APT::Sandbox::User": "root",
        "quiet": 2,
    }
    return [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]


def library_folder(root: Path) -> Path:
    return root / "usr/lib/x86_64-linux-gnu"


def _run(command: list[str], folder: Path | None = None) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    if done.returncode:
        reason = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        message = f"{shlex.join(command[:1])} ended with status {done.returncode}: {''.join(reason)}"
        raise Unavailable(message) if command[0].startswith(("apt", "dpkg")) else RuntimeError(done.stderr)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
