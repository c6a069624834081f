"""How long an ONNX model takes from a bundle to warm on MIGraphX, beside reading its programs alone.

    python -m benchmarks.migraphx_ready BUNDLE MODEL_STORE MODEL

Two fresh processes: one has MIGraphX itself load every program of the bundle (``migraphx_load``), the other loads the
engine and warms every proven shape from a copy of the bundle's stores, as a server does. Each says the seconds after
its imports, and how many programs were compiled. Needs a Python with onnxruntime-migraphx, such as the one that
``tests/conformance/standin/providers.py`` makes; on that one, kernels compute nothing.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from benchmarks import records
from benchmarks.records import Check

READ, WARM = "read", "warm"
ROUNDS = 7
GOAL = 2.0  # seconds


def main() -> None:
    bundle, store, name = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    manifest = json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))
    shapes = [shape["shape"] for shape in manifest["models"][name]["proof"] if shape["proven"]]
    rounds = []
    with tempfile.TemporaryDirectory(prefix="preheat-bench-") as scratch:
        shutil.copytree(bundle / "stores", scratch, dirs_exist_ok=True)
        programs = sorted(map(str, Path(scratch, "migraphx").rglob("*.mxr")))
        size = sum(Path(path).stat().st_size for path in programs)
        for _ in range(ROUNDS):
            found = _fresh(WARM, str(store / name), scratch, *shapes)
            rounds.append({"read": _fresh(READ, *programs)["seconds"], **found})
    beside = statistics.median(map(_beside, rounds))
    compiled = sum(one["compiled"] for one in rounds)
    checks = [
        Check(f"ready no later than {GOAL:g} s after the programs are read", f"{beside:+.2f} s", beside <= GOAL),
        Check("nothing compiled", f"{compiled} programs", not compiled),
    ]
    columns = ["round", "reading s", "load s", "warm s", "beside reading s"]
    rows = [
        [str(number), *(f"{value:.2f}" for value in (one["read"], one["load"], one["seconds"])), f"{_beside(one):+.2f}"]
        for number, one in enumerate(rounds, 1)
    ]
    how = (
        f"{name}: {len(programs)} programs of MIGraphX, {size / 1e6:.1f} MB, for {len(shapes)} shapes. `reading` is "
        "MIGraphX alone loading all of them, `load` and `warm` the engine with every shape run once, in fresh "
        "processes, in turns. On the stand-in device, whose kernels take no time: this is the processor's part alone."
    )
    text = records.table(columns, rows)
    records.write("migraphx_ready", "A start on MIGraphX", how, {"Rounds": text}, checks, rounds, records.RESULTS)
    records.conclude(checks, Console(stderr=True))


def _beside(found: dict) -> float:
    return found["load"] + found["seconds"] - found["read"]


def _fresh(*arguments: str) -> dict:
    command = [sys.executable, "-m", "benchmarks.migraphx_ready", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def read(programs: list[str]) -> dict:
    library = ctypes.CDLL("libmigraphx_c.so.3")
    options = ctypes.c_void_p()
    _check(library.migraphx_file_options_create(ctypes.byref(options)))
    _check(library.migraphx_file_options_set_file_format(options, b"msgpack"))
    started = time.perf_counter()
    for path in programs:
        program = ctypes.c_void_p()
        _check(library.migraphx_load(ctypes.byref(program), path.encode(), options))
    return {"seconds": time.perf_counter() - started}


def _check(status: int) -> None:
    if status:
        sys.exit(f"MIGraphX: status {status}")


def warm(folder: Path, root: Path, shapes: list[str]) -> dict:
    import onnxruntime  # noqa: F401  not what is measured

    from handlers.engines.engine import open_engine
    from handlers.shapes import Shape
    from handlers.spec import load_spec
    from warmup.stores.registry import settings_for, stores_for
    from warmup.stores.store import Phase

    spec = load_spec(folder)
    stores = stores_for([spec])
    settings = settings_for(stores, Phase.SERVE, root)
    os.environ.update(settings.environment)
    engine = open_engine(spec, folder, settings.engine)
    started = time.perf_counter()
    engine.load()
    loaded = time.perf_counter()
    for text in shapes:
        engine.warm(Shape.parse(text))
    done = time.perf_counter()
    compiled = sum(count for store in stores for count in store.misses().values())
    return {"load": loaded - started, "seconds": done - loaded, "compiled": compiled}


if __name__ == "__main__":
    if sys.argv[1] == READ:
        print(json.dumps(read(sys.argv[2:])))
    elif sys.argv[1] == WARM:
        print(json.dumps(warm(Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])))
    else:
        main()
