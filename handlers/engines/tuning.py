"""What ONNX Runtime's TunableOp chose for matrix products and softmax, kept in a file: by itself it forgets.

The ROCm provider's ``tunable_op_enable`` makes it look for a choice, ``tunable_op_tuning_enable`` makes it search where
it has none. So a model that sets the first gets the second from the phase: searching while it is tuned, and never while
it serves. The engine's options ``onnxruntime.tuning_dir`` and ``onnxruntime.tuning`` (``search`` or ``use``) say so.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime

from handlers.errors import ModelError

DIRECTORY, MODE = "onnxruntime.tuning_dir", "onnxruntime.tuning"
SEARCH, USE = "search", "use"
_ENABLE, _TUNE = "tunable_op_enable", "tunable_op_tuning_enable"
_ON = ("1", "true", "True")


def wanted(options: Mapping[str, str]) -> bool:
    """Whether a provider's options ask for TunableOp."""
    return options.get(_ENABLE) in _ON


def with_mode(options: Mapping[str, str], mode: str) -> dict[str, str]:
    """A provider's options as the phase wants them."""
    return {**options, _TUNE: "1" if mode == SEARCH else "0"}


@dataclass(frozen=True)
class TuningFile:
    """The choices for one graph on one provider: the JSON of ``get_tuning_results``, a list with ``ep``, ``results``
    (by operation and parameters, the number of the implementation) and ``validators`` for each provider."""

    path: Path

    def restore(self, session: onnxruntime.InferenceSession) -> None:
        """Gives a session what the file holds, if there is one. Raises ModelError where ONNX Runtime does not take it:
        made by another version, for another device or library."""
        try:
            results = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            raise ModelError(f"{self.path}: no tuning results: {error}") from error
        try:
            session.set_tuning_results(results, error_on_invalid=True)  # else, what does not fit is only warned of
        except (RuntimeError, KeyError, TypeError) as error:
            reason = str(error).strip().split("\n", 1)[0]
            raise ModelError(
                f"{self.path}: tuning results that are not of this machine: {reason}; warm again"
            ) from error

    def keep(self, session: onnxruntime.InferenceSession) -> None:
        """Writes what a session has chosen so far, where that is more than the file says."""
        results: list[dict[str, Any]] = [found for found in session.get_tuning_results() if found["results"]]
        text = json.dumps(results, sort_keys=True, indent=1)
        if not results or (self.path.is_file() and self.path.read_text(encoding="utf-8") == text):
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(self.path)
