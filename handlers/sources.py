"""Where a model's files are: paths in its folder, files that an installed package ships, classes in the folder's code.

Nothing here imports a package to find a file in it, so a model may use the data of a package whose own requirements
are not installed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
from pathlib import Path, PurePosixPath
from types import ModuleType

from handlers.errors import ModelError
from handlers.spec import ModelSpec

PACKAGE = "package:"
RANDOM = "random:"
_LOCATION = b"location"  # onnx.proto, TensorProto.external_data: the key that names a file


def resolve(source: str, folder: Path) -> Path:
    """The file that ``source`` names: a path inside ``folder``, or ``package:NAME/PATH``; raises ModelError."""
    if source.startswith(PACKAGE):
        return _in_package(source)
    path = folder / _inside(source, source)
    if not path.is_file():
        raise ModelError(f"{path}: no such file (from {source!r})")
    return path


def class_source(source: str) -> tuple[str, str] | None:
    """``("net.py", "Net")`` for ``net.py:Net``, None for a source that is a plain file."""
    module, colon, name = source.rpartition(":")
    return (module, name) if colon and module.endswith(".py") else None


def load_class(folder: Path, source: str) -> type:
    """The class that ``MODULE.py:CLASS`` names in ``folder``; raises ModelError where either is missing."""
    parts = class_source(source)
    if parts is None:
        raise ModelError(f"{folder}: {source!r} is not MODULE.py:CLASS")
    module = load_module(folder, parts[0])
    found = getattr(module, parts[1], None)
    if not isinstance(found, type):
        classes = [name for name, value in vars(module).items() if isinstance(value, type)]
        raise ModelError(f"{folder / parts[0]}: no class {parts[1]!r}; found {', '.join(classes) or 'none'}")
    return found


def load_module(folder: Path, file: str) -> ModuleType:
    """Imports one Python file of a model's folder, once per process, under a name that no other model can have."""
    path = resolve(file, folder).resolve()
    name = f"preheat_model_{hashlib.sha256(str(path).encode()).hexdigest()[:16]}_{path.stem}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ModelError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs, as an import does: dataclasses and pickling look it up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ModelError(f"{path}: {type(error).__name__}: {error}") from error
    return module


def file_digest(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def graph_digest(path: Path) -> str:
    """The SHA-256 (hex) of an ONNX graph, and of the files that its weights are in where they are not in it.

    A file that is no graph has a digest, too: what is wrong with it is said by whoever loads it.
    """
    digest = file_digest(path)
    if _LOCATION not in path.read_bytes():
        return digest
    import onnx  # takes half a second, and few graphs have such files
    from google.protobuf.message import DecodeError
    from onnx.external_data_helper import uses_external_data

    try:
        model = onnx.load(path, load_external_data=False)
    except DecodeError:
        return digest
    files = {
        entry.value
        for tensor in model.graph.initializer
        if uses_external_data(tensor)
        for entry in tensor.external_data
        if entry.key == "location"
    }
    if not files:
        return digest
    facts = [digest, *(file_digest(path.parent / name) for name in sorted(files))]
    return hashlib.sha256(" ".join(facts).encode()).hexdigest()


def model_digest(spec: ModelSpec, folder: Path) -> str:
    """The SHA-256 (hex) of all that decides what a model computes.

    That is the engine's description, the outputs (their order and dtypes are compiled into graphs), its source and
    weights (those too that an ONNX graph keeps in files of their own), and, where the source or the handler is code,
    every Python file of the folder. The name, the plan and the limits are not part of it.
    """
    engine = spec.engine
    facts: dict[str, object] = {
        "engine": engine.model_dump(mode="json", exclude={"options", "providers", "threads"}),
        "outputs": [output.model_dump(mode="json") for output in spec.outputs],
        "files": {},
    }
    files = {source: resolve(source, folder) for source in (engine.source, engine.weights or "") if _is_file(source)}
    if class_source(engine.source) or (folder / "handler.py").is_file():
        files |= {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*.py"))}
    digest = graph_digest if engine.kind == "onnx" else file_digest
    facts["files"] = {name: digest(path) for name, path in sorted(files.items())}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _is_file(source: str) -> bool:
    return bool(source) and not source.startswith(RANDOM) and class_source(source) is None


def _in_package(source: str) -> Path:
    package, _, rest = source.removeprefix(PACKAGE).partition("/")
    if not package.isidentifier() or not rest:
        raise ModelError(f"{source!r} is not package:NAME/PATH, where NAME is a top-level package")
    found = importlib.util.find_spec(package)  # of a top-level name: looks it up, and imports nothing
    if found is None:
        raise ModelError(f"{source}: package {package!r} is not installed")
    relative = _inside(rest, source)
    for location in found.submodule_search_locations or ():
        path = Path(location) / relative
        if path.is_file():
            return path
    raise ModelError(f"{source}: the installed package {package!r} has no file {rest!r}")


def _inside(relative: str, source: str) -> PurePosixPath:
    path = PurePosixPath(relative)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ModelError(f"{source!r}: a path must stay inside its folder (no leading '/', no '..')")
    return path
