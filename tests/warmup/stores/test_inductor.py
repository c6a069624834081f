"""Inductor's store: settings, identity, damage, and that PyTorch itself agrees about copies and misses."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from handlers.spec import ModelSpec
from warmup.stores.inductor import InductorStore
from warmup.stores.store import Phase

# One kernel, compiled and run in a new process; tells what PyTorch counted and which compilers it started.
PROGRAM = """
import json, subprocess, sys
commands = []
original = subprocess.Popen.__init__
def watched(self, args, *rest, **options):
    commands.append([str(part) for part in args] if not isinstance(args, str) else args.split())
    original(self, args, *rest, **options)
subprocess.Popen.__init__ = watched
import torch
from warmup.stores.inductor import InductorStore
torch.set_num_threads(1)
with torch.inference_mode():
    torch.compile(lambda x: torch.relu(x * 2 + 1), dynamic=False)(torch.rand(2, 3))
compiled = [c for c in commands if "g++" in c[0] and any(part.endswith((".cpp", ".h", ".hpp")) for part in c)]
json.dump({"misses": InductorStore().misses(), "compiled": len(compiled)}, sys.stdout)
"""


def run(root: Path, phase: Phase) -> dict[str, Any]:
    environment = {**os.environ, **InductorStore().settings(phase, root).environment}
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=280
    )
    assert answer.returncode == 0, answer.stderr[-2000:]
    return json.loads(answer.stdout)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        pytest.skip("needs a C++ compiler")
    root = tmp_path_factory.mktemp("filled") / "inductor"
    cold = run(root, Phase.TUNE)
    assert cold["misses"]["fxgraph_cache_miss"] == 1
    assert cold["compiled"] > 0
    return root


def test_a_copy_elsewhere_serves_without_a_miss_a_compiler_or_a_new_entry(filled: Path, tmp_path: Path) -> None:
    store = InductorStore()
    copy = tmp_path / "another" / "place"
    shutil.copytree(filled, copy)
    store.tidy(copy)
    before = store.entries(copy)
    warm = run(copy, Phase.SERVE)
    assert warm == {"misses": {"fxgraph_cache_miss": 0, "fxgraph_cache_bypass": 0}, "compiled": 0}
    assert store.entries(copy) == before


def test_what_pytorch_wrote_is_whole_and_cutting_it_short_is_found(filled: Path, tmp_path: Path) -> None:
    store = InductorStore()
    assert store.check(filled) == []
    copy = tmp_path / "copy"
    shutil.copytree(filled, copy)
    cut = [key for key in store.entries(copy) if key.endswith(".so") or key.startswith(("fxgraph", "aotautograd"))]
    assert len(cut) >= 3
    for key in cut:
        data = (copy / key).read_bytes()
        (copy / key).write_bytes(data[: len(data) // 2])
    assert sorted(finding.where for finding in store.check(copy)) == sorted(cut)


@pytest.mark.slow
def test_two_builds_in_two_places_are_the_same_bit_for_bit(filled: Path, tmp_path: Path) -> None:
    run(tmp_path / "inductor", Phase.TUNE)
    store = InductorStore()
    one, two = store.entries(filled), store.entries(tmp_path / "inductor")
    shared = [key for key in one if not key.startswith(("fxgraph", "aotautograd"))]
    assert any(key.endswith(".so") for key in shared)
    assert {key: one[key] for key in shared} == {key: two[key] for key in shared if key in two}


def elf(sections: int, body: int) -> bytes:
    """A 64-bit little-endian ELF header whose section headers begin after ``body`` bytes."""
    header = bytearray(64)
    header[:6] = b"\x7fELF\x02\x01"
    struct.pack_into("<Q", header, 40, 64 + body)
    struct.pack_into("<HH", header, 58, 64, sections)
    return bytes(header) + b"\0" * (body + 64 * sections)


@pytest.mark.parametrize(
    ("name", "data", "what"),
    [
        ("ab/a.so", elf(3, 100), ""),
        ("ab/a.so", elf(3, 100)[:-1], "cut short"),
        ("ab/a.so", b"", "empty"),
        ("ab/a.so", b"text" * 30, "not a 64-bit ELF"),
        ("fxgraph/ab/key/hash", pickle.dumps([1]), ""),
        ("fxgraph/ab/key/hash", pickle.dumps([1])[:-1], "the pickle has no end"),
        ("aotautograd/key/hash", pickle.dumps("x" * 99)[:50], "the pickle has no end"),
        ("ab/a.py", b"x = 1", ""),
        ("ab/a.py", b"", "empty"),
    ],
)
def test_damage(tmp_path: Path, name: str, data: bytes, what: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_bytes(data)
    findings = InductorStore().check(tmp_path)
    assert [finding.where for finding in findings] == ([name] if what else [])
    assert all(what in finding.what and finding.repairable for finding in findings)


def test_only_tuning_may_start_compile_helpers(tmp_path: Path) -> None:
    store = InductorStore()
    tune = store.settings(Phase.TUNE, tmp_path).environment
    serve = store.settings(Phase.SERVE, tmp_path).environment
    assert serve == {**tune, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    assert tune["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path)
    assert (
        store.settings(Phase.PROVE, tmp_path).environment == serve == store.settings(Phase.SEAL, tmp_path).environment
    )


def test_identity_names_compiler_paths_and_foreign_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_MAX_AUTOTUNE", "1")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/somewhere")
    monkeypatch.setenv("CXX", "no-such-compiler")
    found = InductorStore().identity()
    assert found["environment"] == "TORCHINDUCTOR_MAX_AUTOTUNE=1"
    assert found["compiler"] == "no-such-compiler: not found"
    assert Path(found["torch_path"]).name == "torch"


@pytest.mark.parametrize(("kind", "execution", "applies"), [("torch", "compile", True), ("torch", "eager", False)])
def test_applies_to_compiled_models(kind: str, execution: str, applies: bool) -> None:
    spec = ModelSpec.model_validate(
        {
            "name": "m",
            "engine": {"kind": kind, "source": "net.py:Net", "execution": execution},
            "inputs": [{"name": "x", "dtype": "fp32", "dims": [1]}],
            "shapes": {"list": ["x=1:fp32"]},
        }
    )
    assert InductorStore().applies(spec) is applies
