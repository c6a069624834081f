"""Models and their handlers, found by name: folders of a store, classes in ``handlers/`` or in a model's own folder."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import handlers
from handlers.document import read_mapping
from handlers.errors import ModelError
from handlers.handler import Handler
from handlers.sources import RANDOM, class_source, load_module, resolve
from handlers.spec import ModelSpec, load_spec

OWN_HANDLER = "handler.py"  # what model.yaml's ``handler`` says where the model's folder brings its own
DEFAULTS = "default.yaml"  # in a store: ``models``, the folders that are used where nobody names any


@dataclass(frozen=True)
class Model:
    """A model's description and the folder that it was read from."""

    spec: ModelSpec
    folder: Path


def find_models(store: Path, names: Iterable[str] = ()) -> tuple[Model, ...]:
    """The named models of a store (by folder), or those of its ``default.yaml``, or all where it has none.

    Raises ModelError on a folder that is not there, a description that is wrong, and two models of one name.
    """
    folders = tuple(names) or _default_folders(store)
    models = tuple(Model(load_spec(store / name), store / name) for name in folders)
    owners: dict[str, Path] = {}
    for model in models:
        other = owners.setdefault(model.spec.name, model.folder)
        if other != model.folder:
            raise ModelError(f"{other} and {model.folder} both describe a model named {model.spec.name!r}")
    return models


def load_handler(spec: ModelSpec, folder: Path) -> Handler:
    """The handler of a model, not yet initialized; raises ModelError naming what is there instead."""
    if spec.handler == OWN_HANDLER:
        path = folder / OWN_HANDLER
        return _made(_only_handler(load_module(folder, OWN_HANDLER), str(path)), str(path))
    known = _modules()
    if spec.handler not in known:
        raise ModelError(
            f"{spec.name}: handler: no handler {spec.handler!r}; allowed: {', '.join(known)}, or {OWN_HANDLER} for a "
            "class in the model's folder"
        )
    where = f"{spec.name}: handler: handlers/{spec.handler}.py"
    try:
        module = importlib.import_module(f"handlers.{spec.handler}")
    except ImportError as error:
        raise ModelError(f"{where}: {error}") from error
    return _made(_only_handler(module, where), where)


def check_parts(model: Model) -> None:
    """Raises ModelError on what can be seen to be wrong with a model before any framework has been loaded.

    That are a handler that cannot be made, a source or weights that are not there, and a python model without outputs.
    """
    spec, engine = model.spec, model.spec.engine
    load_handler(spec, model.folder)
    of_class = class_source(engine.source)
    files = {"source": of_class[0] if of_class else engine.source, "weights": engine.weights or RANDOM}
    for key, source in files.items():
        if not source.startswith(RANDOM):
            try:
                resolve(source, model.folder)
            except ModelError as error:
                raise ModelError(f"{spec.name}: engine.{key}: {error}") from error
    if engine.kind == "python" and not spec.outputs:
        raise ModelError(f"{spec.name}: outputs: a python model must name its outputs, with dtype and dims")


def _default_folders(store: Path) -> tuple[str, ...]:
    path = store / DEFAULTS
    if not path.is_file():
        found = tuple(sorted(file.parent.name for file in store.glob("*/model.yaml")))
        if not found:
            raise ModelError(f"{store}: no models: expected folders with a model.yaml")
        return found
    document = read_mapping(path)
    names = document.get("models") if len(document) == 1 else None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ModelError(f"{path}: expected one key, 'models', with a list of folder names")
    return tuple(names)


def _modules() -> list[str]:
    """The modules of the package that define a handler, told by their source so that none is imported."""
    names = []
    for module in pkgutil.iter_modules(handlers.__path__):
        source = Path(handlers.__path__[0]) / f"{module.name}.py"
        if source.is_file() and "(Handler):" in source.read_text(encoding="utf-8"):
            names.append(module.name)
    return names


def _only_handler(module: ModuleType, where: str) -> type[Handler]:
    found = [
        value
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, Handler) and value.__module__ == module.__name__
    ]
    if len(found) != 1:
        names = ", ".join(value.__name__ for value in found) or "none"
        raise ModelError(f"{where}: expected exactly one subclass of Handler, found {names}")
    return found[0]


def _made(handler: type[Handler], where: str) -> Handler:
    try:
        return handler()
    except Exception as error:  # whatever a model's code raises
        raise ModelError(f"{where}: {handler.__name__}: {type(error).__name__}: {error}") from error
