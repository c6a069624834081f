"""A sweep over a list of problems, run by the tests on the stand-in's Python.

    python sweep_keys.py OUT WORKERS < KEYS

Prints the report as JSON; each problem that was run is a line "PHASE KEY" on standard error.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from warmup.miopen.problem import ConvProblem
from warmup.miopen.sweep import sweep

problems = [ConvProblem.from_find_db_key(line.strip()) for line in sys.stdin]


def say(phase, outcome) -> None:
    print(phase.value, outcome.key, file=sys.stderr, flush=True)


print(json.dumps(sweep(problems, Path(sys.argv[1]), workers=int(sys.argv[2]), progress=say).to_json()))
