"""PyTorch Inductor's cache: compiled FX graphs, AOTAutograd's results, generated code and its shared objects.

Watched on PyTorch 2.13 with a C++ compiler, and the reasons for the settings below:

- What the C++ side keeps does not name the directory it is in: a copy elsewhere gives no miss and no new file.
- Precompiled headers are kept outside of the cache, below the directory for temporary files, and are looked up whenever
  a kernel is loaded: every process preprocesses the header again (seconds) and a fresh machine builds it. So they are
  off in all phases; the switch is part of every kernel's key and cannot differ between them.
- Which vector instructions the compiler knows is found out by compiling and loading a probe for each set, in every
  process. TORCHINDUCTOR_VEC_ISA_OK says that what the processor has is usable, and most probes go away.
- Line tables for profilers hold the directory of the cache, so that two builds of one kernel differ: off, and shards of
  a sweep agree bit for bit.
- Triton's own cache is below this one. Its group files name the kernels' files by absolute path, and where a path is
  gone the kernel is compiled again: a copy must be relocated. Without PyTorch's static launcher, the first process
  after tuning compiles every kernel once more under another key, which is what sealing is for. Watched on an NVIDIA
  H200 with PyTorch 2.11 and Triton 3.6: 181 entries after tuning, 136 more in sealing, then none; in a copy 102
  changed, in a relocated copy none. With the static launcher: 177, and none ever after.
- What ``torch.compiler.save_cache_artifacts`` makes of it is less than half as large, but has no C++ kernels: loaded
  into an empty directory there is no miss, and everything is compiled again (``benchmarks/artifacts.py``). So the
  directory itself is kept.
- The key of a kernel is made of its source and of the compiler's command line, which holds the paths of PyTorch's and
  Python's headers, ``-march=native``, and the number of threads: all of these are identity.
- A shared object cut short kills the process that loads it with SIGBUS, an empty one fails the shape; a cut pickle is
  only logged, and compiled again under a new name. Text and pickles are written beside and renamed, shared objects are
  not: a killed compiler leaves half of one at its final place.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import struct
import subprocess
import sys
import sysconfig
from pathlib import Path, PurePosixPath
from typing import Any

from handlers.spec import ModelSpec
from warmup.stores.store import Phase, Settings
from warmup.stores.tree import TreeStore

PREFIX = "TORCHINDUCTOR_"
# In all phases, so that they are no part of the identity. The last switches off what a user's shell may have set.
SWITCHES = {
    "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
    "TORCHINDUCTOR_AUTOGRAD_CACHE": "1",
    "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
    "TORCHINDUCTOR_VEC_ISA_OK": "1",
    "AOT_INDUCTOR_ENABLE_LINE_TABLES": "0",
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "0",
}
# torch._dynamo.utils.counters["inductor"]: a bypass is a graph that PyTorch cannot cache, so every process compiles it.
MISSES = ("fxgraph_cache_miss", "fxgraph_cache_bypass")
# Two-level directories of pickles, torch/_inductor/codecache.py and torch/_functorch/_aot_autograd/autograd_cache.py.
PICKLES = ("fxgraph", "aotautograd")
_LOCKS = "locks"
# triton/runtime/cache.py, FileCacheManager.put_group: {"child_paths": {file name: absolute path}}
_GROUP = "__grp__"
_CHILDREN = "child_paths"
_STOP = b"."  # the last opcode of every pickle, pickletools.py


class InductorStore(TreeStore):
    """Filled and read by torch models that are compiled."""

    name = "inductor"

    def applies(self, spec: ModelSpec) -> bool:
        return spec.engine.kind == "torch" and spec.engine.compiles

    def settings(self, phase: Phase, root: Path) -> Settings:
        environment = {**SWITCHES, "TORCHINDUCTOR_CACHE_DIR": str(root.absolute())}
        if phase is not Phase.TUNE:
            # With everything in the cache there is nothing to share out, and starting helpers takes seconds.
            environment["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
        return Settings(environment=environment)

    def identity(self) -> dict[str, str]:
        found = importlib.util.find_spec("torch")
        places = found.submodule_search_locations if found else None
        ours = {*SWITCHES, "TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS"}
        others = sorted(f"{key}={value}" for key, value in os.environ.items() if key.startswith(PREFIX))
        return {
            "compiler": _compiler_version(os.environ.get("CXX", "g++")),
            "torch_path": next(iter(places or ()), "not installed"),
            "python_include": sysconfig.get_path("include"),
            "environment": " ".join(item for item in others if item.split("=")[0] not in ours),
        }

    def counts(self, path: PurePosixPath) -> bool:
        return (
            path.parts[0] != _LOCKS
            and not path.name.startswith(".")
            and path.suffix not in {".lock", ".tmp", ".o"}
            and "__pycache__" not in path.parts
        )

    def identical(self, path: Path) -> bytes | None:
        group = _group(path)
        return json.dumps(sorted(group[_CHILDREN])).encode() if group else None

    def relocate(self, root: Path) -> None:
        for path in root.glob(f"triton/**/{_GROUP}*.json"):
            group = _group(path)
            if group:
                group[_CHILDREN] = {name: str(path.absolute().parent / name) for name in group[_CHILDREN]}
                beside = path.with_name(f".{path.name}.tmp")
                beside.write_text(json.dumps(group))
                beside.replace(path)

    def damage(self, path: Path) -> str | None:
        size = path.stat().st_size
        if size == 0:
            return "empty"
        with path.open("rb") as file:
            if path.suffix == ".so":
                needed = _elf_size(file.read(64))
                if needed is None:
                    return "not a 64-bit ELF file"
                if size < needed:
                    return f"cut short: {size} bytes, its header tells of {needed}"
            elif path.name.startswith(_GROUP) and path.suffix == ".json":
                return None if _group(path) else "cut short: not a whole JSON document"
            elif any(part in PICKLES for part in path.parts[-4:-1]):
                file.seek(-1, os.SEEK_END)
                if file.read(1) != _STOP:
                    return "cut short: the pickle has no end"
        return None

    def misses(self) -> dict[str, int]:
        dynamo = sys.modules.get("torch._dynamo.utils")
        counted = dynamo.counters["inductor"] if dynamo else {}
        return {name: int(counted.get(name, 0)) for name in MISSES}


def _group(path: Path) -> dict[str, Any] | None:
    """What a group file of Triton's says, None for any other file and for one that is cut short."""
    if not path.name.startswith(_GROUP) or path.suffix != ".json":
        return None
    try:
        document = json.loads(path.read_bytes())
    except ValueError:
        return None
    return document if isinstance(document, dict) and isinstance(document.get(_CHILDREN), dict) else None


def _elf_size(header: bytes) -> int | None:
    """The bytes that an ELF file must have at least: linkers put the section headers last (elf(5))."""
    if len(header) < 64 or header[:5] != b"\x7fELF\x02":
        return None
    order = "<" if header[5] == 1 else ">"
    (offset,) = struct.unpack_from(f"{order}Q", header, 40)
    size, count = struct.unpack_from(f"{order}HH", header, 58)
    return offset + size * count


def _compiler_version(compiler: str) -> str:
    """The first line that the compiler says of itself, or why it says none."""
    path = shutil.which(compiler)
    if path is None:
        return f"{compiler}: not found"
    answer = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return (answer.stdout.splitlines() or [f"{compiler}: exit status {answer.returncode}"])[0]
