from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from serving.cli.plan import app

NET = """
from torch import nn
class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1))
"""
KEYS = ["3-8-8-3x3-4-6-6-{}-0x0-1x1-1x1-0-NCHW-FP32-F", "4-6-6-1x1-4-6-6-{}-0x0-1x1-1x1-0-NCHW-FP32-F"]
FWD = "miopenConvolutionFwdAlgo"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A model store with the model ``tiny``."""
    folder = tmp_path / "store" / "tiny"
    folder.mkdir(parents=True)
    (folder / "net.py").write_text(NET)
    (folder / "model.yaml").write_text(
        "name: tiny\n"
        "engine: {kind: torch, source: 'net.py:Net', weights: 'random:1'}\n"
        "inputs: [{name: x, dtype: fp32, dims: [batch, 3, 8, 8]}]\n"
        "outputs: [{name: y, dtype: fp32, dims: [batch, 4, 6, 6]}]\n"
        "shapes: {grid: {batch: [1, 2]}, weights: {batch: {1: 3}}}\n"
    )
    return folder.parent


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """All of batch 1, half of batch 2."""
    path = tmp_path / "gfx942130.HIP.fdb.txt"
    keys = [KEYS[0].format(1), KEYS[1].format(1), KEYS[0].format(2)]
    path.write_text("".join(f"{key}=GemmFwdRest:0.5,0,{FWD}GEMM;ConvAsm1x1U:0.25,0,{FWD}Direct\n" for key in keys))
    return path


def run(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_coverage_as_json(store, database):
    result = run("tiny", "--model-store", store, "--db", database, "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["problems"] == {"distinct": 4, "total": 4}
    assert (document["device"], document["covered"]) == ("gfx942130", 0.75)
    first, second = document["shapes"]
    assert (first["shape"], first["weight"], first["problems"], first["covered"]) == ("x=1x3x8x8:fp32", 0.75, 2, 2)
    assert (first["missing"], first["predicted_ms"], first["default"]["ratio"]) == ([], 0.5, 2.0)
    assert (second["covered"], second["missing"], second["predicted_ms"]) == (1, [KEYS[1].format(2)], 0.25)
    assert second["naive"] is None


def test_coverage_as_a_table_says_whose_times_these_are(store, database):
    result = run(store / "tiny", "--db", database)
    assert result.exit_code == 0, result.output
    assert "x=2x3x8x8:fp32" in result.stdout
    assert "75.0% of the distinct problems" in result.stdout
    assert "the database's own, measured on gfx942130" in " ".join(result.stdout.split())


def test_without_a_database_the_keys_of_every_shape(store):
    document = json.loads(run("tiny", "--model-store", store, "--json").stdout)
    assert [list(shape["keys"]) for shape in document["shapes"]] == [[k.format(b) for k in KEYS] for b in (1, 2)]
    assert document["suggest_nhwc"] is False
    table = run("tiny", "--model-store", store)
    assert table.exit_code == 0
    assert "2 shapes, 4 distinct convolution problems" in " ".join(table.stdout.split())


def test_keys_one_a_line_to_be_tuned_elsewhere(store, database):
    all_keys = [key.format(batch) for batch in (1, 2) for key in KEYS]
    assert run("tiny", "--model-store", store, "--keys").stdout.splitlines() == all_keys
    assert run("tiny", "--model-store", store, "--keys", "--db", database).stdout.splitlines() == all_keys[3:]


@pytest.mark.parametrize(("minimum", "status"), [(0.75, 0), (0.76, 1)])
def test_a_coverage_that_is_too_small(store, database, minimum, status):
    assert run("tiny", "--model-store", store, "--db", database, "--min-coverage", minimum).exit_code == status


def test_an_engine_of_python_code_has_shapes_only(store):
    path = store / "tiny" / "model.yaml"
    path.write_text(path.read_text().replace("kind: torch", "kind: python").replace(", weights: 'random:1'", ""))
    result = run("tiny", "--model-store", store, "--json")
    assert result.exit_code == 0
    assert [shape["shape"] for shape in json.loads(result.stdout)["shapes"]] == ["x=1x3x8x8:fp32", "x=2x3x8x8:fp32"]


def test_what_cannot_be_shown_is_one_line_and_status_2(store, database, tmp_path):
    notes = tmp_path / "notes.txt"
    notes.write_text("hello\n")
    for arguments, words in (
        (("absent", "--model-store", store), "neither a folder with a model.yaml nor a model in"),
        (("tiny", "--model-store", store, "--db", notes), "notes.txt"),
        (("tiny", "--model-store", store, "--db", tmp_path / "none"), "none: No such file"),
        (("tiny", "--model-store", store, "--min-coverage", 1), "--min-coverage needs --db"),
    ):
        result = run(*arguments)
        assert result.exit_code == 2
        assert words in result.stderr and result.stderr.count("\n") == 1


def test_a_shape_that_is_not_planned_can_be_asked_about(store, database):
    result = run("tiny", "--model-store", store, "--db", database, "--shape", "x=5x3x8x8:fp32", "--keys")
    assert (result.exit_code, result.stdout.split()) == (0, [key.format(5) for key in KEYS])
    shapes = ("--shape", "x=5x3x8x8:fp32", "--shape", "x=1x3x8x8:fp32")
    document = json.loads(run("tiny", "--model-store", store, "--db", database, *shapes, "--json").stdout)
    assert [(row["shape"], row["weight"], row["covered"]) for row in document["shapes"]] == [
        ("x=5x3x8x8:fp32", 0.0, 0),
        ("x=1x3x8x8:fp32", 0.75, 2),
    ]


@pytest.mark.parametrize(
    ("shape", "told"),
    [
        ("x=1x3x8x8", "is not NAME=DIMxDIM...:DTYPE"),
        ("x=1x3x9x8:fp32", "the model takes"),
        ("y=1:fp32", "inputs are y"),
    ],
)
def test_a_shape_that_cannot_be_one_of_the_model_is_refused(store, shape, told):
    result = run("tiny", "--model-store", store, "--shape", shape)
    assert result.exit_code == 2 and told in result.stderr and len(result.stderr.splitlines()) == 1
