"""Sweeps that are killed with SIGKILL at random moments, the whole or one process of it, and still end proven."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import yaml

from handlers.loading import Model
from warmup.bundle.manifest import open_bundle
from warmup.stores.registry import STORES
from warmup.stores.store import Phase
from warmup.sweep.journal import opened

TORCH = """
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x * 2 + 1)
"""


def start(model: Model, out: Path) -> subprocess.Popen[bytes]:
    arguments = ["-m", "serving", "warm", model.folder.name, "--model-store", str(model.folder.parent)]
    return subprocess.Popen(
        [sys.executable, *arguments, "--out", str(out), "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def kill_at_random(sweep: subprocess.Popen[bytes], moments: random.Random, seconds: float) -> None:
    """Kills the sweep, or one of the processes that it started, after up to that many seconds; ends when it ends."""
    try:
        sweep.wait(moments.uniform(0.0, seconds))
    except subprocess.TimeoutExpired:
        family = psutil.Process(sweep.pid).children(recursive=True)
        chosen = moments.choice([sweep.pid, *(process.pid for process in family)])
        os.kill(chosen, signal.SIGKILL)
        if chosen != sweep.pid:  # the sweep goes on by itself for a while, and is killed then
            try:
                sweep.wait(seconds / 2)
            except subprocess.TimeoutExpired:
                sweep.kill()
    sweep.communicate()


def tuned(out: Path) -> int:
    journal = out.parent / f".{out.name}.sweep" / "journal.jsonl"
    if not journal.exists():
        return 0
    with opened(journal) as found:
        return len(found.history.done[Phase.TUNE])


def torture(model: Model, out: Path, kills: int, seconds: float, seed: int) -> None:
    moments = random.Random(seed)
    known = 0
    for _ in range(kills):
        kill_at_random(start(model, out), moments, seconds)
        if out.exists():
            known = 0
        else:
            assert tuned(out) >= known  # what was done stays done
            known = tuned(out)
    sweep = start(model, out)
    answer, errors = sweep.communicate()
    assert sweep.returncode == 0, errors.decode()
    assert json.loads(answer)["proven"] is True
    bundle = open_bundle(out)
    assert bundle.manifest.models[model.spec.name].proof.coverage == pytest.approx(1.0)
    for store in STORES:
        assert store.check(bundle.stores / store.name) == []
    again = start(model, out)
    assert json.loads(again.communicate()[0])["shapes_run"] == 0


def test_a_sweep_killed_a_few_times_ends_with_a_proven_bundle(tmp_path: Path, onnx_model: Callable[..., Model]) -> None:
    torture(onnx_model([1, 2, 3]), tmp_path / "bundle", kills=3, seconds=10.0, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_sweep_of_compiled_shapes_killed_twenty_times_ends_with_a_proven_bundle(tmp_path: Path) -> None:
    from handlers.spec import load_spec

    folder = tmp_path / "models" / "compiled"
    folder.mkdir(parents=True)
    (folder / "net.py").write_text(TORCH)
    document = {
        "name": "compiled",
        "engine": {"kind": "torch", "source": "net.py:Net", "weights": "random:0", "execution": "compile"},
        "inputs": [{"name": "x", "dtype": "float32", "dims": ["n", 8]}],
        "outputs": [{"name": "y", "dtype": "float32", "dims": ["n", 8]}],
        "shapes": {"grid": {"n": [1, 16, 64, 256]}},
    }
    (folder / "model.yaml").write_text(yaml.safe_dump(document))
    torture(Model(load_spec(folder), folder), tmp_path / "bundle", kills=20, seconds=40.0, seed=2)
