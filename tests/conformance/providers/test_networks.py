"""Real networks on the real providers: what was tuned, sealed and proven searches and compiles nothing in another
place. Minutes in all, so they run where $PREHEAT_LARGE_MODELS is set; smaller models take the same way in every run."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import onnx
import pytest

from handlers.errors import ModelError
from handlers.sources import resolve

pytestmark = [
    pytest.mark.miopen,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not os.environ.get("PREHEAT_LARGE_MODELS"), reason="set $PREHEAT_LARGE_MODELS to run it"),
]
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
DETECTOR = "package:rapidocr/models/PP-OCRv6_det_small.onnx"
NETWORKS = ["squeezenet", "resnet50", "densenet121", "shufflenet", "inception_v2", "text-detector"]
MODEL = """
name: net
engine: {{kind: onnx, source: net.onnx, providers: [{provider}]}}
inputs: [{{name: {input}, dtype: float32, dims: {dims}}}]
shapes: {{list: {shapes}}}
cold: run
"""


def network(folder: Path, name: str, provider: str) -> tuple[Path, list[str]]:
    """A model's folder, and its shapes."""
    if name == "text-detector":
        try:
            source = resolve(DETECTOR, Path())
        except ModelError as error:
            pytest.skip(str(error))
        given, dims = "x", "[batch, 3, height, width]"
        shapes = [f"x={sizes}:fp32" for sizes in ("1x3x64x64", "1x3x96x128", "2x3x64x96", "1x3x192x320")]
    else:
        model = onnx.load(LIGHT / f"light_{name}.onnx")
        weights = {tensor.name for tensor in model.graph.initializer}
        (value,) = [value for value in model.graph.input if value.name not in weights]
        # Before version 4 of the format every weight was an input too, which clients could give.
        model.ir_version = max(model.ir_version, 4)
        del model.graph.input[:]
        model.graph.input.append(value)
        source = folder.parent / f"{name}.onnx"
        source.parent.mkdir(parents=True)
        onnx.save(model, source)
        given, sizes = value.name, [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        dims, shapes = str(sizes), [f"{given}={'x'.join(map(str, sizes))}:fp32"]
    folder.mkdir(parents=True)
    shutil.copyfile(source, folder / "net.onnx")
    (folder / "model.yaml").write_text(MODEL.format(provider=provider, input=given, dims=dims, shapes=shapes))
    return folder, shapes


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("provider", ["rocm", "migraphx"])
def test_what_was_proven_searches_and_compiles_nothing_elsewhere(
    request, mi300x, run_model, tmp_path, provider: str, name: str
) -> None:
    python = request.getfixturevalue(provider)
    folder, shapes = network(tmp_path / "models" / "net", name, provider)
    root = tmp_path / "stores"
    for phase in ("tune", "seal", "prove"):
        loaded, *ran = run_model(python, mi300x(tmp_path / phase), root, (folder, shapes), phase=phase)
        assert loaded.get("provider") == provider, loaded
        assert not [answer for answer in ran if "error" in answer]
    assert all(answer["added"] == {} for answer in ran), "the proof"
    moved = shutil.copytree(root, tmp_path / "elsewhere" / "stores")
    machine = mi300x(tmp_path / "elsewhere" / "machine")
    _, *ran = run_model(python, machine, moved, (folder, shapes))
    assert [answer["added"] for answer in ran] == [{}] * len(shapes)
    assert machine.count("compile") == 0 and machine.count("launch") > 0
    assert not any(ran[-1]["misses"].values())
