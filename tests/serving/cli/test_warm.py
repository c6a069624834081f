"""``preheat warm`` as it is run: what it prints, and its exit status."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
import yaml

from serving.cli.warm import parse_duration, parse_shard
from warmup.sweep.workspace import reserved

CODE = """
class Net:
    def run(self, inputs):
        if inputs["x"].shape[0] == 13:
            raise ValueError("found [/opt/rocm/lib] and [bold]")
        return {"y": inputs["x"]}
"""
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., None]:
    """Writes the model ``plain`` with the given shapes to the test's model store."""

    def make(*sizes: int) -> None:
        folder = tmp_path / "models" / "plain"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "net.py").write_text(CODE)
        document = {
            "name": "plain",
            "engine": {"kind": "python", "source": "net.py:Net"},
            "inputs": [{"name": "x", "dtype": "float32", "dims": ["n"]}],
            "outputs": [{"name": "y", "dtype": "float32", "dims": ["n"]}],
            "shapes": {"list": [f"x={size}:fp32" for size in sizes]},
        }
        (folder / "model.yaml").write_text(yaml.safe_dump(document))

    return make


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def invoke(*arguments: str, file_size: int | None = None) -> subprocess.CompletedProcess[str]:
        def limit() -> None:
            if file_size is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))

        command = [sys.executable, "-m", "serving", "warm", "--model-store", str(tmp_path / "models")]
        command += ["--out", str(tmp_path / "bundle"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=limit)

    return invoke


def test_a_table_then_nothing_to_do(run: Run, write: Callable[..., None]) -> None:
    write(1, 2)
    first = run("plain")
    assert first.returncode == 0, first.stderr
    rows = [line.split() for line in first.stdout.splitlines() if line.startswith("plain ")]
    assert [(row[1], row[-1]) for row in rows] == [("x=1:fp32", "proven"), ("x=2:fp32", "proven")]
    assert "2 of 2 shapes proven, 100.0% of the expected traffic" in first.stdout
    for phase in ("tune", "seal", "prove"):
        assert f"preheat: {phase} plain x=2:fp32: " in first.stderr
    assert "(2 of 2)" in first.stderr
    second = run("plain")
    assert second.returncode == 0
    assert second.stdout.rstrip().endswith("nothing to do")


def test_json_has_every_shape(run: Run, write: Callable[..., None]) -> None:
    write(1)
    done = run("--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    (shape,) = document["models"]["plain"]["shapes"]
    assert (shape["shape"], shape["proven"], shape["added"]) == ("x=1:fp32", True, {})
    assert document["proven"] is True
    assert document["shapes_run"] == 1
    assert document["bundle"].startswith("sha256:")


def test_a_shape_that_cannot_be_proven_is_status_1(run: Run, write: Callable[..., None]) -> None:
    write(1, 13)
    done = run()
    assert done.returncode == 1
    assert "unproven: tune: ValueError: found [/opt/rocm/lib] and [bold]" in done.stdout
    assert "1 of 2 shapes proven" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nothing"], "nothing/model.yaml: No such file or directory"),
        (["--budget", "soon"], "'soon' is not a duration such as 90s, 10m or 2h"),
        (["--shard", "3/2"], "'3/2' is not I/N with I from 1 to N"),
    ],
)
def test_what_cannot_run_is_status_2(run: Run, write: Callable[..., None], arguments: list[str], told: str) -> None:
    write(1)
    done = run(*arguments)
    assert done.returncode == 2
    assert told in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"handler": "nonsense"}, "plain: handler: no handler 'nonsense'; allowed: "),
        ({"handler": "handler.py"}, "handler.py: Mine: RuntimeError: no such tokenizer"),
        ({"engine": {"kind": "python", "source": "other.py:Net"}}, "plain: engine.source: "),
        ({"engine": {"kind": "onnx", "source": "absent.onnx"}}, "plain: engine.source: "),
        ({"engine": {"kind": "torch", "source": "net.py:Net", "weights": "w.safetensors"}}, "plain: engine.weights: "),
        ({"outputs": []}, "plain: outputs: a python model must name its outputs"),
    ],
)
def test_what_is_wrong_with_a_model_is_told_once_before_any_work(
    run: Run, write: Callable[..., None], tmp_path: Path, change: dict[str, object], told: str
) -> None:
    write(1, 2)
    path = tmp_path / "models" / "plain" / "model.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | change))
    (path.parent / "handler.py").write_text(
        "from handlers.handler import Handler\nclass Mine(Handler):\n"
        "    def __init__(self):\n        raise RuntimeError('no such tokenizer')\n"
    )
    done = run()
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert told in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["models"]


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ({"kind": "python", "source": "net.py:Other"}, "no class 'Other'; found Net"),
        ({"kind": "onnx", "source": "junk.onnx"}, "junk.onnx"),
        ({"kind": "torch", "source": "junk.pt2"}, "junk.pt2"),
    ],
)
def test_a_model_that_cannot_be_loaded_is_status_2(
    run: Run, write: Callable[..., None], tmp_path: Path, engine: dict[str, str], told: str
) -> None:
    write(1, 2)
    path = tmp_path / "models" / "plain" / "model.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"engine": engine}))
    for name in ("junk.onnx", "junk.pt2"):
        (path.parent / name).write_bytes(b"junk")
    done = run()
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("preheat: plain: ")
    assert told in done.stderr
    assert not (tmp_path / "bundle").exists()


def test_a_second_sweep_at_once_is_status_2(run: Run, write: Callable[..., None], tmp_path: Path) -> None:
    write(1)
    with reserved(tmp_path / "bundle"):
        done = run()
    assert done.returncode == 2
    assert "another sweep is at work on this bundle (process " in done.stderr


def test_a_disk_that_takes_no_more_is_status_2_and_can_be_taken_up_again(
    run: Run, write: Callable[..., None], tmp_path: Path
) -> None:
    write(1)
    done = run(file_size=64)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert ".bundle.sweep/journal.jsonl: File too large" in done.stderr
    assert not (tmp_path / "bundle").exists()
    assert run().returncode == 0


def test_the_process_that_sweeps_imports_no_framework() -> None:
    program = "import sys, serving.cli.warm; sys.exit(any(name in sys.modules for name in ('torch', 'onnxruntime')))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("1.5m", 90), ("2h", 7200)])
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-1s", "1d", "s", "1 2"])
def test_other_texts_are_no_duration(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_duration(text)


@pytest.mark.parametrize("text", ["1", "0/2", "3/2", "a/b", "1/2/3"])
def test_other_texts_are_no_shard(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_shard(text)
