"""Watching the stores of a serving process."""

from __future__ import annotations

from pathlib import Path

from warmup.stores.inductor import InductorStore
from warmup.stores.onnxruntime import OnnxRuntimeStore
from warmup.stores.watch import Look, StoreWatch


def put(path: Path, data: bytes = b"data") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def test_each_new_entry_is_told_once_and_by_its_key(tmp_path: Path) -> None:
    put(tmp_path / "inductor" / "ab" / "old.so")
    watch = StoreWatch((InductorStore(), OnnxRuntimeStore()), tmp_path)
    assert watch.look() == {"inductor": Look(1, ()), "onnxruntime": Look(0, ())}
    put(tmp_path / "inductor" / "cd" / "new.so")
    put(tmp_path / "inductor" / "locks" / "new.lock", b"")
    put(tmp_path / "onnxruntime" / "m-1.onnx")
    assert watch.look() == {"inductor": Look(2, ("cd/new.so",)), "onnxruntime": Look(1, ("m-1.onnx",))}
    assert watch.look() == {"inductor": Look(2, ()), "onnxruntime": Look(1, ())}


def test_an_entry_that_changes_is_new_again(tmp_path: Path) -> None:
    put(tmp_path / "inductor" / "ab" / "one.so", b"half")
    watch = StoreWatch((InductorStore(),), tmp_path)
    put(tmp_path / "inductor" / "ab" / "one.so", b"and the other half")
    assert watch.look() == {"inductor": Look(1, ("ab/one.so",))}
