"""What a bundle keeps of torch.compile: Inductor's directory, or the one file that ``torch.compiler`` makes of it.

    python -m benchmarks.artifacts

A fresh process compiles a ResNet at two shapes. Then another one starts with an empty directory and that file
(``torch.compiler.load_cache_artifacts``), and another with the directory at another place, as a server does. What is
smaller, and what is made again? Misses are FX graphs; new files tell of the rest, C++ kernels among it. The first
process has the settings of a sweep, the others those of a server. On a GPU where there is one, else on the CPU.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import zlib
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks import records
from handlers.spec import load_spec
from warmup.stores.inductor import InductorStore
from warmup.stores.store import Phase

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
console = Console(stderr=True)

_MODEL = Path(__file__).parent / "models" / "resnet18"
_SHAPES = ((1, 3, 64, 64), (4, 3, 96, 96))
_FILE = "artifacts"
_CPU = "the CPU"


@app.command()
def main(
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = records.RESULTS,
    load: Annotated[Path | None, typer.Option(hidden=True, help="Artifacts to begin with.")] = None,
    save: Annotated[Path | None, typer.Option(hidden=True, help="Where artifacts are put.")] = None,
    child: Annotated[bool, typer.Option("--child", hidden=True)] = False,
) -> None:
    """Measure."""
    if child:
        print(json.dumps(_compile(load, save)))
        return
    store = InductorStore()
    with tempfile.TemporaryDirectory(prefix="preheat-benchmark-") as folder:
        place = Path(folder)
        first = _run(place / "first", Phase.TUNE, "--save", str(place / _FILE))
        sizes = {"directory": _packed(_tar(place / "first")), "artifacts": _packed((place / _FILE).read_bytes())}
        (place / "first").rename(place / "moved")
        store.relocate(place / "moved")
        from_directory = _run(place / "moved", Phase.SERVE)
        from_artifacts = _run(place / "empty", Phase.SERVE, "--load", str(place / _FILE))
    rows = [
        ["nothing", "", "", *_cells(first)],
        ["the directory, moved", *map(_mb, sizes["directory"]), *_cells(from_directory)],
        ["the artifacts, in an empty directory", *map(_mb, sizes["artifacts"]), *_cells(from_artifacts)],
    ]
    head = ["begins with", "MB", "compressed (zlib)", "load s", "first calls s", "misses", "new files"]
    title = "Inductor's directory or its artifacts"
    data = {"sizes": sizes, "first": first, "directory": from_directory, "artifacts": from_artifacts}
    how = " ".join((__doc__ or "").partition("artifacts\n\n")[2].split()) + f" Here: {first['device']}."
    name = "artifacts" if first["device"] == _CPU else "artifacts-gpu"
    records.write(name, title, how, {"A fresh process": records.table(head, rows)}, [], data, out, module="artifacts")
    console.print((out / f"{name}.md").read_text(encoding="utf-8"), markup=False, highlight=False)


def _run(root: Path, phase: Phase, *more: str) -> dict[str, Any]:
    root.mkdir(exist_ok=True)
    environment = {**os.environ, **InductorStore().settings(phase, root).environment}
    command = [sys.executable, "-m", "benchmarks.artifacts", "--child", *more]
    before = set(root.rglob("*"))
    answer = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout)
    added = [path for path in root.rglob("*") if path not in before and path.is_file()]
    store = InductorStore()
    return answer | {"added": sum(store.counts(path.relative_to(root)) for path in added)}  # type: ignore[arg-type]


def _compile(load: Path | None, save: Path | None) -> dict[str, Any]:
    import torch

    from handlers.engines.module import build_module

    loading = time.perf_counter()
    if load is not None:
        torch.compiler.load_cache_artifacts(load.read_bytes())
    loaded = time.perf_counter() - loading
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = build_module(load_spec(_MODEL), _MODEL).to(device)
    seconds = []
    for dims in _SHAPES:
        compiled = torch.compile(model, dynamic=False, fullgraph=True)
        started = time.perf_counter()
        with torch.inference_mode():
            compiled(torch.rand(dims, device=device)).cpu()
        seconds.append(time.perf_counter() - started)
        torch.compiler.reset()
    if save is not None:
        found = torch.compiler.save_cache_artifacts()
        assert found is not None
        save.write_bytes(found[0])
    name = torch.cuda.get_device_name() if device == "cuda" else _CPU
    return {"device": name, "load": loaded, "seconds": seconds, "misses": sum(InductorStore().misses().values())}


def _tar(root: Path) -> bytes:
    """What a bundle's archive has of the directory."""
    store, packed = InductorStore(), io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path in sorted(root.rglob("*")):
            if path.is_file() and store.counts(path.relative_to(root)):  # type: ignore[arg-type]
                tar.add(path, arcname=str(path.relative_to(root)))
    return packed.getvalue()


def _packed(data: bytes) -> tuple[int, int]:
    return len(data), len(zlib.compress(data))


def _mb(size: int) -> str:
    return f"{size / 1e6:.2f}"


def _cells(run: dict[str, Any]) -> list[str]:
    times = [f"{run['load']:.1f}", ", ".join(f"{one:.1f}" for one in run["seconds"])]
    return [*times, str(run["misses"]), str(run["added"])]


if __name__ == "__main__":
    app()
