"""The real MIGraphX provider: no program is ever taken for another one, and what was proven compiles nothing."""

from __future__ import annotations

import json
import os
import shutil
import urllib.request
from pathlib import Path

import numpy as np
import onnx
import pytest

from handlers.shapes import Shape
from serving.process import ServerProcess
from warmup.stores.migraphx import MIGraphXStore
from warmup.trace.onnx import trace_onnx

pytestmark = pytest.mark.miopen
SHAPES = ("x=1x3x20x20:fp32", "x=1x3x20x24:fp32")
TUNED = ', options: {migraphx: {migraphx_exhaustive_tune: "1"}}'
COMPILE = "Model Compile: Begin"
PLAIN = """
import sys
import numpy as np
import onnxruntime
cache, *runs = sys.argv[1:]
for run in runs:
    path, width, options = run.split(",")
    options = {"migraphx_model_cache_dir": cache, **({options: "1"} if options else {})}
    session = onnxruntime.InferenceSession(path, providers=["MIGraphXExecutionProvider"], provider_options=[options])
    (y,) = session.run(None, {"x": np.zeros((1, 3, 20, int(width)), np.float32)})
    print(y.shape)
    print("#", file=sys.stderr)
"""
COMPILES = """
import sys
import onnxruntime
onnxruntime.InferenceSession(sys.argv[1], providers=["MIGraphXExecutionProvider"])
"""
TICKS = """
import sys, threading, time
import onnxruntime
ticks, stop = 0, threading.Event()
def tick():
    global ticks
    while not stop.wait(0.001):
        ticks += 1
thread = threading.Thread(target=tick)
options = onnxruntime.SessionOptions()
for name, size in (("batch", 1), ("height", 20), ("width", 20)):
    options.add_free_dimension_override_by_name(name, size)
thread.start()
before, started = ticks, time.perf_counter()
onnxruntime.InferenceSession(sys.argv[1], options, providers=["MIGraphXExecutionProvider"])
print(ticks - before, 1000 * (time.perf_counter() - started))
stop.set()
"""


def programs(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in (root / "migraphx").rglob("*.mxr")}


@pytest.fixture(scope="module")
def shipped(migraphx, warmed, tmp_path_factory) -> Path:
    return warmed(migraphx, tmp_path_factory.mktemp("shipped"), "migraphx")


def test_what_was_proven_compiles_nothing_in_another_place(migraphx, shipped, machine, run_model, tmp_path):
    manifest = json.loads((shipped / "bundle" / "manifest.json").read_text())
    assert set(manifest["stores"]) >= {"migraphx", "miopen"}
    root = tmp_path / "moved"
    shutil.copytree(shipped / "bundle" / "stores", root)
    before = programs(root)
    assert len(before) == 2 and len({Path(name).parent for name in before}) == 2, "a directory for every shape"
    loaded, *ran = run_model(migraphx, machine, root, (shipped / "models" / "net", SHAPES))
    assert loaded["provider"] == "migraphx"
    assert [answer["outputs"]["y"] for answer in ran] == [[1, 4, 20, 20], [1, 4, 20, 24]]
    assert all(answer["added"] == {} for answer in ran)
    assert ran[-1]["misses"]["migraphx.compiled"] == 0
    assert machine.count("compile") == 0 and machine.count("launch") > 0
    assert programs(root) == before
    assert all(seconds >= 0 for seconds in ran[-1]["times"]), "inputs and outputs are on the device, and timed"


@pytest.mark.parametrize("phase", ["serve", "tune"])
def test_a_shape_that_was_not_planned_is_a_counted_miss(migraphx, shipped, machine, run_model, tmp_path, phase):
    """A server has it compiled by another process, a sweep does it itself."""
    root = tmp_path / "stores"
    shutil.copytree(shipped / "bundle" / "stores", root)
    _, ran = run_model(migraphx, machine, root, (shipped / "models" / "net", ["x=1x3x20x28:fp32"]), phase=phase)
    assert ran["misses"]["migraphx.compiled"] == 1 and len(ran["added"]["migraphx"]) == 1
    assert ran["outputs"]["y"] == [1, 4, 20, 28]
    compiling = {line.split()[1] for line in machine.log.read_text().splitlines() if line.startswith("compile ")}
    assert (ran["process"] in map(int, compiling)) is (phase == "tune")


def test_while_a_session_is_made_no_other_thread_runs(migraphx, model, machine, tmp_path):
    """Why: a server that compiled by itself would answer nobody."""
    done = migraphx.run(machine, "-c", TICKS, str(model("net", "migraphx") / "net.onnx"))
    ticks, milliseconds = map(float, done.stdout.split())
    assert ticks < milliseconds / 10, done.stderr


