"""What TunableOp chose for matrix products: PyTorch's CSV file, and ONNX Runtime's tuning results.

PyTorch (``torch.cuda.tunable``, watched with 2.11) appends every choice to its file at once, and rejects a whole file,
with a warning only, where one of its validators differs. While it records what is not tuned
(``PYTORCH_TUNABLEOP_RECORD_UNTUNED``) it does not read the file at all, so a miss shows otherwise: proving has tuning
on, on a copy, where a product without a choice is searched and becomes a new entry. Sealing and serving never search.

ONNX Runtime keeps nothing; the engine does (``handlers/engines/tuning.py``).
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from handlers.spec import ModelSpec
from warmup.stores.miopen import torch_is_for_hip
from warmup.stores.store import Finding, MergeReport, Phase, Settings, Store

_TORCH, _ONNX = "torch", "onnxruntime"
_RESULTS = "results%d.csv"  # PyTorch puts the device's number there
_VALIDATOR = "Validator"
_WHY = "its products would be tuned again"
_PROVIDERS = ("rocm", "cuda")


class TunableOpMismatch(Exception):
    """Stores that cannot be joined: their choices were made by other libraries or for another device."""


class TunableOpStore(Store):
    """Filled by torch models with ``search: true`` on PyTorch's ROCm build, and by ONNX models whose provider options
    set ``tunable_op_enable``."""

    name = "tunableop"

    def applies(self, spec: ModelSpec) -> bool:
        if spec.engine.kind == "torch":
            return spec.engine.search and torch_is_for_hip()
        return spec.engine.kind == "onnx" and any(
            spec.engine.options.get(provider, {}).get("tunable_op_enable") in ("1", "true", "True")
            for provider in spec.engine.providers
            if provider in _PROVIDERS
        )

    def settings(self, phase: Phase, root: Path) -> Settings:
        root = root.absolute()
        (root / _TORCH).mkdir(parents=True, exist_ok=True)
        search = phase in (Phase.TUNE, Phase.PROVE)
        environment = {
            "PYTORCH_TUNABLEOP_ENABLED": "1",
            "PYTORCH_TUNABLEOP_TUNING": "1" if search else "0",
            "PYTORCH_TUNABLEOP_RECORD_UNTUNED": "0",
            "PYTORCH_TUNABLEOP_FILENAME": str(root / _TORCH / _RESULTS),
        }
        engine = {
            "onnxruntime.tuning_dir": str(root / _ONNX),
            "onnxruntime.tuning": "search" if search else "use",
        }
        return Settings(environment, engine=engine)

    def identity(self) -> dict[str, str]:
        return {}  # versions and device are facts of the node; the files' validators name them once more

    def entries(self, root: Path) -> dict[str, str]:
        """``torch/results0.csv GEMM PARAMETERS`` or ``onnxruntime/NAME.json PROVIDER OP PARAMETERS`` to the choice."""
        found = {}
        for path in _tables(root):
            for key, choice in _read_table(path)[1].items():
                found[f"{path.relative_to(root).as_posix()} {key}"] = choice[0]
        for path in _documents(root):
            for key, choice in _read_document(path)[1].items():
                found[f"{path.relative_to(root).as_posix()} {key}"] = choice
        return found

    def merge(self, into: Path, sources: Iterable[Path]) -> MergeReport:
        """Of two choices for one product in PyTorch's files the faster is kept, in ONNX Runtime's the first.

        Raises TunableOpMismatch where validators differ.
        """
        added, present, conflicts = 0, 0, []
        for source in sources:
            for path in (*_tables(source), *_documents(source)):
                name = path.relative_to(source)
                join = _join_tables if path.suffix == ".csv" else _join_documents
                more, same, told = join(into / name, path)
                added, present = added + more, present + same
                conflicts += [f"{name}: {text}" for text in told]
        return MergeReport(added, present, tuple(conflicts))

    def check(self, root: Path) -> list[Finding]:
        findings = []
        for path in _tables(root):
            validators, _, wrong = _table_lines(path)
            where = path.relative_to(root).as_posix()
            findings += [Finding(f"{where}:{line}", "not OP,PARAMETERS,CHOICE,TIME", _WHY, True) for line in wrong]
            if not validators:
                findings.append(Finding(where, "no validators", "PyTorch would take it whatever made it"))
        for path in _documents(root):
            try:
                _read_document(path)
            except (ValueError, KeyError, TypeError, AttributeError):
                what = "not a list of tuning results"
                findings.append(Finding(path.relative_to(root).as_posix(), what, "the model would not start"))
        return findings


Choices = dict[str, tuple[str, float]]  # by "OP PARAMETERS": the choice and its milliseconds


def _tables(root: Path) -> list[Path]:
    return sorted((root / _TORCH).glob("*.csv"))


def _documents(root: Path) -> list[Path]:
    return sorted(path for path in (root / _ONNX).glob("*.json") if not path.name.startswith("."))


def _table_lines(path: Path) -> tuple[dict[str, str], Choices, list[int]]:
    """Validators, choices, and the numbers of lines that are neither."""
    validators: dict[str, str] = {}
    choices: Choices = {}
    wrong = []
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        for number, fields in enumerate(csv.reader(file), 1):
            if len(fields) == 3 and fields[0] == _VALIDATOR:
                validators[fields[1]] = fields[2]
                continue
            try:
                op, parameters, choice, *seconds = fields
                time = float(seconds[0]) if seconds else float("inf")
            except ValueError:
                wrong.append(number)
                continue
            choices[f"{op} {parameters}"] = (choice, time)
    return validators, choices, wrong


def _read_table(path: Path) -> tuple[dict[str, str], Choices]:
    validators, choices, _ = _table_lines(path)
    return validators, choices


def _join_tables(target: Path, source: Path) -> tuple[int, int, list[str]]:
    mine, theirs = ({}, {}) if not target.exists() else _read_table(target), _read_table(source)
    validators = _agreed(target, mine[0], source, theirs[0])
    joined, conflicts = dict(mine[1]), []
    for key, choice in theirs[1].items():
        if key in joined and joined[key][0] != choice[0]:
            kept = min(joined[key], choice, key=lambda one: one[1])
            conflicts.append(f"{key}: {joined[key][0]} and {choice[0]}; kept the faster, {kept[0]}")
            joined[key] = kept
        else:
            joined.setdefault(key, choice)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([_VALIDATOR, *item] for item in validators.items())
        for key, (choice, time) in joined.items():
            writer.writerow([*key.split(" ", 1), choice, *([] if time == float("inf") else [f"{time:g}"])])
    return len(joined) - len(mine[1]), len(mine[1].keys() & theirs[1].keys()), conflicts


def _read_document(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Validators by ``PROVIDER NAME``, choices by ``PROVIDER OP PARAMETERS``."""
    validators, choices = {}, {}
    for found in json.loads(path.read_text(encoding="utf-8")):
        provider = found["ep"]
        validators |= {f"{provider} {name}": str(value) for name, value in found["validators"].items()}
        for op, by_parameters in found["results"].items():
            choices |= {f"{provider} {op} {parameters}": str(choice) for parameters, choice in by_parameters.items()}
    return validators, choices


