from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from handlers.errors import ModelError
from handlers.loading import find_models, load_handler
from handlers.spec import ModelSpec
from handlers.tensors import TensorHandler
from handlers.text_detector import TextDetector

Describe = Callable[..., ModelSpec]
ENGINE = {"kind": "onnx", "source": "net.onnx"}
MODEL = """
name: {name}
engine: {{kind: onnx, source: net.onnx}}
inputs: [{{name: x, dtype: fp32, dims: [batch, 3]}}]
shapes: {{list: ["x=1x3:fp32"]}}
"""


def store(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).mkdir()
        (root / name / "model.yaml").write_text(MODEL.format(name=name))
    return root


def test_default_handler_takes_tensors(describe: Describe) -> None:
    assert type(load_handler(describe(ENGINE), Path())) is TensorHandler


def test_a_handler_by_name(describe: Describe) -> None:
    assert type(load_handler(describe(ENGINE, handler="text_detector"), Path())) is TextDetector


@pytest.mark.parametrize("name", ["nonsense", "handler", "shapes", "engines", "../x", "os"])
def test_an_unknown_handler_is_refused_with_those_there_are(describe: Describe, name: str) -> None:
    with pytest.raises(ModelError, match=r"allowed: digit_reader, .*tensors, text_detector, or handler\.py"):
        load_handler(describe(ENGINE, handler=name), Path())


def test_a_handler_in_the_models_folder(describe: Describe, tmp_path: Path) -> None:
    (tmp_path / "handler.py").write_text(
        "from handlers.handler import Handler\nfrom handlers.tensors import TensorHandler\n"
        "class Mine(Handler):\n    pass\n"
    )
    assert type(load_handler(describe(ENGINE, handler="handler.py"), tmp_path)).__name__ == "Mine"


@pytest.mark.parametrize(("code", "found"), [("", "none"), ("class A(H): pass\nclass B(H): pass", "A, B")])
def test_a_folders_handler_must_be_one_class(describe: Describe, tmp_path: Path, code: str, found: str) -> None:
    (tmp_path / "handler.py").write_text("from handlers.handler import Handler as H\n" + code)
    with pytest.raises(ModelError, match=rf"handler\.py: expected exactly one subclass of Handler, found {found}"):
        load_handler(describe(ENGINE, handler="handler.py"), tmp_path)


def test_a_store_without_a_list_gives_every_model(tmp_path: Path) -> None:
    (store(tmp_path, "b", "a") / "notes").mkdir()
    assert [model.spec.name for model in find_models(tmp_path)] == ["a", "b"]


def test_a_stores_list_is_its_default_and_names_override_it(tmp_path: Path) -> None:
    store(tmp_path, "a", "b")
    (tmp_path / "default.yaml").write_text("models: [b]")
    assert [model.folder for model in find_models(tmp_path)] == [tmp_path / "b"]
    assert [model.spec.name for model in find_models(tmp_path, ["a"])] == ["a"]


@pytest.mark.parametrize("text", ["models: []", "models: a", "model: [a]", "[a]", "models: [1]", "models: [a", ""])
def test_a_list_that_is_wrong_is_named(tmp_path: Path, text: str) -> None:
    store(tmp_path, "a")
    (tmp_path / "default.yaml").write_text(text)
    with pytest.raises(ModelError, match=r"default\.yaml"):
        find_models(tmp_path)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no models"):
        find_models(tmp_path)
    with pytest.raises(ModelError, match=r"absent/model\.yaml: No such file"):
        find_models(store(tmp_path, "a"), ["absent"])


def test_two_models_of_one_name_are_refused(tmp_path: Path) -> None:
    store(tmp_path, "a", "b")
    (tmp_path / "b" / "model.yaml").write_text(MODEL.format(name="a"))
    with pytest.raises(ModelError, match="both describe a model named 'a'"):
        find_models(tmp_path)
