from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from handlers.errors import ModelError
from handlers.sources import class_source, file_digest, graph_digest, load_class, model_digest, resolve
from handlers.spec import ModelSpec

Describe = Callable[..., ModelSpec]


def test_resolves_a_path_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "net.onnx").write_bytes(b"x")
    assert resolve("sub/net.onnx", tmp_path) == tmp_path / "sub" / "net.onnx"


@pytest.mark.parametrize("source", ["../net.onnx", "/etc/hostname", "sub/../../net.onnx", "", "package:rich/../x"])
def test_refuses_a_path_that_leaves_the_folder(tmp_path: Path, source: str) -> None:
    with pytest.raises(ModelError, match=r"must stay inside"):
        resolve(source, tmp_path)


def test_names_the_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"net\.onnx: no such file"):
        resolve("net.onnx", tmp_path)


def test_finds_a_packages_file_without_importing_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "explosive"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "net.onnx").write_bytes(b"x")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert resolve("package:explosive/net.onnx", Path("elsewhere")) == package / "net.onnx"
    assert "explosive" not in sys.modules


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("package:no_such_package_here/net.onnx", "'no_such_package_here' is not installed"),
        ("package:yaml/net.onnx", "'yaml' has no file 'net.onnx'"),
        ("package:yaml", "is not package:NAME/PATH"),
        ("package:os.path/net.onnx", "is not package:NAME/PATH"),
    ],
)
def test_says_why_a_packages_file_cannot_be_had(source: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        resolve(source, Path())


def test_tells_classes_from_files() -> None:
    assert class_source("net.py:Net") == ("net.py", "Net")
    assert class_source("package:rapidocr/net.onnx") is None
    assert class_source("net.onnx") is None


def test_two_folders_with_one_file_name_are_two_modules(tmp_path: Path) -> None:
    for name, value in (("a", 1), ("b", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "net.py").write_text(f"class Net:\n    value = {value}\n")
    assert [load_class(tmp_path / name, "net.py:Net").value for name in "ab"] == [1, 2]  # type: ignore[attr-defined]


def test_says_which_classes_there_are(net_folder: Path) -> None:
    with pytest.raises(ModelError, match=r"net\.py: no class 'Other'; found Net, Two, Breaks, Refuses, NotAModule"):
        load_class(net_folder, "net.py:Other")


def test_code_that_fails_is_named_and_may_be_mended(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text("import no_such_module_here")
    with pytest.raises(ModelError, match=r"net\.py: ModuleNotFoundError: No module named 'no_such_module_here'"):
        load_class(tmp_path, "net.py:Net")
    file.write_text("class Net:\n    mended = True\n")
    assert load_class(tmp_path, "net.py:Net").mended  # type: ignore[attr-defined]


def test_file_digest_is_sha256(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")  # FIPS 180-4, appendix example
    assert file_digest(tmp_path / "f") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_model_digest_follows_what_is_computed_and_nothing_else(describe: Describe, tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(b"one")
    spec = describe({"kind": "onnx", "source": "net.onnx"})
    first = model_digest(spec, tmp_path)
    same = [
        describe({"kind": "onnx", "source": "net.onnx"}, name="other"),
        describe({"kind": "onnx", "source": "net.onnx", "threads": 3, "providers": ["cuda", "cpu"]}),
        describe({"kind": "onnx", "source": "net.onnx"}, cold="reject"),
    ]
    assert {model_digest(other, tmp_path) for other in same} == {first}
    assert model_digest(describe({"kind": "onnx", "source": "net.onnx", "precision": "fp16"}), tmp_path) != first
    (tmp_path / "net.onnx").write_bytes(b"two")
    assert model_digest(spec, tmp_path) != first


def test_model_digest_follows_the_outputs_and_their_order(describe: Describe, tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(b"one")
    y, z = ({"name": name, "dtype": "float32", "dims": ["batch"]} for name in "yz")
    specs = [
        describe({"kind": "onnx", "source": "net.onnx"}, outputs=outputs)
        for outputs in ([y, z], [z, y], [y], [y | {"dtype": "float16"}, z])
    ]
    assert len({model_digest(spec, tmp_path) for spec in specs}) == len(specs)


def test_model_digest_follows_code_and_arguments(describe: Describe, net_folder: Path) -> None:
    engine = {"kind": "torch", "source": "net.py:Net", "weights": "random:1"}
    first = model_digest(describe(engine), net_folder)
    assert model_digest(describe(engine | {"weights": "random:2"}), net_folder) != first
    assert model_digest(describe(engine | {"arguments": {"width": 5}}), net_folder) != first
    (net_folder / "helper.py").write_text("x = 1")
    assert model_digest(describe(engine), net_folder) != first


def save_graph(path: Path, value: float, external: bool) -> None:
    path.parent.mkdir()
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [64, 64]) for name in "xy"]
    weights = numpy_helper.from_array(np.full((64, 64), value, np.float32), "w")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", tensors[:1], tensors[1:], [weights])
    onnx.save(helper.make_model(graph), path, save_as_external_data=external, location="weights.bin", size_threshold=0)


@pytest.mark.parametrize("external", [False, True])
def test_other_weights_are_another_graph_wherever_they_are(tmp_path: Path, describe: Describe, external: bool) -> None:
    for name, value in (("a", 1.0), ("b", 1.0), ("c", 2.0)):
        save_graph(tmp_path / name / "net.onnx", value, external)
    a, b, c = (graph_digest(tmp_path / name / "net.onnx") for name in "abc")
    assert a == b != c
    spec = describe({"kind": "onnx", "source": "net.onnx"})
    assert (
        model_digest(spec, tmp_path / "a") == model_digest(spec, tmp_path / "b") != model_digest(spec, tmp_path / "c")
    )
    same = (tmp_path / "a" / "net.onnx").read_bytes() == (tmp_path / "c" / "net.onnx").read_bytes()
    assert same is external, "the graphs themselves differ only where the weights are in them"


@pytest.mark.parametrize("text", [b"nonsense", b"a location in nonsense"])
def test_a_file_that_is_no_graph_has_a_digest_too(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "net.onnx").write_bytes(text)
    assert graph_digest(tmp_path / "net.onnx") == file_digest(tmp_path / "net.onnx")