def _join_documents(target: Path, source: Path) -> tuple[int, int, list[str]]:
    theirs = _read_document(source)
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
        return len(theirs[1]), 0, []
    mine = _read_document(target)
    _agreed(target, mine[0], source, theirs[0])
    documents = {found["ep"]: found for found in json.loads(target.read_text(encoding="utf-8"))}
    for found in json.loads(source.read_text(encoding="utf-8")):
        kept = documents.setdefault(found["ep"], {**found, "results": {}})["results"]
        for op, by_parameters in found["results"].items():
            kept[op] = {**by_parameters, **kept.get(op, {})}
    target.write_text(json.dumps(list(documents.values()), sort_keys=True, indent=1), encoding="utf-8")
    same = mine[1].keys() & theirs[1].keys()
    told = [f"{key}: two choices; kept the first" for key in sorted(same) if mine[1][key] != theirs[1][key]]
    return len(theirs[1].keys() - mine[1].keys()), len(same), told


def _agreed(target: Path, mine: Mapping[str, str], source: Path, theirs: Mapping[str, str]) -> dict[str, str]:
    """The validators of both."""
    if mine and mine != theirs:
        name = next(name for name in (*mine, *theirs) if mine.get(name) != theirs.get(name))
        raise TunableOpMismatch(
            f"{source} was made with {name} {theirs.get(name, 'unknown')}, {target} with {mine.get(name, 'unknown')}"
        )
    return dict(theirs)
