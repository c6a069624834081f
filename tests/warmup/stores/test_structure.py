from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper, save

from warmup.stores.onnxruntime import OnnxRuntimeStore
from warmup.stores.structure import structure


def model(
    names: str = "abcd", swapped: bool = False, weight: float = 1.0, axis: int = 0, crossed: bool = False
) -> ModelProto:
    """Two branches of ``x`` that are joined; ``names`` are those of what is between."""
    a, b, c, d = names
    branches = [
        helper.make_node("Mul", ["x", c], [a], name=f"n{a}"),
        helper.make_node("Add", ["x", d], [b], name=f"n{b}"),
    ]
    joined = helper.make_node("Concat", [b, a] if crossed else [a, b], ["y"], axis=axis)
    weights = [
        numpy_helper.from_array(np.full(3, weight, np.float32), c),
        numpy_helper.from_array(np.full(3, 2.0, np.float32), d),
    ]
    graph = helper.make_graph(
        [*(reversed(branches) if swapped else branches), joined],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        list(reversed(weights)) if swapped else weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def saved(folder: Path, made: ModelProto) -> Path:
    folder.mkdir(parents=True)
    save(made, folder / "net.onnx")
    return folder / "net.onnx"


def test_names_and_order_make_no_difference(tmp_path: Path) -> None:
    one = structure(saved(tmp_path / "1", model()))
    assert one is not None
    assert structure(saved(tmp_path / "2", model(names="pqrs", swapped=True))) == one


@pytest.mark.parametrize("other", [{"weight": 1.5}, {"axis": 1}, {"crossed": True}])
def test_what_computes_something_else_is_another(tmp_path: Path, other: dict) -> None:
    assert structure(saved(tmp_path / "1", model())) != structure(saved(tmp_path / "2", model(**other)))


def test_the_version_of_an_operator_set_belongs_to_it(tmp_path: Path) -> None:
    newer = model()
    newer.opset_import[0].version = 18
    assert structure(saved(tmp_path / "1", model())) != structure(saved(tmp_path / "2", newer))


def test_what_is_no_graph_has_none(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(b"\xff" * 20)
    assert structure(path) is None


def test_two_sweeps_optimised_graphs_are_one_entry(tmp_path: Path) -> None:
    saved(tmp_path / "1", model())
    saved(tmp_path / "2", model(names="pqrs", swapped=True))
    saved(tmp_path / "3", model(weight=1.5))
    store = OnnxRuntimeStore()
    into = tmp_path / "into"
    into.mkdir()
    report = store.merge(into, [tmp_path / "1", tmp_path / "2"])
    assert (report.added, report.present, report.conflicts) == (1, 1, ())
    assert store.entries(tmp_path / "1") == store.entries(tmp_path / "2") == store.entries(into)
    assert store.merge(into, [tmp_path / "3"]).conflicts