def test_the_providers_own_names_collide(migraphx, model, machine, tmp_path):
    """Why the engine keeps shapes apart: of five programs that should differ, the provider makes three, and a process
    that begins with another width answers with the first one's."""
    first, other = model("first", "migraphx") / "net.onnx", model("other", "migraphx", seed=1) / "net.onnx"
    cache = tmp_path / "cache"
    cache.mkdir()
    runs = [f"{first},20,", f"{other},20,", f"{first},20,migraphx_fp16_enable"]
    done = migraphx.run(machine, "-c", PLAIN, str(cache), *runs)
    assert [part.count(COMPILE) for part in done.stderr.split("#\n")[:3]] == [1, 0, 0], done.stderr
    again = migraphx.run(machine, "-c", PLAIN, str(cache), f"{first},24,")
    assert COMPILE not in again.stderr
    assert again.stdout.split("\n")[0] == "(1, 4, 20, 20)", "asked for a width of 24"


def test_no_two_programs_meet(migraphx, model, machine, mi300x, run_model, tmp_path):
    """Other weights, precision, options, shape, and compute units: each gets a program, and the right dims."""
    root = tmp_path / "stores"
    one, other = SHAPES[:1], SHAPES[1:]
    cases = [
        (model("net", "migraphx"), one),
        (model("weights", "migraphx", seed=1), one),
        (model("fp16", "migraphx", precision="fp16"), one),
        (model("tuned", "migraphx", more=TUNED), one),
        (model("width", "migraphx"), other),
    ]
    ran = run_model(migraphx, machine, root, *cases, phase="tune")[1::2]
    assert [answer["misses"]["migraphx.compiled"] for answer in ran] == [1, 2, 3, 4, 5]
    assert [len(answer["added"]["migraphx"]) for answer in ran] == [1] * 5
    assert [answer["outputs"]["y"] for answer in ran] == [[1, 4, 20, 20]] * 4 + [[1, 4, 20, 24]]
    kept = programs(root)
    other_units = mi300x(tmp_path / "partition", cu=38)
    _, partition = run_model(migraphx, other_units, root, cases[0], phase="tune")
    assert partition["misses"]["migraphx.compiled"] == 1 and len(partition["added"]["migraphx"]) == 1
    found = programs(root)
    assert len(found) == 6 and kept.items() <= found.items(), "nothing is written over"
    assert MIGraphXStore().check(root / "migraphx") == []
    again = run_model(migraphx, machine, root, *cases)[1::2]
    assert [answer["misses"]["migraphx.compiled"] for answer in again] == [0] * 5
    assert all(answer["added"] == {} for answer in again)


def test_a_damaged_program_is_found_and_made_again(migraphx, shipped, machine, run_model, tmp_path):
    root = tmp_path / "stores"
    shutil.copytree(shipped / "bundle" / "stores", root)
    store = MIGraphXStore()
    assert store.check(root / "migraphx") == []
    halved, emptied = sorted((root / "migraphx").rglob("*.mxr"))
    halved.write_bytes(halved.read_bytes()[: halved.stat().st_size // 2])
    emptied.write_bytes(b"")
    assert sorted(finding.what for finding in store.check(root / "migraphx")) == [
        "empty",
        "not a whole program: Input data was truncated",
    ]
    _, *ran = run_model(migraphx, machine, root, (shipped / "models" / "net", SHAPES))
    assert [len(answer["added"]["migraphx"]) for answer in ran] == [1, 1]
    assert ran[-1]["misses"]["migraphx.compiled"] == 2
    assert store.check(root / "migraphx") == []


def test_a_server_of_the_bundle_compiles_nothing_after_ready(migraphx, shipped, machine, tmp_path):
    arguments = ["net", "--model-store", str(shipped / "models"), "--bundle", str(shipped / "bundle"), "--trust"]
    with ServerProcess(arguments, machine.environment(), str(migraphx.python)) as server:
        server.wait_ready(60)
        for number in range(30):
            width = (20, 24)[number % 2]
            y = infer(server.url, np.zeros((1, 3, 20, width), np.float32))
            assert y["shape"] == [1, 4, 20, width]
        with urllib.request.urlopen(f"{server.url}/metrics") as answer:
            metrics = answer.read().decode()
    assert 'preheat_shape_lookups_total{model="net",outcome="warm"} 30.0' in metrics
    text = "".join(server.log)
    assert "[MIGraphX EP]" in text and COMPILE not in text
    assert machine.count("compile") == 0


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("PREHEAT_LARGE_MODELS"), reason="set $PREHEAT_LARGE_MODELS to run it")
def test_it_asks_miopen_for_what_is_predicted(migraphx, machine):
    path = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / "light_squeezenet.onnx"
    done = migraphx.run(machine, "-c", COMPILES, str(path))
    assert done.returncode == 0, done.stderr[-2000:]
    trace = trace_onnx(path, [Shape.parse("data_0=1x3x224x224:fp32")])
    assert machine.keys() == {problem.find_db_key() for shape in trace for problem in shape.calls}


def infer(address: str, x: np.ndarray) -> dict:
    body = {"inputs": [{"name": "x", "shape": list(x.shape), "datatype": "FP32", "data": x.ravel().tolist()}]}
    request = urllib.request.Request(
        f"{address}/v2/models/net/infer", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["outputs"][0]
