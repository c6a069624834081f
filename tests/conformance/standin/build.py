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
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGE = "libmiopen1"
# The stand-in takes the place of the GPU's own libraries; the compiler is never called.
REPLACED = re.compile(r"libamdhip64|librocblas|libhip|libclang|libamd|libhsa")
HEADERS = "libamdhip64-dev"  # for the layout of HIP's structures
PREFIXES = ("hip", "rocblas_")
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
            device = build(cache, root)
    except Unavailable as reason:
        print(reason, file=sys.stderr)
        return UNAVAILABLE
    print(make_environment(environment, root, device))
    return 0


def fetch(cache: Path) -> Path:
    """The packages' files, unpacked and not installed, from Debian's unstable suite on apt's own mirror."""
    root = cache / "root"
    if (cache / "packages").exists():
        return root
    if platform.machine() != "x86_64":
        raise Unavailable(f"the stand-in device is for x86_64, this machine is {platform.machine()}")
    for tool in ("apt-get", "apt-cache", "dpkg-deb", "g++", "nm"):
        if not shutil.which(tool):
            raise Unavailable(f"{tool} is not installed")
    indexes = _run(["apt-get", "indextargets", "--no-release-info", "--format", "$(REPO_URI)"]).split()
    mirrors = [uri for uri in indexes if re.search(r"/debian/?$", uri)]
    if not mirrors:
        raise Unavailable("apt is configured with no Debian mirror")
    options = _private_apt(cache / "apt", mirrors[0])
    _run(["apt-get", *options, "update"])
    depends = _run(["apt-cache", *options, "depends", PACKAGE])
    wanted = [name for name in re.findall(r"Depends: ([\w.+-]+)", depends) if not REPLACED.match(name)]
    if not wanted:
        raise Unavailable(f"the mirror has no package {PACKAGE}")
    packages = cache / "packages.part"
    for folder in (packages, root):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    _run(["apt-get", *options, "download", PACKAGE, HEADERS, *wanted], packages)
    for package in packages.glob("*.deb"):
        _run(["dpkg-deb", "-x", str(package), str(root)])
    (cache / "packages").write_text("\n".join(sorted(path.name for path in packages.glob("*.deb"))) + "\n")
    shutil.rmtree(packages)
    return root


def build(cache: Path, root: Path) -> Path:
    """The shared object, under the names that libMIOpen loads; rebuilt when its sources or the packages change."""
    device = cache / "device"
    sources = [HERE / "device.cpp", Path(__file__), cache / "packages"]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    stamp = device / "sources.sha256"
    if stamp.exists() and stamp.read_text() == digest:
        return device
    shutil.rmtree(device, ignore_errors=True)
    device.mkdir()
    library = _libraries(root) / "libMIOpen.so.1"
    dynamic = _run(["nm", "-D", "--undefined-only", str(library)])
    needed = re.findall(r" U (\w+)(?:@([\w.]+))?$", dynamic, re.M)
    imports = {name: version for name, version in needed if name.startswith(PREFIXES)}
    (device / "versions.map").write_text(version_map(imports))
    flags = ["-O1", "-shared", "-fPIC", "-std=c++17", "-Wall", "-Wno-attributes", f"-I{root}/usr/include"]
    export = f"-Wl,--version-script={device}/versions.map"
    shared = device / "standin.so"
    _run(["g++", *flags, "-o", str(shared), str(HERE / "device.cpp"), export, "-ldl"])
    defined = set(re.findall(r" T (\w+)", _run(["nm", "-D", "--defined-only", str(shared)])))
    missing = sorted(imports.keys() - defined)
    if missing:
        raise Unavailable(f"this mirror's {PACKAGE} imports {', '.join(missing)}, which the stand-in device lacks")
    for name in re.findall(r"\[(lib(?:amdhip64|rocblas)\.so\.\d+)\]", _run(["readelf", "-d", str(library)])):
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


def make_environment(environment: Path, root: Path, device: Path) -> Path:
    """A Python that starts under sid's loader. Nothing is exported: commands that it starts have their own libc."""
    real = Path(os.path.realpath(sys.executable))
    libraries = _libraries(root)
    search = ":".join(map(str, (device, libraries, sysconfig.get_config_var("LIBDIR"))))
    python = environment / "bin" / "python"
    python.parent.mkdir(parents=True, exist_ok=True)
    command = [libraries / "ld-linux-x86-64.so.2", "--library-path", search, "--preload", device / "standin.so"]
    # argv[0] is this file: Python takes it for its executable, so its own child processes start the same way.
    line = f'exec {shlex.join(map(str, command))} --argv0 "$0" {shlex.quote(str(real))} "$@"'
    python.write_text(f"#!/bin/sh\n{line}\n")
    python.chmod(0o755)
    (environment / "pyvenv.cfg").write_text(f"home = {real.parent}\ninclude-system-site-packages = false\n")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = environment / "lib" / version
    packages.mkdir(parents=True, exist_ok=True)
    if not (packages / "site-packages").exists():
        (packages / "site-packages").symlink_to(sysconfig.get_path("purelib"))
    return python


def _private_apt(folder: Path, mirror: str) -> list[str]:
    """Options that give apt lists and a cache of its own, for the unstable suite of one mirror."""
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


def _libraries(root: Path) -> Path:
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
