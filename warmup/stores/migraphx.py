"""MIGraphX's programs: one directory for every shape, with the files that the provider left in it.

The engine makes and names the directories (``handlers/engines/migraphx.py``), since the provider's own file names
collide. What a program is for is said by ``migraphx.target``: the device and its compute units as MIOpen names its
databases by them, and the version of MIGraphX. A program holds the chosen convolutions and their compiled code, so that
loading one searches and compiles nothing; with another MIOpen it would still be loaded, hence its version, too.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import lru_cache
from pathlib import Path, PurePosixPath

import msgspec

from handlers.spec import ModelSpec
from warmup.miopen.probe import ProbeError, database_stem
from warmup.stores.onnxruntime import provider_library
from warmup.stores.store import Phase, Settings
from warmup.stores.tree import TreeStore

PROGRAM = ".mxr"
# The keys of the map that MIGraphX writes (src/save_load.cpp, program::to_value), as found in files of 2.14.
_KEYS = {"version", "migraphx_version", "modules"}
_ENGINE = "handlers.engines.migraphx"


class MIGraphXStore(TreeStore):
    """Filled and read by ONNX models where the installed ONNX Runtime has the MIGraphX provider."""

    name = "migraphx"

    def applies(self, spec: ModelSpec) -> bool:
        return (
            spec.engine.kind == "onnx"
            and "migraphx" in spec.engine.providers
            and provider_library("migraphx") is not None
        )

    def settings(self, phase: Phase, root: Path) -> Settings:
        engine = {
            "migraphx.cache_dir": str(root.absolute()),
            "migraphx.target": json.dumps(self.identity(), sort_keys=True),
        }
        if phase is Phase.SERVE:  # a server answers other requests while it compiles for one
            engine["migraphx.compile"] = "apart"
        return Settings(engine=engine)

    def identity(self) -> dict[str, str]:
        """``device`` with MIOpen's version, as in the names of its databases, and ``version`` of MIGraphX; "none" where
        they cannot be had."""
        try:
            device = database_stem()
        except ProbeError:
            device = "none"
        return {"device": device, "version": migraphx_version()}

    def counts(self, path: PurePosixPath) -> bool:
        return not any(part.startswith(".") for part in path.parts)

    def damage(self, path: Path) -> str | None:
        if path.suffix != PROGRAM:
            return None
        size = path.stat().st_size
        if size == 0:
            return "empty"
        try:
            program = msgspec.msgpack.decode(path.read_bytes())
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return f"not a whole program: {error}"
        if not isinstance(program, dict) or program.keys() < _KEYS:
            return "not a program of MIGraphX"
        return None

    def misses(self) -> dict[str, int]:
        engine = sys.modules.get(_ENGINE)
        return {"compiled": engine.COUNTER.compiled if engine else 0}


@lru_cache(maxsize=1)
def migraphx_version() -> str:
    """What the libraries' names say of MIGraphX's version, such as ``2014000.0``; "none" where it does not load.

    There is no function for it. So a fresh process loads the provider, and looks where the libraries came from.
    """
    library = provider_library("migraphx")
    if library is None:
        return "none"
    done = subprocess.run(
        [sys.executable, "-m", "warmup.stores.migraphx", str(library)], capture_output=True, text=True
    )
    return done.stdout.strip() or "none"


def main(library: str) -> None:
    """What the fresh process does."""
    import ctypes

    import onnxruntime  # noqa: F401  the provider's constructors call into it

    path = Path(library)
    try:
        ctypes.CDLL(str(path.with_name("libonnxruntime_providers_shared.so")), ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(path))
    except OSError as error:
        sys.exit(str(error))
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line}
    names = {Path(name).name for name in mapped}
    prefix = "libmigraphx.so."
    print(" ".join(sorted(name.removeprefix(prefix) for name in names if name.startswith(prefix))))


if __name__ == "__main__":
    main(sys.argv[1])
