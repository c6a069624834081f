"""What placement and breakdown say of the real providers; and ``preheat verify`` sees what the stand-in's kernels
do, which is nothing."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from handlers.shapes import Shape
from handlers.sources import resolve
from warmup.placement import ProviderPlacement, place
from warmup.sessions import Wanted

pytestmark = pytest.mark.miopen
RECOGNIZER = "package:rapidocr/models/PP-OCRv6_rec_small.onnx"
SHAPE = "x=1x3x48x64:fp32"
PLACE = """
import json, sys
from pathlib import Path
from handlers.shapes import Shape
from serving.bench.breakdown import measure
from warmup.placement import place
from warmup.sessions import Wanted
path, shape, wanted = Path(sys.argv[1]), Shape.parse(sys.argv[2]), Wanted(sys.argv[3], threads=1)
placed = place(path, shape, wanted).to_json()
parts = measure(path, shape, wanted, 1).to_json()
print(json.dumps([placed, parts]))
"""


@pytest.mark.skipif(importlib.util.find_spec("rapidocr") is None, reason="needs the models of rapidocr")
def test_the_rules_leave_the_nodes_that_the_provider_leaves(rocm, machine, tmp_path: Path) -> None:
    path = resolve(RECOGNIZER, tmp_path)
    done = rocm.run(machine, "-c", PLACE, str(path), SHAPE, "rocm")
    assert done.returncode == 0, done.stderr[-2000:]
    placed, parts = json.loads(done.stdout.splitlines()[-1])
    assert placed["source"] == "session" and placed["fused"]["FusedConv"] > 0
    predicted = place(path, Shape.parse(SHAPE), Wanted("rocm"))
    assert isinstance(predicted, ProviderPlacement) and predicted.source == "rules"
    assert (
        [node["name"] for node in placed["left"]] == [node.name for node in predicted.left] == ["Slice.2", "Concat.2"]
    )
    assert parts["steady"]["copy"] > 0  # inputs and outputs lie on the device
    assert parts["first"]["parse"] > 0 and parts["first"]["optimise"] > 0


def test_migraphx_takes_a_graph_whole_and_its_compilation_is_in_the_first_execution(migraphx, machine, model) -> None:
    path = model("net", "migraphx") / "net.onnx"
    done = migraphx.run(machine, "-c", PLACE, str(path), "x=1x3x20x20:fp32", "migraphx")
    assert done.returncode == 0, done.stderr[-2000:]
    placed, parts = json.loads(done.stdout.splitlines()[-1])
    assert placed["source"] == "session" and placed["left"] == []
    assert parts["steady"]["copy"] > 0
    assert parts["first"]["parse"] > 0 and parts["first"]["optimise"] > parts["steady"]["execute"]


@pytest.mark.parametrize("provider", ["rocm", "migraphx"])
def test_outputs_that_were_never_computed_are_seen(request, machine, model, provider: str) -> None:
    folder = model("net", provider)
    verify = ("-c", "from serving.cli import main; main()", "verify", str(folder), "--json")
    done = request.getfixturevalue(provider).run(machine, *verify)
    assert done.returncode == 1, done.stderr[-2000:]
    document = json.loads(done.stdout)
    assert document["found"] == f"net: ONNX Runtime on {provider} in fp32" and not document["close"]
    first = document["shapes"][0]["divergence"]["nodes"]
    assert [node["operation"] for node in first] == ["Conv"]
