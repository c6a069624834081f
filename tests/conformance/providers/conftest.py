"""ONNX Runtime with AMD's real execution providers, on the real MIOpen and the stand-in device."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

HERE = Path(__file__).parent
BUILD = HERE.parent / "standin" / "providers.py"
UNAVAILABLE = 3
MODEL = """
name: {name}
engine: {{kind: onnx, source: net.onnx, providers: [{providers}], precision: {precision}{more}}}
inputs: [{{name: x, dtype: float32, dims: [batch, 3, height, width]}}]
outputs: [{{name: y, dtype: float32, dims: [{outputs}]}}]
shapes: {{grid: {{batch: [1], height: [20], width: [20, 24]}}}}
cold: run
"""


def environment_of(standin, folder: Path, provider: str):
    """The stand-in's Python with this provider's ONNX Runtime; skips where it cannot be had."""
    cache = os.environ.get("PREHEAT_STANDIN_CACHE") or Path.home() / ".cache" / "preheat-standin"
    done = subprocess.run(
        [sys.executable, str(BUILD), str(cache), str(folder), provider], capture_output=True, text=True
    )
    if done.returncode == UNAVAILABLE:
        pytest.skip(f"ONNX Runtime's {provider} build cannot be had here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return dataclasses.replace(standin, python=Path(done.stdout.strip()))


@pytest.fixture(scope="session")
def rocm(standin, tmp_path_factory: pytest.TempPathFactory):
    return environment_of(standin, tmp_path_factory.mktemp("rocm"), "rocm")


@pytest.fixture(scope="session")
def migraphx(standin, tmp_path_factory: pytest.TempPathFactory):
    return environment_of(standin, tmp_path_factory.mktemp("migraphx"), "migraphx")


@pytest.fixture(scope="session")
def mi300x(home_at):
    """Makes machines by directory. The fetched MIOpen has only solvers without tuning for an MI300X, so that a search
    takes no time."""
    return lambda root, cu=304: home_at(root, arch="gfx942:sramecc+:xnack-", cu=cu)


@pytest.fixture
def machine(mi300x, tmp_path: Path):
    return mi300x(tmp_path / "machine")


def save_net(path: Path, seed: int = 0, op: str = "Relu", dilation: int = 1) -> None:
    """A convolution, a bias, and ``op`` between two ReLUs; batch, height and width are open, and y has x's."""
    generator = np.random.default_rng(seed)
    dims = ["batch", 3, "height", "width"]
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], name="conv", pads=[dilation] * 4, dilations=[dilation] * 2),
            helper.make_node("Add", ["c", "b"], ["a"], name="add"),
            helper.make_node("Relu", ["a"], ["r"], name="relu"),
            helper.make_node(op, ["r"], ["o"], name="odd"),
            helper.make_node("Relu", ["o"], ["y"], name="last"),
        ],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(generator.standard_normal((4, 3, 3, 3), dtype=np.float32), "w"),
            numpy_helper.from_array(generator.standard_normal((1, 4, 1, 1), dtype=np.float32), "b"),
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


@pytest.fixture(scope="session")
def make_model() -> Callable[..., Path]:
    """Fills a model's folder: ``make_model(folder, "migraphx", seed=1, precision="fp16", more=", threads: 1")``."""

    def make(
        folder: Path,
        providers: str,
        *,
        seed: int = 0,
        op: str = "Relu",
        dilation: int = 1,
        precision: str = "fp32",
        more: str = "",
    ) -> Path:
        folder.mkdir(parents=True)
        outputs = "batch, 4" if op == "Det" else "batch, 4, height, width"
        text = MODEL.format(name=folder.name, providers=providers, precision=precision, more=more, outputs=outputs)
        (folder / "model.yaml").write_text(text)
        save_net(folder / "net.onnx", seed, op, dilation)
        return folder

    return make


@pytest.fixture
def model(make_model, tmp_path: Path) -> Callable[..., Path]:
    """The same by name: ``model("net", "migraphx")``."""
    return lambda name, providers, **rest: make_model(tmp_path / "models" / name, providers, **rest)


@pytest.fixture(scope="session")
def warmed(mi300x, make_model) -> Callable[..., Path]:
    """Makes a model and the bundle that ``preheat warm`` leaves of it, in ``folder/models`` and ``folder/bundle``."""

    def warm(standin, folder: Path, provider: str) -> Path:
        make_model(folder / "models" / "net", provider)
        places = ("--model-store", str(folder / "models"), "--out", str(folder / "bundle"))
        # Outputs are not compared with the CPU's: kernels of the stand-in compute nothing.
        command = ("-c", "from serving.cli import main; main()", "warm", "net", "--no-verify", *places)
        done = standin.run(mi300x(folder / "maker"), *command)
        assert done.returncode == 0, done.stderr
        return folder

    return warm


@pytest.fixture(scope="session")
def run_model() -> Callable[..., list[dict[str, Any]]]:
    """One process that loads models as a phase does and runs shapes, given as pairs; see run_model.py."""

    def run(standin, home, root: Path, *models: tuple[Path, Iterable[str]], phase: str = "serve", **settings: str):
        named = [[str(folder), list(shapes)] for folder, shapes in models]
        job = json.dumps({"root": str(root), "phase": phase, "models": named})
        done = standin.run(home, str(HERE / "run_model.py"), input=job, **settings)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    return run


@pytest.fixture
def without(tmp_path: Path) -> Callable[..., Any]:
    """The same Python where a shared library is missing: ``without(rocm, "libhipblas.so.3")``."""

    def make(standin, library: str):
        environment = tmp_path / f"without-{library}"
        shutil.copytree(standin.python.parents[1], environment, symlinks=True)
        python = environment / "bin" / "python"
        script = python.read_text()
        (found,) = {path for path in re.findall(r"/[^:\s']+", script) if (Path(path) / library).exists()}
        rest = environment / "libraries"
        rest.mkdir()
        for path in Path(found).iterdir():
            if path.name != library:
                (rest / path.name).symlink_to(path)
        python.write_text(re.sub(rf"(?<=[ :]){re.escape(found)}(?=[: ])", str(rest), script))
        return dataclasses.replace(standin, python=python)

    return make
